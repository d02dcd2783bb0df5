//! The quick start that the real mpirun starts on two hosts.

use std::process::{Command, Output};

use crate::support::hosts::{Hosts, mpiruns};

const QUICKSTART: &str = env!("CARGO_BIN_EXE_quickstart");

/// The standard output of a job that must succeed.
#[track_caller]
fn succeeded(what: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {:?} {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The losses of all ranks with their epochs and steps, sorted.
fn losses(text: &str) -> Vec<(String, f64)> {
    let split = |line: &str| {
        line.split_once(", loss is ").map(|(at, loss)| (at.to_owned(), loss.parse().unwrap()))
    };
    let mut losses: Vec<(String, f64)> = text.lines().filter_map(split).collect();
    losses.sort_by(|a, b| a.partial_cmp(b).unwrap());
    losses
}

#[test]
fn the_quick_start_on_two_hosts_with_names_or_without_prints_the_losses_of_one() {
    let Some(hosts) = Hosts::up("quick", 2, &[("TWO_HOSTS_IPV6", "1")]) else { return };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // A busy machine takes long: only a hang reaches this limit.
    let words = ["--timeout", "600", "--lr", "0.4", "--init", "mindspore-1.x", "--output"];
    let alone = Command::new(QUICKSTART)
        .env_clear()
        .args(["--threads", "8"])
        .args(words)
        .arg(output("alone"))
        .output();
    let expected = succeeded("one process", &alone.unwrap());
    let expected = losses(&expected);
    let run = |name: &str, backend: &str, master: &str| {
        for (version, mpirun) in mpiruns() {
            let master = format!("MASTER_ADDR={master}");
            let mut command = hosts
                .mpirun(&mpirun, &["-x", &master, "-H", "10.77.0.1:4,10.77.0.2:4", QUICKSTART]);
            let what = format!("Open MPI {version}, {name}, {backend}");
            let output = command
                .args(["--backend", backend])
                .args(words)
                .arg(output("apart"))
                .output()
                .unwrap();
            let found = losses(&succeeded(&what, &output));
            // MPI may add in a different order.
            let rounding = if backend == "mpi" { 1e-6 } else { 0.0 };
            let same = |(a, b): (&(String, f64), &(String, f64))| {
                a.0 == b.0 && (a.1 - b.1).abs() <= rounding
            };
            assert!(
                found.len() == 8 * 20 && found.iter().zip(&expected).all(same),
                "{what}: {found:?}"
            );
        }
    };
    run("names", "tcp", "nodeA");
    run("names", "mpi", "nodeA");
    run("IPv6", "tcp", "fd77::1");
    hosts.forget_names(folder.path(), "127.0.0.1 localhost\n");
    run("no names", "tcp", "10.77.0.1");
}
