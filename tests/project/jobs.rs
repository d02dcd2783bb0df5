//! The job files of `examples/`, each read by its own tool and then run.

mod azureml;
mod hostfile;
mod images;
mod kubernetes;
mod slurm;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of `examples/`.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// The output of a command that must succeed.
fn printed(command: &mut Command) -> String {
    succeeded(&command.output().unwrap())
}

fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

/// Asserts that exactly one rank reported the last of the trainer's ten epochs.
fn assert_trained(text: &str) {
    let last = text.lines().filter(|line| line.contains("epoch: 9, train loss is ")).count();
    assert_eq!(last, 1, "{text}");
}
