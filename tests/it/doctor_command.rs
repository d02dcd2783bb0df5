//! `mpienv doctor` on this host, alone and as the ranks of a job.

use std::net::TcpListener;
use std::process::Stdio;

use crate::support::port::free_port;
use crate::support::timeout::PATIENT;
use crate::support::tool::clean;

#[test]
fn the_command_looks_at_this_very_host() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let mut command = clean("mpienv");
    command
        .args(["doctor", "--json"])
        .env("MASTER_PORT", listener.local_addr().unwrap().port().to_string());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let examined: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let codes: Vec<_> = examined["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["code"].as_str().unwrap())
        .collect();
    assert!(codes.contains(&"port-in-use"), "{codes:?}");
    assert_eq!(examined["info"]["world_size"], 1);

    let mut command = clean("mpienv");
    command.args(["doctor"]).env("MASTER_ADDR", "no-such-host.invalid");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("error [master-unresolved]: MASTER_ADDR is no-such-host.invalid"),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with("NCCL selects  ")), "{text}");
    assert!(examined["nccl_interfaces"].is_array(), "{examined}");
}

/// `mpienv doctor` as one of two ranks.
fn rank(index: u32, port: u16, more: &[(&str, &str)]) -> std::process::Child {
    let mut command = clean("mpienv");
    command
        .args(["doctor", "--timeout", PATIENT])
        .env("RANK", index.to_string())
        .env("WORLD_SIZE", "2");
    command
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .envs(more.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn the_ranks_of_a_job_print_one_report_and_the_others_differences() {
    let port = free_port();
    let ranks = [rank(0, port, &[]), rank(1, port, &[("GLOO_SOCKET_IFNAME", "nowhere9")])];
    let [first, second] = ranks.map(|rank| rank.wait_with_output().unwrap());
    let text = String::from_utf8(first.stdout).unwrap();
    assert_eq!(text.matches("launcher  ").count(), 1, "{text}");
    assert!(text.contains("\nrank 1:\n  error [gloo-no-such-interface]: "), "{text}");
    // A finding of one rank makes all ranks fail.
    assert_eq!(first.status.code(), Some(3), "{text}");
    assert_eq!((second.status.code(), second.stdout.len(), second.stderr.len()), (Some(0), 0, 0));
}

#[test]
fn a_rank_that_does_not_meet_the_others_reports_for_itself_and_fails() {
    for index in ["0", "1"] {
        let mut command = clean("mpienv");
        command.args(["doctor", "--timeout", "0.2"]).env("RANK", index).env("WORLD_SIZE", "2");
        let output = command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", free_port().to_string())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("launcher  ").count(), 1, "{text}");
        assert!(text.contains("\nnot compared with the other ranks: "), "{text}");
        // A warning about this host makes doctor fail anyway.
        let is_sound = text.contains("no problems found on this host\n");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{text}{stderr}");
        assert_eq!(stderr.contains("could not compare the ranks"), is_sound, "{text}{stderr}");
    }
    let mut command = clean("mpienv");
    command
        .args(["doctor", "--timeout", "0"])
        .env("RANK", "1")
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "127.0.0.1");
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(text.contains("launcher ") && !text.contains("not compared"), "{text}");
}
