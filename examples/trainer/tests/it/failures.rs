//! Ranks that are killed, that hang, or that get a stop signal, as real processes.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::living::living;
use crate::support::mnist::mnist;
use crate::support::port::free_port;
use crate::support::rank::rank;
use crate::support::running::Running;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool;
use crate::support::welcomed::wait_for_welcomes;
use mpienv_trainer::random::{Purpose, Stream};
use mpienv_trainer::tensor_file::TensorFile;
use rustix::process::{Pid, Signal, kill_process};

/// Far more epochs than any test waits for.
const FOREVER: [&str; 3] = ["--epochs", "1000000", "--quiet"];
fn signal(run: &Running, signal: Signal) {
    kill_process(Pid::from_child(&run.child), signal).unwrap();
}

/// Three ranks without a launcher, all training; `more` are arguments for all.
fn three_ranks(more: &[&str]) -> Vec<Running> {
    three_ranks_in_time(PATIENT, more).unwrap()
}

/// The same with a timeout in seconds; `None` if they are too slow to train.
fn three_ranks_in_time(timeout: &str, more: &[&str]) -> Option<Vec<Running>> {
    let port = free_port();
    let start = |index| {
        Running::start(rank(index, 3, port).args(FOREVER).args(["--timeout", timeout]).args(more))
    };
    let ranks: Vec<_> = [0, 1, 2].map(start).into();
    ranks[0].trains().then_some(ranks)
}

/// `ranks` ranks that `mnist` starts, all training, and the PID of rank 1; `more` are arguments for
/// all.
fn launched(ranks: &str, more: &[&str]) -> (Running, Pid) {
    launched_in_time(ranks, PATIENT, more).unwrap()
}

/// The same with a timeout in seconds; `None` if they are too slow to train.
fn launched_in_time(ranks: &str, timeout: &str, more: &[&str]) -> Option<(Running, Pid)> {
    let mark = format!("{}-{:?}", std::process::id(), thread::current().id());
    let mut command = mnist();
    command
        .env("MNIST_TEST", &mark)
        .args(["--ranks", ranks, "--timeout", timeout])
        .args(FOREVER)
        .args(more);
    let launcher = Running::start(&mut command);
    if !launcher.trains() {
        return None;
    }
    let found = living(&[&format!("MNIST_TEST={mark}"), "RANK=1"]);
    assert!(found.len() <= 1, "{found:?}");
    Some((launcher, *found.first()?))
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

fn is_there(process: Pid) -> bool {
    Path::new(&format!("/proc/{}", process.as_raw_nonzero())).exists()
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
            format!("mnist: rank {odd} on {} (127.0.0.1) did not come within {timeout} s", host())
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
        format!("mnist: rank 1 on {} (127.0.0.1) did not come within {timeout} s", host())
    };
    // Otherwise a rank that was only slow was given up.
    let names_it = |ended: &Option<(u32, _, String)>| {
        ended.as_ref().is_some_and(|(timeout, _, said)| said.contains(&named(*timeout)))
    };
    let (timeout, code, said) = in_time(hang, names_it).expect("the ranks train");
    assert_eq!(code, Some(124), "{said}");
    assert!(said.contains(&named(timeout)), "{said}");
}

/// The arguments that write checkpoints to `folder`.
fn keeping(folder: &Path) -> [&str; 5] {
    ["--checkpoint-dir", folder.to_str().unwrap(), "--checkpoint-every", "3", "--resume"]
}

/// The checkpoints in a folder, the newest last.
fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).collect();
    files.sort();
    files
}

