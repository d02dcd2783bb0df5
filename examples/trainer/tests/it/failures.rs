//! Ranks that are killed, that hang, or that get a stop signal, as real processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::living::living;
use crate::support::mnist::mnist;
use crate::support::port::free_port;
use crate::support::rank::rank;
use crate::support::running::Running;
use crate::support::tool;
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
    let port = free_port();
    let ranks = [0, 1, 2].map(|index| Running::start(rank(index, 3, port).args(FOREVER).args(more)));
    assert!(ranks[0].trains());
    ranks.into()
}

/// `ranks` ranks that `mnist` starts, all training, and the PID of rank 1; `more` are arguments for all.
fn launched(ranks: &str, more: &[&str]) -> (Running, Pid) {
    let mark = format!("{}-{:?}", std::process::id(), thread::current().id());
    let mut command = mnist();
    command.env("MNIST_TEST", &mark).args(["--ranks", ranks]).args(FOREVER).args(more);
    let launcher = Running::start(&mut command);
    assert!(launcher.trains());
    let found = living(&[&format!("MNIST_TEST={mark}"), "RANK=1"]);
    assert_eq!(found.len(), 1);
    (launcher, found[0])
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
        let mut ranks = three_ranks(&["--timeout", "60"]);
        let killed = ranks.remove(odd);
        let begun = Instant::now();
        signal(&killed, Signal::KILL);
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains(&format!("mnist: rank {odd} on {} (127.0.0.1) is lost: ", host())), "{said}");
        }
        assert!(begun.elapsed() < SLACK);
        killed.end();
    }
}

/// Waits until a rank has sent its hello to rank 0.
fn wait_for_a_hello(port: u16) {
    let is_joined = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Local address, remote address, established.
        words[2].ends_with(&format!(":{port:04X}")) && words[3] == "01"
    };
    let begun = Instant::now();
    while !fs::read_to_string("/proc/net/tcp").unwrap().lines().skip(1).any(is_joined) {
        assert!(begun.elapsed() < 4 * SLACK, "no rank came to {port}");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(500));
}

#[test]
fn a_rank_killed_before_all_have_come_is_a_lost_one() {
    for odd in [0, 1] {
        let port = free_port();
        let start = |index| Running::start(rank(index, 3, port).args(FOREVER).args(["--timeout", "60"]));
        let mut ranks = vec![start(0), start(1)];
        wait_for_a_hello(port);
        let killed = ranks.remove(odd);
        signal(&killed, Signal::KILL);
        if odd == 1 {
            ranks.push(start(2));
        }
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains("lost") && said.contains("before all ranks had connected"), "{said}");
        }
        killed.end();
    }
}

#[test]
fn a_hung_rank_ends_all_others_within_the_timeout_which_name_it_and_its_host() {
    for odd in [0, 1] {
        let mut ranks = three_ranks(&["--timeout", "5"]);
        let hung = ranks.remove(odd);
        let begun = Instant::now();
        signal(&hung, Signal::STOP);
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(124), "{said}");
            assert!(
                said.contains(&format!("mnist: rank {odd} on {} (127.0.0.1) did not come within 5 s", host())),
                "{said}"
            );
        }
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_secs(5) && waited < Duration::from_millis(5500) + SLACK, "{waited:?}");
        signal(&hung, Signal::KILL);
        hung.end();
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
    assert!(begun.elapsed() < SLACK + SLACK, "{:?}", begun.elapsed());
}

