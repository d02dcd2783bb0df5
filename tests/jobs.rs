//! The job files of `examples/`, each read by its own tool and run.

#[path = "jobs/azureml.rs"]
mod azureml;
#[path = "jobs/hostfile.rs"]
mod hostfile;
#[path = "support/hosts.rs"]
#[expect(dead_code, reason = "jobs say themselves where their ranks are")]
mod hosts;
#[path = "jobs/images.rs"]
mod images;
#[path = "jobs/kubernetes.rs"]
mod kubernetes;
#[path = "support/python.rs"]
mod python;
#[path = "support/root.rs"]
mod root;
#[path = "support/slurm.rs"]
mod slurm;
#[path = "jobs/slurm.rs"]
mod slurm_jobs;
#[path = "support/tool.rs"]
mod tool;
#[path = "support/trainer.rs"]
mod trainer;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of `examples/`.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// What a command prints that succeeds.
fn printed(command: &mut Command) -> String {
    succeeded(&command.output().unwrap())
}

fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

/// Asserts that one rank, and no other, said how the last of the trainer's ten epochs went.
fn assert_trained(text: &str) {
    let last = text.lines().filter(|line| line.contains("epoch: 9, train loss is ")).count();
    assert_eq!(last, 1, "{text}");
}
