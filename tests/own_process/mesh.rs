//! `mpienv check --mesh` and `--compute` on several hosts, each with one fault.
//!
//! MPIENV_MESH_RUNS=20 runs each fault so many times.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::support::clock::SLACK;
use crate::support::hosts::Hosts;
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, inherited, is_there, missing};

/// One rank runs on each.
const HOSTS: [&str; 4] = ["nodeA", "nodeB", "nodeC", "nodeD"];

/// How often each case runs.
fn runs() -> u32 {
    let runs = inherited("MPIENV_MESH_RUNS").and_then(|runs| runs.into_string().ok());
    runs.map_or(1, |runs| runs.parse().unwrap())
}

/// A shell script on a host, which must succeed.
fn on(hosts: &Hosts, host: &str, script: &str) {
    let output = hosts.on(host, "sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The ranks of a job with one rank on each host, with these options; `late` is a rank whose clock
/// is 5 s behind.
fn ranks(hosts: &Hosts, words: &[&str], late: Option<usize>) -> Vec<Child> {
    let start = |(index, host): (usize, &&str)| {
        let mut command = hosts.on(host, env!("CARGO_BIN_EXE_mpienv"));
        command.args(["check", "--json", "--timeout", PATIENT]).args(words);
        command.env("RANK", index.to_string()).env("WORLD_SIZE", HOSTS.len().to_string());
        command.env("MASTER_ADDR", "10.77.0.1").env("MASTER_PORT", "6105");
        if late == Some(index) {
            command.env("LD_PRELOAD", faketime().unwrap());
            command.env("FAKETIME", "-5s").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    HOSTS.iter().enumerate().map(start).collect()
}

/// Where Debian keeps the library that changes a program's clock.
fn faketime() -> Option<&'static str> {
    let found = [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    ];
    let found = found.into_iter().find(|path| Path::new(path).is_file());
    if found.is_none() {
        missing("libfaketime");
    }
    found
}

/// Rank 0's map, and the code and the text of each finding in this part of it. Rank 0 fails if
/// there are any, and the other ranks do not.
fn measured(children: Vec<Child>, part: &str) -> (Value, Vec<(String, String)>) {
    let mut ends = children.into_iter().map(|child| child.wait_with_output().unwrap());
    let first = ends.next().unwrap();
    let said = String::from_utf8_lossy(&first.stderr).into_owned();
    for other in ends {
        assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    }
    let map: Value = serde_json::from_slice(&first.stdout).unwrap_or_else(|error| {
        panic!("{error}: {said}");
    });
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let findings = map[part]["findings"].as_array().unwrap().iter();
    let findings: Vec<_> =
        findings.map(|finding| (text(finding, "code"), text(finding, "what"))).collect();
    let code = if findings.is_empty() { 0 } else { 3 };
    assert_eq!(first.status.code(), Some(code), "{said}{map}");
    let is_blocked = findings.iter().any(|(code, _)| code.ends_with("-blocked"));
    assert_eq!(said.contains("some hosts cannot connect to each other"), is_blocked, "{said}");
    (map, findings)
}

/// Runs a case, and asserts that this is the only finding and starts so. Without one, nothing may
/// stand out.
#[track_caller]
fn assert_named(hosts: &Hosts, late: Option<usize>, expected: Option<(&str, &str)>) {
    for run in 0..runs() {
        let (map, findings) = measured(ranks(hosts, &["--mesh"], late), "mesh");
        let found: Vec<_> = findings.iter().map(|(code, what)| (&**code, &**what)).collect();
        let is_right = match (expected, &found[..]) {
            (None, []) => true,
            (Some((code, start)), [(own, what)]) => *own == code && what.starts_with(start),
            _ => false,
        };
        assert!(is_right, "run {run}: {found:#?}, not {expected:?}: {map}");
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
    if !["tc", "iptables"].into_iter().all(is_there) {
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
    // Rank 0's host and nodeC: the meeting passes, and the mesh does not.
    let rule = "INPUT -p tcp --syn -s 10.77.0.3 ! --dport 6105 -j DROP";
    on(&hosts, "nodeA", &format!("iptables -A {rule}"));
    let one_way = "nodeC cannot connect to nodeA, although nodeA can connect to nodeC (tried ports other than the master's: 10.77.0.1:";
    assert_named(&hosts, None, Some(("mesh-pair-blocked", one_way)));
    let other = "OUTPUT -p tcp --syn -d 10.77.0.3 ! --sport 6105 -j DROP";
    on(&hosts, "nodeA", &format!("iptables -A {other}"));
    let both_ways = "nodeA and nodeC cannot connect to each other (tried ports other than the master's: 10.77.0.3:";
    assert_named(&hosts, None, Some(("mesh-pair-blocked", both_ways)));
    on(&hosts, "nodeA", &format!("iptables -D {rule}; iptables -D {other}"));

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
    assert!(findings.is_empty(), "{map}");
    let pairs = map["mesh"]["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 6);
    assert!(pairs.iter().all(|pair| pair["gbit_per_s"].as_f64().unwrap() > 0.0), "{map}");
    // They found more than the master's port.
    assert!(ports.len() > 1, "{ports:?}");
}

#[test]
fn the_mesh_takes_the_chosen_network_and_says_what_it_measured() {
    let Some(hosts) = Hosts::up("mesh-text", 2, &[("TWO_HOSTS_NETS", "2")]) else { return };
    let rank = |index: usize| {
        let mut command = hosts.on(HOSTS[index], env!("CARGO_BIN_EXE_mpienv"));
        command.args(["check", "--timeout", PATIENT, "--mesh", "--mesh-bytes", "1M"]);
        command.args(["--compute", "--interface", "eth1"]);
        command.env("RANK", index.to_string()).env("WORLD_SIZE", "2").env("MASTER_PORT", "6105");
        command.env("MASTER_ADDR", "10.77.0.1").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (zero, one) = (rank(0), rank(1));
    let [zero, one] = [zero, one].map(|rank| rank.wait_with_output().unwrap());
    let said = String::from_utf8_lossy(&zero.stdout).into_owned();
    assert!(one.status.success() && one.stdout.is_empty(), "{one:?}");
    for part in [
        "2 ranks on 2 hosts, started by ",
        "\nmesh: 2 hosts, 1 pair in 1 round, ",
        "Gbit/s from the row's host to the column's\nhost ",
        "\nwith two hosts there is only one pair, so nothing can be compared\n",
        "\ncompute: the median rank does ",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn a_rank_whose_core_others_use_is_named() {
    if !is_there("taskset") || std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    // Three ranks: two on one core, one on another, which three loops use too.
    let rank = |index: usize, core: usize, port: u16| {
        let mut command: Command = clean("taskset");
        command.args(["-c", &core.to_string(), env!("CARGO_BIN_EXE_mpienv"), "check", "--json"]);
        command.args(["--compute", "--timeout", PATIENT]);
        command.env("RANK", index.to_string()).env("WORLD_SIZE", "3");
        command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", "3");
        command.env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let busy = || {
        // Where it is allowed, before other programs of this machine, which slow all ranks.
        let mut command = clean("nice");
        command.args(["-n", "-5", "taskset", "-c", "1", "sh", "-c", "while :; do :; done"]);
        command.spawn().unwrap()
    };
    let findings = || {
        let mut loops = [busy(), busy(), busy()];
        let port = crate::support::port::free_port();
        let children = vec![rank(0, 0, port), rank(1, 0, port), rank(2, 1, port)];
        let found = measured(children, "compute");
        for busy in &mut loops {
            busy.kill().unwrap();
            busy.wait().unwrap();
        }
        found
    };
    for run in 0..runs() {
        // Other programs of this machine may slow all ranks alike for a while.
        let mut tries = (0..20).map(|_| findings());
        let Some((map, found)) = tries.find(|(_, found)| !found.is_empty()) else {
            panic!("run {run}: it is as fast as the others");
        };
        let [(code, what)] = &found[..] else { panic!("run {run}: {found:?}: {map}") };
        assert!(code == "compute-slow" && what.starts_with("rank 2 on "), "run {run}: {map}");
    }
}

#[test]
fn rank_0_prints_its_map_and_the_error_if_a_rank_is_lost_while_hosts_are_measured() {
    let Some(hosts) = Hosts::up("mesh-lost", 4, &[]) else { return };
    // While hosts are measured, a rank has connections at other ports than the master's (6105) and
    // sshd's. A rank that is killed earlier, between two meetings, is awaited until the timeout.
    let lose = r#"measures() { awk '$4 == "01" && $2 $3 !~ /:(0016|17D9)/ { found = 1 } END { exit !found }' \
            /proc/net/tcp /proc/net/tcp6; }
        for try in $(seq 1000); do ! measures || break; sleep 0.01; done
        pkill -KILL -x mpienv || true"#;
    let run = || {
        let ranks = ranks(&hosts, &["--mesh"], None);
        on(&hosts, HOSTS[1], lose);
        ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
    };
    // A busy machine may end it only after the others are through.
    let is_lost = |ends: &Vec<Output>| !ends[1].status.success();
    let ends = (0..9).map(|_| run()).find(is_lost).unwrap_or_else(run);
    let said = String::from_utf8_lossy(&ends[0].stderr);
    assert_eq!(ends[0].status.code(), Some(3), "{said}");
    let map: Value = serde_json::from_slice(&ends[0].stdout).unwrap();
    assert_eq!(map["ranks"].as_array().unwrap().len(), HOSTS.len());
    let error = map["error"].as_str().unwrap();
    assert!(error.contains("rank 1") && error.contains("lost"), "{error}");
    assert!(said.ends_with(&format!("mpienv: {error}\n")), "{said}");
}

#[test]
fn nothing_listens_after_the_mesh() {
    let Some(hosts) = Hosts::up("mesh-after", 4, &[]) else { return };
    let begun = Instant::now();
    measured(ranks(&hosts, &["--mesh", "--mesh-bytes", "1M"], None), "mesh");
    assert!(begun.elapsed() < SLACK);
    for host in HOSTS {
        let table =
            hosts.on(host, "cat").args(["/proc/net/tcp", "/proc/net/tcp6"]).output().unwrap();
        let table = String::from_utf8(table.stdout).unwrap();
        // The third field is the state (0A listens), and the first but one the address: sshd's port
        // is 22.
        let listening = table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let ports: Vec<_> = listening.filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert!(ports.iter().all(|port| port.ends_with(":0016")), "{host}: {ports:?}");
    }
}

#[test]
fn sixty_four_simulated_hosts_measure_all_pairs() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let size = inherited("MPIENV_MESH_HOSTS").and_then(|size| size.into_string().ok());
    let size = size.unwrap_or_else(|| "64".to_owned());
    let out = fs::File::create(folder.path().join("map")).unwrap();
    let begun = Instant::now();
    let status = clean("mpienv")
        .args(["simulate", "--launcher", "slurm", "--nodes", &size, "--ppn", "1", "--"])
        .args(["mpienv", "check", "--mesh", "--mesh-bytes", "64K", "--json", "--timeout", PATIENT])
        .stdout(out)
        .status()
        .unwrap();
    assert!(status.success());
    let text = fs::read_to_string(folder.path().join("map")).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("[0] "));
    let map: Value = serde_json::from_str(&lines.collect::<String>()).unwrap();
    let hosts: usize = size.parse().unwrap();
    assert_eq!(map["mesh"]["hosts"].as_array().unwrap().len(), hosts);
    let pairs = map["mesh"]["pairs"].as_array().unwrap();
    if hosts <= 64 {
        assert_eq!(pairs.len(), hosts * (hosts - 1) / 2);
    }
    assert!(pairs.iter().all(|pair| pair["gbit_per_s"].as_f64().unwrap() > 0.0));
    eprintln!("{hosts} hosts: {} pairs in {:?}", pairs.len(), begun.elapsed());
}

#[test]
fn ranks_to_which_two_orders_come_at_once_end_with_rank_0() {
    let words = ["simulate", "--launcher", "slurm", "--nodes", "1", "--ppn", "4", "--"];
    for run in 0..10 {
        let output = clean("timeout")
            .args(["-k", "5", &SLACK.as_secs().to_string()])
            .args([env!("CARGO_BIN_EXE_mpienv")].iter().chain(&words))
            .args([env!("CARGO_BIN_EXE_mpienv"), "check", "--mesh", "--timeout", PATIENT])
            .output()
            .unwrap();
        assert!(output.status.success(), "run {run}: {output:?}");
    }
}