/// The metadata of a checkpoint.
fn about(checkpoint: &Path) -> serde_json::Value {
    serde_json::from_str(&TensorFile::read(checkpoint).unwrap().about).unwrap()
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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

#[test]
fn a_signal_to_any_rank_stops_all_after_the_same_step_and_a_checkpoint_is_kept() {
    for (number, code, name) in [(Signal::TERM, 143, "SIGTERM"), (Signal::INT, 130, "SIGINT")] {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kept");
        let ranks = three_ranks(&["--checkpoint-dir", kept.to_str().unwrap()]);
        signal(&ranks[1], number);
        let ends: Vec<_> = ranks.into_iter().map(Running::end).collect();
        let newest = checkpoints(&kept).pop().unwrap();
        let about = about(&newest);
        let text = |name: &str| about[name].as_str().unwrap();
        let at = format!(
            "mnist: stopped by {name} in epoch {} after {} steps; ",
            text("epoch"),
            text("step")
        );
        for (index, (end, said)) in ends.into_iter().enumerate() {
            assert_eq!(end, Some(code), "{said}");
            let rest =
                format!("{at}{} was written: continue from it with --resume", newest.display());
            // Rank 0 reports for all.
            assert_eq!(said.matches("stopped by").count(), usize::from(index == 0), "{said}");
            assert_eq!(said.contains(&rest), index == 0, "{said}");
        }
    }
}

#[test]
fn a_signal_without_a_folder_stops_all_and_says_that_nothing_is_kept() {
    let run = Running::start(mnist().args(FOREVER));
    assert!(run.trains());
    signal(&run, Signal::INT);
    let (code, said) = run.end();
    assert_eq!(code, Some(130));
    assert!(said.ends_with(" steps; nothing is saved without --checkpoint-dir\n"), "{said}");
}

#[test]
fn sigterm_to_a_launcher_reaches_its_ranks_and_none_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let (launcher, rank) = launched("2", &keeping(folder.path()));
    signal(&launcher, Signal::TERM);
    let (code, said) = launcher.end();
    assert_eq!(code, Some(143), "{said}");
    assert!(said.contains("mnist: stopped by SIGTERM in epoch "), "{said}");
    assert!(!is_there(rank));
    assert!(TensorFile::read(&checkpoints(folder.path()).pop().unwrap()).is_ok());
}

#[test]
fn a_checkpoint_of_another_world_is_refused_by_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "--epochs",
        "1",
        "--quiet",
        "--resume",
        "--checkpoint-dir",
        folder.path().to_str().unwrap(),
    ];
    succeeded(&mnist().args(arguments).output().unwrap());
    let port = free_port();
    let ranks = [0, 1].map(|index| {
        Running::start(rank(index, 2, port).args(["--timeout", PATIENT]).args(arguments))
    });
    for (end, said) in ranks.map(Running::end) {
        assert_eq!(end, Some(1), "{said}");
        assert!(
            said.contains(
                "000000375.safetensors is of another run: it has ranks 1, this run has 2; "
            ),
            "{said}"
        );
    }
}

#[test]
fn a_signal_that_is_repeated_at_once_is_one_request_to_stop() {
    let stop = || {
        let folder = tempfile::tempdir().unwrap();
        let ranks = three_ranks(&["--checkpoint-dir", folder.path().to_str().unwrap()]);
        // The first rank cannot stop alone, because it waits for this one.
        signal(&ranks[1], Signal::STOP);
        thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        for _ in 0..2 {
            signal(&ranks[0], Signal::INT);
            thread::sleep(Duration::from_millis(100));
        }
        let took = begun.elapsed();
        signal(&ranks[1], Signal::CONT);
        let ends: Vec<_> = ranks.into_iter().map(Running::end).collect();
        // If the machine left this test no time, it may have left the rank none between the signals
        // either.
        let is_one = ends[0].1.contains("mnist: stopped by SIGINT in epoch ");
        (is_one || took < Duration::from_millis(250)).then_some(ends)
    };
    let ends = (0..20).find_map(|_| stop()).expect("two signals within a second");
    for (index, (code, said)) in ends.into_iter().enumerate() {
        assert_eq!(code, Some(130), "{said}");
        assert_eq!(said.contains("mnist: stopped by SIGINT in epoch "), index == 0, "{said}");
    }
}

