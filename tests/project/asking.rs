//! The trainer on two hosts, under launchers that do not name the master.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::hosts::{Hosts, mpiruns};
use crate::support::python::from_python;
use crate::support::tool::is_there;
use crate::support::trainer::with_trainer;

/// Runs the trainer on four ranks, and returns the line of its only epoch without the times.
fn loss(mut job: Command, before: &[&str], options: &[&str]) -> String {
    // Open MPI does not pass PATH on.
    let mnist = Path::new(env!("CARGO_BIN_EXE_mpienv")).with_file_name("mnist");
    job.args(before).arg(mnist).args(["--epochs", "1"]).args(options);
    let output = job.output().unwrap();
    let (text, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{job:?}: {text}{said}");
    // Over TCP the ranks cannot meet without a master.
    let is_over_tcp = said.contains("mnist: gradients over TCP");
    assert!(is_over_tcp || options.is_empty(), "{job:?}: {text}{said}");
    let lines: Vec<_> = text.lines().filter(|line| line.contains("epoch: 0, train")).collect();
    let [line] = lines[..] else { panic!("{job:?}: {text}{said}") };
    line.split(", ").take(4).collect::<Vec<_>>().join(", ")
}

#[test]
fn mnist_trains_on_two_hosts_under_every_mpi_without_a_master_address() {
    let Some(hosts) = Hosts::up("mnist", 3, &[]) else { return };
    if with_trainer(hosts.on("nodeA", "true")).is_none() {
        return;
    }
    let hydras = is_there("mpiexec.hydra").then(|| PathBuf::from("mpiexec.hydra")).into_iter();
    let of_python = ["mpich", "impi-rt"].map(|name| from_python(name, "mpiexec.hydra"));
    let (mpienv, tcp) = (env!("CARGO_BIN_EXE_mpienv"), &["--backend", "tcp"][..]);
    let mut losses = Vec::new();
    for hydra in hydras.chain(of_python.into_iter().flatten()) {
        let job = || {
            let mut job = hosts.on("nodeA", "timeout");
            job.args(["-k", "5", "300"]).arg(&hydra);
            job.args(["-hosts", "nodeB,nodeC", "-ppn", "2", "-n", "4"]);
            job
        };
        losses.push(loss(job(), &[mpienv, "exec", "--"], tcp));
        // MPI_Finalize of Debian's MPICH 4.0.2 hangs on some runs over two hosts.
        if hydra.to_str() != Some("mpiexec.hydra") {
            losses.push(loss(job(), &[], &[]));
        }
    }
    for (version, mpirun) in mpiruns() {
        // Version 4 names mpirun's host, where rank 0 is then.
        let list = if version == 4 { "nodeA:2,nodeB:2" } else { "nodeB:2,nodeC:2" };
        let job = || hosts.mpirun(&mpirun, &["-H", list]);
        losses.push(loss(job(), &[mpienv, "exec", "--"], tcp));
        losses.push(loss(job(), &[], &[]));
    }
    // The ranks add up the same numbers everywhere.
    losses.dedup();
    assert!(losses.len() <= 1, "{losses:?}");
}
