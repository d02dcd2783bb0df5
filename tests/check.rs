//! `mpienv check`, run by all ranks.

#[path = "support/tool.rs"]
mod tool;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tool::{clean, is_there};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// One rank of a world that nobody else starts.
fn rank(index: u32, size: u32, port: u16, words: &[&str]) -> Child {
    let mut command: Command = clean("mpienv");
    command.args(["check", "--timeout", "3"]).args(words);
    command.env("RANK", index.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", size.to_string());
    command.env("MASTER_PORT", port.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn mpiruns_ranks_meet_and_rank_0_prints_the_map() {
    if !is_there("mpirun") {
        return;
    }
    let mut command = clean("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("MASTER_PORT", free_port().to_string());
    let output = command.args(["-n", "4", "--oversubscribe", "mpienv", "check"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("4 ranks on 1 host, started by open-mpi, met at 127.0.0.1:"), "{text}");
    assert!(lines[1].starts_with("host"), "{text}");
    assert!(lines[2].contains("127.0.0.1") && lines[2].ends_with("0-3    0-3"), "{text}");
    assert_eq!(lines.len(), 3, "{text}");
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all_others() {
    let (port, begun) = (free_port(), Instant::now());
    let came = [0, 1, 3].map(|index| rank(index, 4, port, &[]));
    for child in came {
        let (code, stdout, stderr) = ended(child);
        assert_eq!((code, stdout.as_str()), (Some(124), ""), "{stderr}");
        assert!(stderr.contains("rank 2"), "{stderr}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_rank_with_another_world_size_is_named_by_all() {
    let port = free_port();
    let ranks = [rank(0, 2, port, &[]), rank(1, 3, port, &[])];
    for child in ranks {
        let (code, _, stderr) = ended(child);
        assert_eq!(code, Some(3), "{stderr}");
        assert!(stderr.contains("world size"), "{stderr}");
    }
}

#[test]
fn two_ranks_with_one_local_rank_are_an_error() {
    let port = free_port();
    let second = {
        let mut command: Command = clean("mpienv");
        command.args(["check"]).env("RANK", "1").env("WORLD_SIZE", "2").env("LOCAL_RANK", "0");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (code, stdout, stderr) = ended(rank(0, 2, port, &[]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stdout.contains("error [local-rank-twice]: ranks 0 and 1 are both local rank 0"), "{stdout}");
    assert_eq!(ended(second).0, Some(0));
}

#[test]
fn two_hundred_strangers_are_counted_and_break_nothing() {
    let port = free_port();
    let zero = rank(0, 2, port, &["--json"]);
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut strangers = Vec::new();
    while strangers.len() < 200 && Instant::now() < deadline {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(mut stream) => {
                // Rank 0 may have closed already.
                let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
                strangers.push(stream);
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
    assert_eq!(strangers.len(), 200);
    let (code, _, stderr) = ended(rank(1, 2, port, &[]));
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stdout, stderr) = ended(zero);
    assert_eq!(code, Some(0), "{stderr}");
    let map: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(map["strangers"], 200);
    assert_eq!(map["ranks"].as_array().unwrap().len(), 2);
}

#[test]
fn another_jobs_ranks_are_kept_out() {
    let port = free_port();
    let spawn = |index: &str, token: &str| {
        let mut command: Command = clean("mpienv");
        command.args(["check", "--timeout", "2"]).env("RANK", index).env("WORLD_SIZE", "2").env("MPIENV_TOKEN", token);
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let zero = spawn("0", "one");
    let (code, _, stderr) = ended(spawn("1", "two"));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("another job token"), "{stderr}");
    let (code, _, stderr) = ended(zero);
    assert_eq!(code, Some(124), "{stderr}");
}
