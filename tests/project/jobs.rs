//! The job files of `examples/`, each read by its own tool and then run.

mod azureml;
mod hostfile;
mod images;
mod kubernetes;
mod slurm;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::script::script;
use crate::support::timeout::PATIENT;

/// A file of `examples/`.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// The first command in a file's comments, which is to be run in the project's folder.
fn own_command(name: &str) -> String {
    let text = fs::read_to_string(example(name)).unwrap();
    let command = text.lines().find_map(|line| line.strip_prefix("#   ")).unwrap();
    assert!(command.contains(&format!("examples/{name}")), "{command}");
    command.to_owned()
}

/// A folder with the project's examples, which gets what is written in the project's folder. All
/// hosts see it.
fn project() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    symlink(example(""), folder.path().join("examples")).unwrap();
    folder
}

/// A folder with a `python` in place of one that has PyTorch and GPUs: it reads the program, which
/// must be there, and prints which GPU of how many it would use.
fn python_without_torch() -> TempDir {
    const PROGRAM: &str = r#"#!/bin/sh
exec python3 -c '
import ast, os, sys
ast.parse(open(sys.argv[1]).read())
os.write(1, "GPU {LOCAL_RANK} of {WORLD_SIZE}\n".format(**os.environ).encode())' "$@"
"#;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("python");
    script(&file, PROGRAM);
    folder
}

/// Lets a command find the programs of a folder before all others.
fn first_on_path(mut command: Command, folder: &Path) -> Command {
    let old = command
        .get_envs()
        .find_map(|(name, value)| value.filter(|_| name == "PATH"))
        .unwrap()
        .to_owned();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&old));
    command.env("PATH", std::env::join_paths(folders).unwrap());
    command
}

/// The output of a command that must succeed.
fn printed(command: &mut Command) -> String {
    succeeded(&command.output().unwrap())
}

fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Asserts that exactly one rank reported the last of the trainer's ten epochs.
fn assert_trained(text: &str) {
    let last = text.lines().filter(|line| line.contains("epoch: 9, train loss is ")).count();
    assert_eq!(last, 1, "{text}");
}

/// A job's command that only tests whether its ranks meet, and not their GPUs.
fn without_gpu_test(command: &str) -> String {
    let short = command.replace("mpienv check --timeout 60 --gpu", "mpienv check --timeout 60");
    assert_ne!(short, command);
    short
}

/// A job's command that trains `mnist` on GPUs for one epoch, which takes long enough on stand-ins:
/// on a busy machine, longer than the trainer waits for a GPU.
fn for_one_epoch(command: &str) -> String {
    let short = format!("mnist --device cuda --epochs 1 --timeout {PATIENT}");
    let short = command.replace("mnist --device cuda", &short);
    assert_ne!(short, command);
    short
}

#[test]
fn every_job_file_says_how_to_run_it_by_names_that_exist() {
    for (folder, count) in [
        ("azureml", 5),
        ("docker", 2),
        ("hostfile", 2),
        ("kubernetes", 4),
        ("pbs", 1),
        ("slurm", 6),
    ] {
        let mut said = 0;
        for entry in fs::read_dir(example(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let text = fs::read_to_string(example(folder).join(&name)).unwrap();
            let commands: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
            let all = commands.join("\n");
            let end = |char: char| char.is_whitespace() || char == '"';
            let named: Vec<&str> = all
                .split("examples/")
                .skip(1)
                .map(|rest| rest.split(end).next().unwrap())
                .collect();
            assert!(named.iter().all(|named| example(named).exists()), "{name}: {named:?}");
            assert!(
                commands.is_empty() || named.contains(&&*format!("{folder}/{name}")),
                "{name}: {commands:?}"
            );
            said += usize::from(!commands.is_empty());
        }
        assert_eq!(said, count, "{folder}");
    }
}

#[test]
fn each_job_file_shows_the_command_for_a_python_program() {
    for folder in ["azureml", "hostfile", "kubernetes", "pbs", "slurm"] {
        for entry in fs::read_dir(example(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_str().unwrap();
            if [".yml", ".yaml", ".sbatch", ".pbs", ".sh"].iter().any(|end| name.ends_with(end)) {
                let text = fs::read_to_string(&path).unwrap();
                let shown = ["With a Python program: ", "python train.py", "pytorch/train.py"];
                assert!(shown.iter().any(|words| text.contains(words)), "{name}");
            }
        }
    }
}
