//! The `quickstart` program with a process for each rank: started by the real mpirun, and by hand.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::files::files;
use crate::support::launcher::job;
use crate::support::port::free_port;
use crate::support::published::assert_published;
use crate::support::rank::rank_of;
use crate::support::running::Running;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::is_there;

const QUICKSTART: &str = env!("CARGO_BIN_EXE_quickstart");
const SEED: [&str; 6] = ["--lr", "0.4", "--init", "mindspore-1.x", "--timeout", PATIENT];

/// The output of each of `size` ranks without a launcher, each with its own arguments.
fn processes<'a>(folder: &Path, size: u32, arguments: impl Fn(u32) -> Vec<&'a str>) -> Vec<Output> {
    let port = free_port();
    let start = |rank: u32| {
        let mut command = rank_of(QUICKSTART, rank, size, port);
        command.current_dir(folder);
        command.args(arguments(rank)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..size).map(start).collect();
    started.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

fn threads(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(QUICKSTART);
    command.env_clear().current_dir(folder).args(arguments).output().unwrap()
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn mpirun_prints_the_published_losses_on_all_ranks() {
    if !is_there("mpirun") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = job(Path::new("mpirun"), &[], 8, QUICKSTART);
    assert_published(&stdout(&command.args(SEED).current_dir(folder.path()).output().unwrap()));
}

#[test]
fn processes_write_the_same_bytes_as_threads() {
    for collectives in ["compat", "min"] {
        let (apart, together) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let arguments = [&SEED[..], &["--epochs", "2", "--collectives", collectives]].concat();
        let outputs = processes(apart.path(), 8, |_| arguments.clone());
        let text =
            stdout(&threads(together.path(), &[&["--threads", "8"], &arguments[..]].concat()));
        for output in &outputs {
            // All ranks print the same losses, one rank's line after another's.
            let lines: Vec<&str> = text.lines().step_by(8).collect();
            assert_eq!(stdout(output).lines().collect::<Vec<_>>(), lines);
        }
        assert!(files(apart.path()) == files(together.path()), "{collectives}");
    }
}

#[test]
fn a_process_with_other_options_is_named_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let outputs = processes(folder.path(), 3, |rank| {
        if rank == 2 {
            vec!["--timeout", PATIENT, "--lr", "0.3"]
        } else {
            vec!["--timeout", PATIENT]
        }
    });
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("rank 2"), "{said}");
        assert!(output.stdout.is_empty());
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_process_that_goes_on_from_another_file_is_named_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let common = ["--threads", "3", "--epochs", "1", "--integrated"];
    for (output, seed) in [("one", "1"), ("other", "2")] {
        stdout(&threads(
            folder.path(),
            &[&common[..], &["--output", output, "--seed", seed]].concat(),
        ));
    }
    let before = files(folder.path());
    let arguments = |rank| {
        let file = if rank == 1 {
            "other/device/0/CKP-1_4.safetensors"
        } else {
            "one/device/0/CKP-1_4.safetensors"
        };
        vec!["--timeout", PATIENT, "--resume-from", file]
    };
    for output in processes(folder.path(), 3, arguments) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let text = "rank 1 has another plan: \"start: step 4 of a file with SHA-256 ";
        assert!(said.contains(text), "{said}");
        assert!(output.stdout.is_empty());
    }
    assert!(files(folder.path()) == before);
}

#[test]
fn a_process_of_several_does_not_run_all_ranks_itself() {
    let folder = tempfile::tempdir().unwrap();
    for output in processes(folder.path(), 2, |_| vec!["--threads", "4"]) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("this is one of 2 ranks: start quickstart --threads only once"),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_process_that_never_comes_is_named_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let meet = |timeout: u32| {
        let timeout = timeout.to_string();
        // The last rank exits at once, because it only prints its help.
        let arguments = |rank| if rank == 2 { vec!["--help"] } else { vec!["--timeout", &timeout] };
        let said = |output: &Output| {
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        processes(folder.path(), 3, arguments).iter().take(2).map(said).collect::<Vec<_>>()
    };
    let named = "rank 2 of 3 has not connected to ";
    for (code, said) in in_time(meet, |ends| ends.iter().all(|(_, said)| said.contains(named))) {
        assert_eq!(code, Some(124), "{said}");
        assert!(said.contains(named), "{said}");
    }
}

/// A run with two threads that does not finish by itself, with its output in `folder`.
fn endless(folder: &Path) -> Running {
    let mut command = Command::new(QUICKSTART);
    command.env_clear().args(["--threads", "2", "--epochs", "1000000", "--output"]).arg(folder);
    let run = Running::start(&mut command);
    assert!(run.trains());
    run
}

#[test]
fn a_run_is_refused_the_output_of_one_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = endless(folder.path());
    let arguments = ["--threads", "2", "--epochs", "1", "--output", "."];
    let second = threads(folder.path(), &arguments);
    let text = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{text}");
    let owner = format!("device/0 is in use by another run (process {} on ", first.child.id());
    assert!(text.contains(&owner) && text.contains("another --output"), "{text}");
    first.child.kill().unwrap();
    first.end();
    stdout(&threads(folder.path(), &arguments));
}

#[test]
fn a_rank_that_cannot_start_says_so_to_all_at_once() {
    let (free, taken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut first = endless(taken.path());
    let taken = format!("--output={}", taken.path().display());
    for (argument, text) in [
        (taken.as_str(), "device/1 is in use by another run ("),
        ("--resume-from=/no/such/file", "/no/such/file: cannot be read: No such file"),
    ] {
        // So long that a test that waits for it fails.
        let common = ["--backend", "tcp", "--timeout", "3000"];
        let arguments = |rank| common.into_iter().chain((rank == 1).then_some(argument)).collect();
        for output in processes(free.path(), 2, arguments) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(text), "{said}");
        }
    }
    first.child.kill().unwrap();
    first.end();
}