#[test]
fn a_hung_rank_of_a_launcher_ends_all() {
    let (launcher, hung) = launched("3", &["--timeout", "5"]);
    kill_process(hung, Signal::STOP).unwrap();
    let begun = Instant::now();
    let (code, said) = launcher.end();
    assert_eq!(code, Some(124), "{said}");
    assert!(said.contains(&format!("mnist: rank 1 on {} (127.0.0.1) did not come within 5 s", host())), "{said}");
    // The launcher gives the others 5 s to exit by themselves; a hung rank does not.
    assert!(begun.elapsed() < Duration::from_secs(11) + SLACK, "{:?}", begun.elapsed());
    assert!(!is_there(hung));
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
    // A busy machine takes longer to write the first checkpoint: kills are spread over twice the time that this takes
    // here.
    let begun = Instant::now();
    let first = Running::start(mnist().args(["--epochs", "1000000", "--quiet"]).args(keeping(&kept)));
    while checkpoints(&kept).is_empty() {
        assert!(begun.elapsed() < 4 * SLACK, "no checkpoint within a minute");
        thread::sleep(Duration::from_millis(1));
    }
    let mut longest = 2.0 * begun.elapsed().as_secs_f64();
    signal(&first, Signal::KILL);
    first.end();
    while kills < 50 || steps < 30 && kills < 500 {
        let run = Running::start(mnist().args(["--epochs", "1000000", "--quiet"]).args(keeping(&kept)));
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
            let now = newest.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap().1.parse().unwrap();
            // No run goes back before the last checkpoint of the previous run.
            assert!(now >= steps, "{now} after {steps}");
            if now == steps {
                longest = 20.0_f64.min(longest * 1.1);
            }
            steps = now;
        }
    }
    assert!(steps >= 30, "{steps} steps in {kills} kills");

    // All these pieces together give the same result as one uninterrupted run.
    let epochs = (steps / 375 + 1).to_string();
    let whole = folder.path().join("whole");
    for kept in [&kept, &whole] {
        let arguments = ["--epochs", &epochs, "--quiet", "--resume", "--checkpoint-dir", kept.to_str().unwrap()];
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
        let at = format!("mnist: stopped by {name} in epoch {} after {} steps; ", text("epoch"), text("step"));
        for (index, (end, said)) in ends.into_iter().enumerate() {
            assert_eq!(end, Some(code), "{said}");
            let rest = format!("{at}{} was written: continue from it with --resume", newest.display());
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
    let arguments = ["--epochs", "1", "--quiet", "--resume", "--checkpoint-dir", folder.path().to_str().unwrap()];
    succeeded(&mnist().args(arguments).output().unwrap());
    let port = free_port();
    let ranks = [0, 1].map(|index| Running::start(rank(index, 2, port).args(arguments)));
    for (end, said) in ranks.map(Running::end) {
        assert_eq!(end, Some(1), "{said}");
        assert!(said.contains("000000375.safetensors is of another run: it has ranks 1, this run has 2; "), "{said}");
    }
}

#[test]
fn a_signal_that_is_repeated_at_once_is_one_request_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = three_ranks(&["--checkpoint-dir", folder.path().to_str().unwrap()]);
    // The first rank cannot stop alone, because it waits for this one.
    signal(&ranks[1], Signal::STOP);
    thread::sleep(Duration::from_millis(200));
    for _ in 0..2 {
        signal(&ranks[0], Signal::INT);
        thread::sleep(Duration::from_millis(100));
    }
    signal(&ranks[1], Signal::CONT);
    for (index, (code, said)) in ranks.into_iter().map(Running::end).enumerate() {
        assert_eq!(code, Some(130), "{said}");
        assert_eq!(said.contains("mnist: stopped by SIGINT in epoch "), index == 0, "{said}");
    }
}

#[test]
fn a_signal_that_is_repeated_later_ends_a_rank_that_hangs() {
    let mut ranks = three_ranks(&[]);
    signal(&ranks[1], Signal::STOP);
    thread::sleep(Duration::from_millis(200));
    signal(&ranks[0], Signal::INT);
    thread::sleep(Duration::from_millis(1500));
    signal(&ranks[0], Signal::INT);
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
        let (code, said) = ["2", "10", "50"]
            .iter()
            .find_map(|seconds| {
                let folder = tempfile::tempdir().unwrap();
                let mut timeout = Command::new("timeout");
                timeout.env_clear().args(["--preserve-status", "-s", "INT", seconds, env!("CARGO_BIN_EXE_mnist")]);
                timeout.args(["--ranks", "2"]).args(FOREVER).args(["--checkpoint-every", "1", "--checkpoint-dir"]);
                let run = Running::start(timeout.arg(folder.path()));
                run.trains().then(|| run.end())
            })
            .expect("the ranks train within 50 s");
        assert_eq!(code, Some(130), "{said}");
        assert!(said.contains("mnist: stopped by SIGINT in epoch "), "{said}");
    }
}

#[test]
fn nothing_is_said_of_the_output_of_ranks_that_a_signal_ended_before_they_trained() {
    if !tool::is_there("mkfifo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("weights");
    assert!(Command::new("mkfifo").arg(&weights).status().unwrap().success());
    for (number, name) in [(Signal::INT, "Ctrl-C (SIGINT)"), (Signal::TERM, "SIGTERM")] {
        // Rank 0 waits for weights that never come.
        let run = Running::start(mnist().args(["--ranks", "2", "--weights"]).arg(&weights));
        thread::sleep(Duration::from_millis(1500));
        signal(&run, number);
        let (code, said) = run.end();
        assert_eq!(code, Some(128 + number.as_raw()), "{said}");
        assert!(said.ends_with(&format!("\nmnist: stopped by {name}\n")), "{said}");
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