#[test]
fn a_signal_that_is_repeated_later_ends_a_rank_that_hangs() {
    let mut ranks = three_ranks(&[]);
    signal(&ranks[1], Signal::STOP);
    thread::sleep(Duration::from_millis(200));
    // A busy machine may hand over the first one late.
    while ranks[0].child.try_wait().unwrap().is_none() {
        signal(&ranks[0], Signal::INT);
        thread::sleep(Duration::from_millis(1500));
    }
    let (code, said) = ranks.remove(0).end();
    assert!(code == Some(130) && !said.contains("stopped by"), "{said}");
    for rank in ranks {
        signal(&rank, Signal::KILL);
        rank.end();
    }
}

#[test]
fn the_real_timeout_which_signals_twice_leaves_a_checkpoint() {
    if !tool::is_there("timeout") {
        return;
    }
    for _ in 0..3 {
        // On a busy machine, it may take more than two seconds until the ranks train.
        let (code, said) = ["2", "10", "50", "250", "1250"]
            .iter()
            .find_map(|seconds| {
                let folder = tempfile::tempdir().unwrap();
                let mut timeout = Command::new("timeout");
                timeout.env_clear().args([
                    "--preserve-status",
                    "-s",
                    "INT",
                    seconds,
                    env!("CARGO_BIN_EXE_mnist"),
                ]);
                timeout.args(["--ranks", "2", "--timeout", PATIENT]).args(FOREVER).args([
                    "--checkpoint-every",
                    "1",
                    "--checkpoint-dir",
                ]);
                let run = Running::start(timeout.arg(folder.path()));
                run.trains().then(|| run.end())
            })
            .expect("the ranks train");
        assert_eq!(code, Some(130), "{said}");
        assert!(said.contains("mnist: stopped by SIGINT in epoch "), "{said}");
    }
}

#[test]
fn nothing_is_said_of_the_output_of_ranks_that_a_signal_ended_before_they_trained() {
    const PIPE: usize = 65_536;
    for (number, name) in [(Signal::INT, "Ctrl-C (SIGINT)"), (Signal::TERM, "SIGTERM")] {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[b' '; PIPE]).unwrap();
        // Rank 0's first line does not fit into the pipe, so it waits before it trains.
        let mark = format!("{}-full-{}", std::process::id(), number.as_raw());
        let mut command = mnist();
        command.env("MNIST_TEST", &mark).args(["--ranks", "2", "--timeout", PATIENT]);
        let (begun, mark) = (Instant::now(), format!("MNIST_TEST={mark}"));
        let mut run = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
        drop(command);
        let count = || {
            ["RANK=0", "RANK=1"].iter().filter(|rank| !living(&[&mark, rank]).is_empty()).count()
        };
        let wait_for = |ranks, what| {
            while count() != ranks {
                assert!(begun.elapsed() < SLACK, "{what}");
                thread::sleep(Duration::from_millis(10));
            }
        };
        wait_for(2, "the ranks do not start");
        // Rank 0 writes its first line next, in less time than the start took.
        thread::sleep(begun.elapsed().max(Duration::from_millis(1500)));
        kill_process(Pid::from_child(&run), number).unwrap();
        // Only the ranks' end lets the first process speak: nothing is read before that.
        wait_for(0, "the ranks do not end");
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        let said = said.trim_start();
        assert_eq!(run.wait().unwrap().code(), Some(128 + number.as_raw()), "{said}");
        assert!(said.ends_with(&format!("mnist: stopped by {name}\n")), "{said}");
    }
}

#[test]
fn a_run_that_is_resumed_beyond_its_epochs_says_that_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let run = |epochs| {
        let arguments = ["--epochs", epochs, "--quiet", "--resume", "--checkpoint-dir"];
        mnist().args(arguments).arg(folder.path()).output().unwrap()
    };
    succeeded(&run("2"));
    let output = run("1");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("nothing is left to train: 2 epochs are done, and --epochs is 1; continue with --epochs 3"),
        "{said}"
    );
}
