//! `--meet` and `--wait-for-master`: what the start of the command waits for.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::address::own_address;
use crate::support::clock::SLACK;
use crate::support::port::free_port;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::{clean, is_there};

/// One rank of a job on this host that has no launcher.
fn rank(index: u32, size: u32, port: u16, words: &[&str]) -> Command {
    let mut command = clean("mpienv");
    command.args(words).env("RANK", index.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", size.to_string());
    command.env("MASTER_PORT", port.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_rank_that_is_late_delays_the_start_of_all() {
    let (port, late) = (free_port(), Duration::from_secs(2));
    let words = ["exec", "--meet", PATIENT, "--", "date", "+%s%N"];
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let early = [0, 1].map(|index| rank(index, 3, port, &words).spawn().unwrap());
    thread::sleep(late);
    let last = rank(2, 3, port, &words).spawn().unwrap();
    for child in early.into_iter().chain([last]) {
        let (code, stdout, stderr) = ended(child);
        assert_eq!(code, Some(0), "{stderr}");
        let started = Duration::from_nanos(stdout.trim().parse().unwrap());
        assert!(started >= begun + late, "started {:?} after the first", started - begun);
    }
}

#[test]
fn a_rank_that_never_arrives_is_named_within_the_time_and_each_node_says_by_whom() {
    for words in [&["exec"][..], &["launch", "--nproc-per-node", "1"]] {
        // One process on each of three nodes, all of which are this host.
        let meet = |timeout: u32| {
            let (port, timeout) = (free_port(), timeout.to_string());
            let words = [words, &["--meet", &timeout, "--", "echo", "started"]].concat();
            let started = [0, 2].map(|index| {
                let mut command = rank(index, 3, port, &words);
                command
                    .env("LOCAL_RANK", "0")
                    .env("LOCAL_WORLD_SIZE", "1")
                    .env("MASTER_ADDR", "127.0.0.1");
                command.spawn().unwrap()
            });
            started.map(ended)
        };
        let named = "mpienv: rank 1 of 3 has not connected to 127.0.0.1:";
        let refers = "mpienv: the meeting of the ranks failed; rank 0 at 127.0.0.1:";
        let begun = Instant::now();
        let ends =
            in_time(meet, |[first, last]| first.2.starts_with(named) && last.2.starts_with(refers));
        for ((code, stdout, stderr), said) in ends.into_iter().zip([named, refers]) {
            assert_eq!((code, stdout.as_str()), (Some(124), ""), "{stderr}");
            assert!(stderr.starts_with(said), "{stderr}");
        }
        assert!(begun.elapsed() < 2 * SLACK, "{:?}", begun.elapsed());
    }
}

#[test]
fn rank_0_names_the_late_ranks_while_it_waits_for_them() {
    let port = free_port();
    let words = ["exec", "--meet", PATIENT, "--", "true"];
    let mut first = rank(0, 2, port, &words).spawn().unwrap();
    let mut said = BufReader::new(first.stderr.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    assert!(line.starts_with("mpienv: rank 1 of 2 has not connected to 127.0.0.1:"), "{line}");
    assert!(line.contains("; rank 0 waits for at most another "), "{line}");
    let second = ended(rank(1, 2, port, &words).spawn().unwrap());
    assert_eq!(second, (Some(0), String::new(), String::new()));
    assert!(first.wait().unwrap().success());
    assert_eq!(said.count(), 0);
}

#[test]
fn a_process_that_would_meet_only_itself_in_a_job_of_several_starts_nothing() {
    for words in [&["exec"][..], &["launch", "--nproc-per-node", "2"]] {
        let mut command = clean("mpienv");
        command.args(words).args(["--meet", PATIENT, "--", "echo", "started"]);
        // A batch script without srun.
        command.envs([("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (code, stdout, stderr) = ended(command.spawn().unwrap());
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "{stderr}");
        let said = "mpienv: the program was not started: SLURM_PROCID=\"0\" and SLURM_NTASKS=\"8\" are set";
        assert!(stderr.contains(said) && stderr.contains("`srun`"), "{stderr}");
    }
}

#[test]
fn ranks_that_do_not_fit_together_start_nothing() {
    let port = free_port();
    let words = ["exec", "--meet", PATIENT, "--", "echo", "started"];
    // Both would use the first device.
    let ranks =
        [0, 1].map(|index| rank(index, 2, port, &words).env("LOCAL_RANK", "0").spawn().unwrap());
    let said = ["ranks 0 and 1 are both local rank 0", "; rank 0 at 127.0.0.1:"];
    for (child, said) in ranks.into_iter().zip(said) {
        let (code, stdout, stderr) = ended(child);
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn the_command_of_rank_0_can_listen_where_the_ranks_met() {
    if !is_there("python3") {
        return;
    }
    let words = ["exec", "--meet", PATIENT, "--"];
    // Python's bare socket does not set SO_REUSEADDR: if rank 0 closed a connection first, that
    // would block the port.
    let listen = "import os, socket; s = socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); s.listen()";
    let can_listen = |port: &u16| {
        let mut python = clean("python3");
        python
            .args(["-c", listen])
            .env("MASTER_PORT", port.to_string())
            .output()
            .unwrap()
            .status
            .success()
    };
    // An earlier run of the tests may have left connections.
    let port = std::iter::repeat_with(free_port).find(can_listen).unwrap();
    let ranks = [0, 1, 2].map(|index| {
        let command = if index == 0 { &["python3", "-c", listen][..] } else { &["true"] };
        rank(index, 3, port, &[&words[..], command].concat()).spawn().unwrap()
    });
    for child in ranks {
        let (code, _, stderr) = ended(child);
        assert_eq!(code, Some(0), "{stderr}");
    }
}

#[test]
fn ranks_that_meet_exchange_the_hosts_that_no_launcher_gives() {
    let Some(address) = own_address() else { return };
    let port = free_port();
    let run = |words: &[&str]| {
        // Two nodes with two ranks each, placed round-robin; both nodes are this host.
        let ranks = [0, 1, 2, 3].map(|index: u32| {
            let mut command =
                rank(index, 4, port, &[&["exec", "--for", "tensorflow"], words].concat());
            command.env("LOCAL_RANK", (index / 2).to_string()).env("LOCAL_WORLD_SIZE", "2");
            command.env("MASTER_ADDR", &address).env("MPIENV_SIMULATED", "1");
            command.args(["--", "sh", "-c", "echo $TF_CONFIG"]).spawn().unwrap()
        });
        ranks.map(ended)
    };
    let [first, second] = [port, port + 1].map(|port| format!("\"{address}:{port}\""));
    let workers = format!("{first}, {first}, {second}, {second}");
    for (index, (code, stdout, stderr)) in run(&["--meet", PATIENT]).into_iter().enumerate() {
        assert_eq!(code, Some(0), "{stderr}");
        let task = format!(r#""task": {{"type": "worker", "index": {index}}}"#);
        assert_eq!(stdout, format!("{{\"cluster\": {{\"worker\": [{workers}]}}, {task}}}\n"));
    }
    for (code, stdout, stderr) in run(&[]) {
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(
            stderr.contains("TensorFlow needs the hosts of all 4 ranks")
                && stderr.contains("--meet"),
            "{stderr}"
        );
    }
}

#[test]
fn a_masters_name_that_does_not_resolve_in_time_is_code_124() {
    let begun = Instant::now();
    let mut command =
        rank(1, 2, 29500, &["exec", "-q", "--wait-for-master", "1", "--", "echo", "started"]);
    let child = command
        .env("MASTER_ADDR", "no-such-host.invalid")
        .env("LOCAL_WORLD_SIZE", "1")
        .env("LOCAL_RANK", "0")
        .spawn();
    let (code, stdout, stderr) = ended(child.unwrap());
    assert_eq!((code, stdout.as_str()), (Some(124), ""), "{stderr}");
    assert!(
        stderr.starts_with("mpienv: the master no-such-host.invalid did not resolve within 1 s: "),
        "{stderr}"
    );
    assert!(begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < SLACK);
    for words in [["--wait-for-master", "1"], ["--wait-for-master", "2m"], ["--meet", "0.5h"]] {
        let words = [&["exec"], &words[..], &["--", "true"]].concat();
        assert_eq!(ended(rank(0, 1, 29500, &words).spawn().unwrap()).0, Some(0), "{words:?}");
    }
}

#[test]
fn a_time_that_is_not_above_0_or_has_no_known_unit_is_refused_with_examples() {
    for option in ["--meet=0", "--meet=x", "--meet=1d", "--wait-for-master=-1"] {
        let output = clean("mpienv").args(["exec", option, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("such as 90 (seconds), 500ms, 10m or 2h"), "{said}");
    }
}
