//! `mpienv check --mesh`, of which no test compares speeds.

use std::fs;
use std::process::{Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::support::clock::SLACK;
use crate::support::hosts::Hosts;
use crate::support::mesh::{HOSTS, measured, on, ranks};
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, inherited, is_there};

/// Asserts that one pair is blocked, whose finding starts so. Beside other tests, a pair may be slow.
#[track_caller]
fn assert_blocked(hosts: &Hosts, start: &str) {
    let (map, mut findings) = measured(ranks(hosts, &["--mesh"], None), "mesh");
    findings.retain(|(code, _)| !code.ends_with("-slow"));
    let [(code, what)] = &findings[..] else { panic!("{findings:#?}: {map}") };
    assert!(code == "mesh-pair-blocked" && what.starts_with(start), "{what}: {map}");
}

#[test]
fn a_pair_that_cannot_connect_is_named_with_the_ports_that_were_tried() {
    if !is_there("iptables") {
        return;
    }
    let Some(hosts) = Hosts::up("mesh-blocked", 4, &[]) else { return };
    // Rank 0's host and nodeC: the meeting passes, and the mesh does not.
    for (rule, start) in [
        (
            "INPUT -p tcp --syn -s 10.77.0.3 ! --dport 6105 -j DROP",
            "nodeC cannot connect to nodeA, although nodeA can connect to nodeC (tried ports other than the master's: 10.77.0.1:",
        ),
        (
            "OUTPUT -p tcp --syn -d 10.77.0.3 ! --sport 6105 -j DROP",
            "nodeA and nodeC cannot connect to each other (tried ports other than the master's: 10.77.0.3:",
        ),
    ] {
        on(&hosts, "nodeA", &format!("iptables -A {rule}"));
        assert_blocked(&hosts, start);
    }
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
