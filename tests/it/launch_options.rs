//! What `mpienv launch` says of options and places that it cannot use.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::tool::{clean, is_there};
use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Launcher};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_number_of_workers_that_is_not_one_says_what_is_expected() {
    for (number, text) in [
        ("gpu", "mpienv does not count devices: give the number, as in --nproc-per-node $(nvidia-smi -L | wc -l)"),
        ("auto", "mpienv does not count devices: give the number"),
        ("cpu", "mpienv does not count devices: give the number, as in --nproc-per-node $(nproc)"),
        ("two", "expected a whole number from 1 to 65536"),
        ("0", "expected a whole number from 1 to 65536"),
        ("-1", "expected a whole number from 1 to 65536"),
        ("4294967295", "expected a whole number from 1 to 65536"),
    ] {
        let output = clean("mpienv").args(["launch", "--nproc-per-node", number, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{number}");
        assert!(said(&output).contains(text), "{number}: {}", said(&output));
    }
}

#[test]
fn the_remedy_for_several_processes_on_a_node_is_the_launchers_own() {
    for (launcher, words, other) in [
        (Launcher::Slurm, "`srun --ntasks-per-node=1`", "mpirun"),
        (Launcher::OpenMpi, "`mpirun --map-by ppr:1:node`", "srun"),
        (Launcher::Hydra, "`mpiexec -ppn 1`", "mpirun"),
        (Launcher::Pals, "`mpiexec --ppn 1`", "mpirun"),
        (Launcher::Torchrun, "`torchrun --nproc-per-node 1`", "mpirun"),
    ] {
        let job = Job::of(launcher).nodes(2).per_node(2).build().unwrap();
        let info = ClusterInfo::from_vars(job.environment(0).unwrap()).unwrap();
        let error = info.workers(2).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains(other), "{error}");
    }
}

#[test]
fn a_log_that_is_not_a_regular_file_is_left_as_it_is() {
    if !is_there("mkfifo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rank = folder.path().join("rank.0");
    fs::create_dir(&rank).unwrap();
    let launch = || {
        let mut command = clean("mpienv");
        command.args(["launch", "--nproc-per-node", "1", "--log-dir"]).arg(folder.path()).args(["--", "echo", "x"]);
        command.output().unwrap()
    };
    let refuses = |log: &Path| {
        let output = launch();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let text = format!("cannot write {log:?}: it exists and is not a regular file");
        assert!(said(&output).contains(&text), "{}", said(&output));
        fs::remove_file(log).unwrap();
    };
    let [out, err] = ["stdout", "stderr"].map(|name| rank.join(name));
    assert!(Command::new("mkfifo").arg(&out).status().unwrap().success());
    refuses(&out);
    std::os::unix::fs::symlink("/dev/null", &err).unwrap();
    refuses(&err);
    assert!(launch().status.success());
    assert_eq!(fs::read_to_string(out).unwrap(), "x\n");
}
