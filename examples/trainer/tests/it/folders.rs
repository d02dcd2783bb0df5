//! A folder of checkpoints belongs to one running job.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::files::files;
use crate::support::mnist::mnist;
use crate::support::running::Running;
use rustix::process::{Pid, Signal, kill_process};

/// A run that has started and does not finish by itself, with its checkpoints in `folder`.
fn endless(folder: &Path, more: &[&str]) -> Running {
    let run = Running::start(
        keeping(&mut mnist(), folder).args(["--epochs", "1000000", "--quiet"]).args(more),
    );
    assert!(run.trains());
    run
}

fn keeping<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command.args(["--checkpoint-every", "5", "--checkpoint-dir"]).arg(folder)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Stops the run, and asserts that it was not disturbed: it reports where its last checkpoint is.
fn assert_undisturbed(run: Running, folder: &Path) {
    kill_process(Pid::from_child(&run.child), Signal::TERM).unwrap();
    let (code, said) = run.end();
    assert_eq!(code, Some(143), "{said}");
    assert!(said.contains(&format!("{}/checkpoint-", folder.display())), "{said}");
}

#[test]
fn a_job_that_is_refused_leaves_the_one_that_runs_alone_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = endless(folder.path(), &[]);
    let owner = format!("process {} on ", first.child.id());
    for more in [&[][..], &["--resume"]] {
        // Writing and deleting must coincide, which does not happen every time.
        for _ in 0..5 {
            let second = keeping(&mut mnist(), folder.path())
                .args(["--epochs", "1"])
                .args(more)
                .output()
                .unwrap();
            assert_eq!(second.status.code(), Some(1), "{}", said(&second));
            assert!(second.stdout.is_empty());
            let text = said(&second);
            assert!(
                text.contains(&format!("{} is in use by another run (", folder.path().display())),
                "{text}"
            );
            assert!(text.contains(&owner) && text.contains("another --checkpoint-dir"), "{text}");
        }
    }
    assert_undisturbed(first, folder.path());
}

#[test]
fn a_folder_is_free_again_when_its_run_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let first = endless(folder.path(), &[]);
    kill_process(Pid::from_child(&first.child), Signal::KILL).unwrap();
    first.end();
    assert_undisturbed(endless(folder.path(), &["--resume"]), folder.path());
}

#[test]
fn a_run_that_is_over_leaves_nothing_but_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        keeping(&mut mnist(), folder.path()).args(["--epochs", "1", "--quiet"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let names: Vec<String> = files(folder.path()).into_keys().collect();
    assert!(
        names.len() == 5 && names.iter().all(|name| name.starts_with("checkpoint-")),
        "{names:?}"
    );
}

#[test]
fn a_run_without_resume_removes_nothing_from_a_folder_that_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["checkpoint-000000005.safetensors", ".checkpoint-000000010.safetensors.4711.part"]
    {
        fs::write(folder.path().join(name), "as it was").unwrap();
    }
    let before = files(folder.path());
    let output = keeping(&mut mnist(), folder.path()).args(["--epochs", "1"]).output().unwrap();
    assert!(said(&output).contains("already exists"), "{}", said(&output));
    assert_eq!(files(folder.path()), before);
}
