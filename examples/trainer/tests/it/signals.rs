//! Ranks that get a stop signal, as real processes, and runs that resume from what they left.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::endless::{
    FOREVER, about, checkpoints, is_there, keeping, launched, signal, succeeded, three_ranks,
};
use crate::support::living::living;
use crate::support::mnist::{mnist, rank};
use crate::support::port::free_port;
use crate::support::running::Running;
use crate::support::timeout::PATIENT;
use crate::support::tool;
use mpienv_sharding::file::tensor_file::TensorFile;
use rustix::process::{Pid, Signal, kill_process};

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
