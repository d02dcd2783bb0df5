//! `mpienv check --mesh` and `--compute` on several hosts, each with one fault.
//!
//! MPIENV_MESH_RUNS=20 runs each fault so many times.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use crate::support::hosts::Hosts;
use crate::support::mesh::{HOSTS, faketime, measured, on, ranks};
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, inherited, is_there};

/// How often each case runs.
fn runs() -> u32 {
    let runs = inherited("MPIENV_MESH_RUNS").and_then(|runs| runs.into_string().ok());
    runs.map_or(1, |runs| runs.parse().unwrap())
}

/// How often a case is tried: other programs of this machine slow a host, or all ranks alike, for a
/// while.
const TRIES: usize = 20;

/// Runs a case, and asserts that this is the only finding and starts so. Without one, nothing may
/// stand out. While other programs disturb, another host or pair may be slow too.
#[track_caller]
fn assert_named(hosts: &Hosts, late: Option<usize>, expected: Option<(&str, &str)>) {
    for run in 0..runs() {
        let is_alone = (0..TRIES).any(|_| {
            let (map, findings) = measured(ranks(hosts, &["--mesh"], late), "mesh");
            let is_expected = |(code, what): &&(String, String)| {
                expected.is_some_and(|(own, start)| code == own && what.starts_with(start))
            };
            let has_it = expected.is_none() || findings.iter().any(|one| is_expected(&one));
            let mut others = findings.iter().filter(|one| !is_expected(one));
            let are_slow = others.clone().all(|(code, _)| code.ends_with("-slow"));
            // Two pairs of a host that are slow by chance are a slow host, not a slow pair.
            let is_disturbed = has_it || !findings.is_empty();
            assert!(is_disturbed && are_slow, "run {run}: {findings:#?}, not {expected:?}: {map}");
            has_it && others.next().is_none()
        });
        assert!(is_alone, "run {run}: never only {expected:?}");
    }
}

/// Slows what a host sends to one address, or to all. What it sends to others has a rate that no
/// machine's memory reaches.
fn slow(hosts: &Hosts, host: &str, to: Option<&str>) {
    let class = "htb rate 20mbit burst 16k cburst 16k";
    let others = "htb rate 200gbit burst 1m cburst 1m quantum 60000";
    match to {
        None => on(hosts, host, "tc qdisc add dev eth0 root tbf rate 20mbit burst 16k latency 100ms"),
        Some(address) => on(
            hosts,
            host,
            &format!(
                "tc qdisc add dev eth0 root handle 1: htb default 1
                 tc class add dev eth0 parent 1: classid 1:1 {others}
                 tc class add dev eth0 parent 1: classid 1:2 {class}
                 tc filter add dev eth0 parent 1: protocol ip u32 match ip dst {address}/32 flowid 1:2"
            ),
        ),
    }
}

fn heal(hosts: &Hosts, host: &str) {
    on(hosts, host, "tc qdisc del dev eth0 root");
}

#[test]
fn each_fault_between_four_hosts_is_named_as_itself() {
    if !is_there("tc") {
        return;
    }
    let Some(hosts) = Hosts::up("mesh", 4, &[]) else { return };
    assert_named(&hosts, None, None);

    slow(&hosts, "nodeC", None);
    assert_named(&hosts, None, Some(("mesh-host-slow", "nodeC is slow to most other hosts: ")));
    heal(&hosts, "nodeC");

    slow(&hosts, "nodeB", Some("10.77.0.4"));
    assert_named(&hosts, None, Some(("mesh-pair-slow", "nodeB and nodeD are slow to each other")));
    heal(&hosts, "nodeB");

    if faketime().is_some() {
        let late = "the clock of nodeD is 5.0 s behind that of most other hosts";
        assert_named(&hosts, Some(3), Some(("mesh-clock", late)));
        let late = "the clock of nodeA is 5.0 s behind that of most other hosts";
        assert_named(&hosts, Some(0), Some(("mesh-clock", late)));
    }
}

/// Sends what no rank would to every port on which a host listens, until it is killed. Prints a
/// line for each connection.
const STRANGER: &str = r#"
    while sleep 0.02; do
        for at in $(awk '$4 == "0A" && $2 !~ /:0016$/ { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp*)
        do (exec 3<>/dev/tcp/$0/$((16#$at)) && printf 'GET / HTTP/1.1\r\n\r\n' >&3 && echo "$at"); done
    done 2>/dev/null"#;

#[test]
fn strangers_at_the_ports_of_the_mesh_change_no_result() {
    let Some(hosts) = Hosts::up("mesh-strangers", 4, &[]) else { return };
    let stranger = |(index, host): (usize, &&str)| {
        let mut command = hosts.on(host, "bash");
        command.args(["-c", STRANGER, &format!("10.77.0.{}", index + 1)]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let strangers: Vec<_> = HOSTS.iter().enumerate().map(stranger).collect();
    let words = ["--mesh", "--mesh-bytes", "16M"];
    let (map, findings) = measured(ranks(&hosts, &words, None), "mesh");
    let mut ports = BTreeSet::new();
    for mut stranger in strangers {
        stranger.kill().unwrap();
        let said = stranger.wait_with_output().unwrap().stdout;
        ports.extend(String::from_utf8(said).unwrap().lines().map(str::to_owned));
    }
    // Other programs may slow a host meanwhile.
    assert!(findings.iter().all(|(code, _)| code.ends_with("-slow")), "{map}");
    let pairs = map["mesh"]["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 6);
    assert!(pairs.iter().all(|pair| pair["gbit_per_s"].as_f64().unwrap() > 0.0), "{map}");
    // They found more than the master's port.
    assert!(ports.len() > 1, "{ports:?}");
}

/// A loop that ends with the test.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn a_rank_whose_core_others_use_is_named() {
    if !is_there("taskset") || std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    // Three ranks: two on one core, one on another, which loops use too. Each has a session of its
    // own: Linux deals a core to sessions first, so that ranks and loops of one session would have
    // a smaller part of a core that other programs use as well.
    let rank = |index: usize, core: usize, port: u16| {
        let mut command: Command = clean("setsid");
        command.args(["taskset", "-c", &core.to_string(), env!("CARGO_BIN_EXE_mpienv")]);
        command.args(["check", "--json"]);
        command.args(["--compute", "--timeout", PATIENT]);
        command.env("RANK", index.to_string()).env("WORLD_SIZE", "3");
        command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", "3");
        command.env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let busy = || {
        let mut command = clean("setsid");
        command.args(["taskset", "-c", "1", "sh", "-c", "while :; do :; done"]);
        Busy(command.spawn().unwrap())
    };
    let findings = || {
        // More than other programs have, which Linux moves to the other core.
        let _loops: Vec<_> = std::iter::repeat_with(busy).take(50).collect();
        let port = crate::support::port::free_port();
        let children = vec![rank(0, 0, port), rank(1, 0, port), rank(2, 1, port)];
        measured(children, "compute")
    };
    for run in 0..runs() {
        let mut tries = (0..TRIES).map(|_| findings());
        let Some((map, found)) = tries.find(|(_, found)| !found.is_empty()) else {
            panic!("run {run}: it is as fast as the others");
        };
        let [(code, what)] = &found[..] else { panic!("run {run}: {found:?}: {map}") };
        assert!(code == "compute-slow" && what.starts_with("rank 2 on "), "run {run}: {map}");
    }
}
