//! Ranks that are killed or that hang, as real processes.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::endless::{
    FOREVER, about, checkpoints, is_there, keeping, launched, launched_in_time, signal, succeeded,
    three_ranks, three_ranks_in_time,
};
use crate::support::mnist::{mnist, rank};
use crate::support::port::free_port;
use crate::support::running::Running;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool;
use crate::support::welcomed::wait_for_welcomes;
use mpienv_sharding::random::{Purpose, Stream};
use rustix::process::{Signal, kill_process};

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn a_killed_rank_ends_all_others_which_name_it_and_its_host() {
    for odd in [0, 1] {
        let mut ranks = three_ranks(&[]);
        let killed = ranks.remove(odd);
        let begun = Instant::now();
        signal(&killed, Signal::KILL);
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(3), "{said}");
            assert!(
                said.contains(&format!("mnist: rank {odd} on {} (127.0.0.1) is lost: ", host())),
                "{said}"
            );
        }
        assert!(begun.elapsed() < SLACK);
        killed.end();
    }
}

#[test]
fn a_rank_killed_before_all_have_come_is_a_lost_one() {
    if !tool::is_there("ss") {
        return;
    }
    for odd in [0, 1] {
        let port = free_port();
        // Rank 3 never comes.
        let start =
            |index| Running::start(rank(index, 4, port).args(FOREVER).args(["--timeout", PATIENT]));
        let mut ranks: Vec<_> = [0, 1, 2].map(start).into();
        wait_for_welcomes(2, port);
        let killed = ranks.remove(odd);
        signal(&killed, Signal::KILL);
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(3), "{said}");
            assert!(
                said.contains("lost") && said.contains("before all ranks had connected"),
                "{said}"
            );
        }
        killed.end();
    }
}

#[test]
fn a_hung_rank_ends_all_others_within_the_timeout_which_name_it_and_its_host() {
    for odd in [0, 1] {
        let hang = |timeout: u32| {
            let mut ranks = three_ranks_in_time(&timeout.to_string(), &[])?;
            let hung = ranks.remove(odd);
            let begun = Instant::now();
            signal(&hung, Signal::STOP);
            let ends: Vec<_> = ranks.into_iter().map(Running::end).collect();
            let waited = begun.elapsed();
            signal(&hung, Signal::KILL);
            hung.end();
            Some((timeout, waited, ends))
        };
        let named = |timeout| {
            format!("mnist: rank {odd} on {} (127.0.0.1) did not arrive within {timeout} s", host())
        };
        // Otherwise a rank that was only slow was given up.
        let all_name_it = |ended: &Option<(u32, Duration, Vec<(_, String)>)>| {
            let name_it = |(timeout, _, ends): &(_, _, Vec<(_, String)>)| {
                ends.iter().all(|(_, said)| said.contains(&named(*timeout)))
            };
            ended.as_ref().is_some_and(name_it)
        };
        let (timeout, waited, ends) = in_time(hang, all_name_it).expect("the ranks train");
        for (code, said) in ends {
            assert_eq!(code, Some(124), "{said}");
            assert!(said.contains(&named(timeout)), "{said}");
        }
        let least = Duration::from_secs(timeout.into());
        assert!(waited >= least && waited < least + SLACK, "{waited:?}");
    }
}

#[test]
fn a_killed_rank_of_a_launcher_ends_all() {
    let (launcher, killed) = launched("3", &[]);
    kill_process(killed, Signal::KILL).unwrap();
    let begun = Instant::now();
    let (code, said) = launcher.end();
    // It is a matter of chance whose exit is noticed first.
    assert!(code == Some(137) || code == Some(3), "{code:?} {said}");
    assert!(said.contains(&format!("mnist: rank 1 on {} (127.0.0.1) is lost: ", host())), "{said}");
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
}

#[test]
fn a_hung_rank_of_a_launcher_ends_all() {
    let hang = |timeout: u32| {
        let (launcher, hung) = launched_in_time("3", &timeout.to_string(), &[])?;
        kill_process(hung, Signal::STOP).unwrap();
        let begun = Instant::now();
        let (code, said) = launcher.end();
        // The launcher gives the others some time to exit by themselves; a hung rank does not.
        assert!(
            begun.elapsed() < Duration::from_secs(timeout.into()) + SLACK,
            "{:?}",
            begun.elapsed()
        );
        assert!(!is_there(hung));
        Some((timeout, code, said))
    };
    let named = |timeout| {
        format!("mnist: rank 1 on {} (127.0.0.1) did not arrive within {timeout} s", host())
    };
    // Otherwise a rank that was only slow was given up.
    let names_it = |ended: &Option<(u32, _, String)>| {
        ended.as_ref().is_some_and(|(timeout, _, said)| said.contains(&named(*timeout)))
    };
    let (timeout, code, said) = in_time(hang, names_it).expect("the ranks train");
    assert_eq!(code, Some(124), "{said}");
    assert!(said.contains(&named(timeout)), "{said}");
}

#[test]
fn fifty_kills_at_random_times_leave_a_newest_checkpoint_that_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("killed");
    let mut random = Stream::new(7, Purpose::Digit(0));
    let (mut kills, mut steps) = (0, 0);
    // A busy machine takes longer to write the first checkpoint: kills are spread over twice the
    // time that this takes here.
    let begun = Instant::now();
    let first =
        Running::start(mnist().args(["--epochs", "1000000", "--quiet"]).args(keeping(&kept)));
    while checkpoints(&kept).is_empty() {
        assert!(begun.elapsed() < SLACK, "no checkpoint");
        thread::sleep(Duration::from_millis(1));
    }
    let mut longest = 2.0 * begun.elapsed().as_secs_f64();
    signal(&first, Signal::KILL);
    first.end();
    while kills < 50 || steps < 30 && kills < 500 {
        let run =
            Running::start(mnist().args(["--epochs", "1000000", "--quiet"]).args(keeping(&kept)));
        thread::sleep(Duration::from_secs_f64(random.between(0.2 * longest, longest)));
        signal(&run, Signal::KILL);
        let (_, said) = run.end();
        assert!(!said.contains("corrupt"), "{said}");
        kills += 1;
        let files = checkpoints(&kept);
        for file in &files {
            assert!(!about(file)["sha256"].is_null(), "{}", file.display());
        }
        assert!(files.len() <= 5, "{files:?}");
        if let Some(newest) = files.last() {
            let now = newest
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .split_once('-')
                .unwrap()
                .1
                .parse()
                .unwrap();
            // No run goes back before the last checkpoint of the previous run.
            assert!(now >= steps, "{now} after {steps}");
            if now == steps {
                longest = 300.0_f64.min(longest * 1.1);
            }
            steps = now;
        }
    }
    assert!(steps >= 30, "{steps} steps in {kills} kills");

    // All these pieces together give the same result as one uninterrupted run.
    let epochs = (steps / 375 + 1).to_string();
    let whole = folder.path().join("whole");
    for kept in [&kept, &whole] {
        let arguments = [
            "--epochs",
            &epochs,
            "--quiet",
            "--resume",
            "--checkpoint-dir",
            kept.to_str().unwrap(),
        ];
        succeeded(&mnist().args(arguments).output().unwrap());
    }
    let last = |folder: &Path| fs::read(checkpoints(folder).pop().unwrap()).unwrap();
    assert_eq!(last(&kept), last(&whole));
}
