//! The actual traffic between two hosts, counted by their network devices.

use crate::support::hosts::{Hosts, mpiruns};
use crate::support::timeout::PATIENT;

/// 784 x 10 weights and 10 biases.
const GRADIENTS: f64 = 7850.0 * 4.0;
/// 12,000 samples in batches of 32 on four ranks, the last one smaller.
const STEPS: f64 = 94.0;

/// The bytes that nodeA has sent since it was started.
fn sent(hosts: &Hosts) -> f64 {
    let output = hosts.on("nodeA", "cat").arg("/proc/net/dev").output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let device = table
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"))
        .unwrap_or_else(|| panic!("{table}"));
    device.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// How much nodeA sends in a step of four ranks, two on each host, in units of the gradients' size.
fn share(hosts: &Hosts, backend: &str) -> f64 {
    let (_, mpirun) = mpiruns().remove(0);
    let train = |epochs: &str| {
        let before = sent(hosts);
        let words =
            ["-x", "MASTER_ADDR=10.77.0.1", "-H", "nodeA:2,nodeB:2", env!("CARGO_BIN_EXE_mnist")];
        let mut command = hosts.mpirun(&mpirun, &words);
        command.args(["--backend", backend, "--epochs", epochs, "--quiet", "--timeout", PATIENT]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{backend}: {}", String::from_utf8_lossy(&output.stderr));
        sent(hosts) - before
    };
    // The difference is the traffic of training only, without the start and the end of a job.
    let [one, five] = ["1", "5"].map(train);
    (five - one) / (4.0 * STEPS * GRADIENTS)
}

#[test]
fn two_levels_send_the_gradients_of_a_host_and_not_those_of_each_of_its_ranks() {
    let Some(hosts) = Hosts::up("traffic", 2, &[]) else { return };
    if mpiruns().is_empty() {
        return;
    }
    let [two_level, flat] = ["shared-memory", "tcp"].map(|backend| share(&hosts, backend));
    eprintln!("shared memory and TCP: {two_level:.3} times the gradients; TCP alone: {flat:.3}");
    // Besides the gradients: the headers of frames and packets, acknowledgments, and the losses on
    // the test set.
    assert!((1.0..1.2).contains(&two_level), "{two_level}");
    // Each of the two ranks sends to both ranks on the other host.
    assert!(flat > 3.5, "{flat}");
}
