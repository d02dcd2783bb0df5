//! What `mnist --help` says of a run, beside what the run does.

use std::fs;
use std::path::Path;

use crate::support::endless::{FOREVER, checkpoints, signal};
use crate::support::mnist::{mnist, rank};
use crate::support::port::free_port;
use crate::support::running::Running;
use crate::support::timeout::PATIENT;
use rustix::process::Signal;

/// Asserts that the help says this, wherever its lines are broken.
#[track_caller]
fn assert_says(promise: &str) {
    let output = mnist().arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains(promise), "{help}");
}

/// The exit code of `mnist` with these arguments, its output and its errors.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = mnist().args(arguments).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code().unwrap(), out, err)
}

#[test]
fn the_lines_that_a_run_prints() {
    assert_says(
        "Rank 0 prints a line for each epoch; with --log-steps, every rank also prints the loss of \
         its own batch every 10 steps.",
    );
    let two = ["--ranks", "2", "--timeout", PATIENT, "--epochs", "2"];
    // 188 steps of 64 samples: a line every 10, of each rank.
    for (more, of_steps) in [(None, 0), (Some("--log-steps"), 2 * 2 * 19)] {
        let (_, text, _) = run(&two.into_iter().chain(more).collect::<Vec<_>>());
        let epochs = text.lines().filter(|line| line.contains("train loss is ")).count();
        let steps = text.lines().filter(|line| line.contains(", step: ")).count();
        assert_eq!((epochs, steps), (2, of_steps), "{text}");
    }
}

#[test]
fn each_exit_code() {
    assert_says(
        "Exit codes: 0 success, 1 wrong environment or data, 2 invalid command line, 3 the training \
         failed, 124 a rank timed out, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.",
    );
    for (arguments, code) in [
        (&["--epochs", "1"][..], 0),
        (&["--data", "/no/such/folder"], 1),
        (&["--lr", "0"], 2),
        (&["--lr", "1e38", "--epochs", "1"], 3),
    ] {
        let (found, _, said) = run(arguments);
        assert_eq!(found, code, "{arguments:?}: {said}");
    }
    let wrong = mnist().env("RANK", "2").env("WORLD_SIZE", "2").output().unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let alone = rank(1, 2, free_port()).args(["--timeout", "1"]).output().unwrap();
    assert_eq!(alone.status.code(), Some(124), "{alone:?}");
    for (number, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let run = Running::start(mnist().args(FOREVER));
        assert!(run.trains());
        signal(&run, number);
        let (found, said) = run.end();
        assert_eq!(found, Some(code), "{said}");
    }
}

#[test]
fn quiet_runs_name_no_transport() {
    assert_says("--quiet Print neither the transport nor a progress bar");
    let two = ["--ranks", "2", "--timeout", PATIENT, "--epochs", "1"];
    for (more, named) in [(None, true), (Some("--quiet"), false)] {
        let (_, _, said) = run(&two.into_iter().chain(more).collect::<Vec<_>>());
        assert_eq!(said.contains("gradients over "), named, "{said}");
    }
}

#[test]
fn the_files_that_a_run_writes() {
    assert_says("Keep the run's last five checkpoints in a folder: one after each epoch,");
    assert_says("an existing file is emptied, or with --resume appended to --checkpoint-dir <DIR>");
    assert_says("updated during the run; an existing file is replaced");
    let folder = tempfile::tempdir().unwrap();
    let [kept, metrics, plot] = ["kept", "m.jsonl", "run.svg"].map(|name| folder.path().join(name));
    for path in [&metrics, &plot] {
        fs::write(path, "earlier\n").unwrap();
    }
    let train = |epochs: &str, more: &[&str]| {
        let [kept, metrics, plot] = [&kept, &metrics, &plot].map(|path| path.to_str().unwrap());
        let files = ["--checkpoint-dir", kept, "--metrics", metrics, "--plot", plot];
        let (code, _, said) = run(&[&files[..], &["--epochs", epochs], more].concat());
        assert_eq!(code, 0, "{said}");
        let names: Vec<String> = checkpoints(Path::new(kept))
            .iter()
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        (names, fs::read_to_string(metrics).unwrap())
    };
    // 375 steps of 32 samples, with a line every 10 steps and one for the epoch.
    let (names, lines) = train("6", &[]);
    assert_eq!(names, [2, 3, 4, 5, 6].map(|epoch| format!("checkpoint-{:09}", epoch * 375)));
    assert_eq!(lines.lines().count(), 6 * 39);
    assert!(fs::read_to_string(&plot).unwrap().starts_with("<svg "));
    let (names, appended) = train("7", &["--resume", "--checkpoint-every", "200"]);
    assert_eq!(names[2..], [2400, 2600, 2625].map(|steps| format!("checkpoint-{steps:09}")));
    assert!(appended.starts_with(&lines));
    assert_eq!(appended.lines().count(), 7 * 39);
}
