//! `mpienv check`, run by all ranks.

mod bad_hosts;
mod master;
#[cfg(target_os = "linux")]
mod mesh;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::port::free_port;
use crate::support::root::is_root;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::{clean, is_there};
use crate::support::wire::{self, Played};

/// One rank of a job that has no launcher. It has time to meet the others.
fn rank(index: u32, size: u32, port: u16, words: &[&str]) -> Child {
    rank_within(PATIENT, index, size, port, words)
}

/// The same with a timeout in seconds.
fn rank_within(timeout: &str, index: u32, size: u32, port: u16, words: &[&str]) -> Child {
    rank_of(index, size, port, &[&["check", "--timeout", timeout], words].concat())
}

/// The same with any command.
fn rank_of(index: u32, size: u32, port: u16, words: &[&str]) -> Child {
    let mut command: Command = clean("mpienv");
    command.args(words);
    command.env("RANK", index.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", size.to_string());
    command.env("MASTER_PORT", port.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// `mpirun -n 4`, with ranks that meet at a given port.
fn mpirun(port: u16) -> Command {
    let mut command = clean("timeout");
    // Without these, Open MPI refuses to run as root. Containers run as root, and have few cores.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("MASTER_PORT", port.to_string()).args(["-k", "5", "3000"]);
    command.args(["mpirun", "-n", "4", "--oversubscribe"]);
    command
}

/// This many connections to rank 0, each with bytes that no rank sends.
fn strangers(count: usize, port: u16, bytes: &[u8]) -> Vec<TcpStream> {
    let deadline = Instant::now() + SLACK;
    let mut strangers = Vec::new();
    while strangers.len() < count {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(mut stream) => {
                // Rank 0 may have closed already.
                let _ = stream.write_all(bytes);
                strangers.push(stream);
            }
            Err(error) if Instant::now() > deadline => panic!("rank 0 does not listen: {error}"),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
    strangers
}

#[test]
fn ranks_that_run_different_commands_learn_which_and_not_that_their_versions_differ() {
    let check = &["check", "--timeout", PATIENT][..];
    let doctor = &["doctor", "--timeout", PATIENT][..];
    let exec = &["exec", "--meet", PATIENT, "--", "true"][..];
    for (words, said) in [
        ([check, doctor], "mpienv: rank 1 runs `mpienv doctor`, and rank 0 runs `mpienv check`; "),
        (
            [exec, doctor],
            "mpienv: rank 1 runs `mpienv doctor`, and rank 0 runs `mpienv exec --meet`; ",
        ),
        ([doctor, check], "rank 1:\n  runs `mpienv check`, and rank 0 runs `mpienv doctor`; "),
    ] {
        let port = free_port();
        let ranks = [0, 1].map(|index| rank_of(index, 2, port, words[index as usize]));
        let [(code, stdout, stderr), (other, ..)] = ranks.map(ended);
        let first = stdout + &stderr;
        assert_eq!(code, Some(3), "{words:?}: {first}");
        let said = format!("{said}run the same command on all ranks\n");
        assert!(first.contains(&said) && !first.contains("same version"), "{first}");
        // A doctor has done what it can do alone.
        assert!(words[1] == doctor || other == Some(3), "{words:?}: {other:?}");
    }
}

#[test]
fn mpiruns_ranks_meet_and_rank_0_prints_the_map() {
    if !is_there("mpirun") {
        return;
    }
    let output =
        mpirun(free_port()).args(["mpienv", "check", "--timeout", PATIENT]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("4 ranks on 1 host, started by Open MPI, met at 127.0.0.1:"),
        "{text}"
    );
    assert!(lines[1].starts_with("host"), "{text}");
    assert!(lines[2].contains("127.0.0.1") && lines[2].ends_with("0-3    0-3"), "{text}");
    assert_eq!(lines.len(), 3, "{text}");
}

/// torchrun's agent serves its workers' store on the master's port as long as they run.
#[test]
fn torchruns_workers_meet_although_its_agent_listens_on_the_masters_port() {
    let agent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = agent.local_addr().unwrap().port();
    let worker = |index: u32, words: &[&str]| {
        let mut command: Command = clean("mpienv");
        command.args(words).envs([("TORCHELASTIC_RUN_ID", "none"), ("GROUP_RANK", "0")]);
        command.env("TORCHELASTIC_USE_AGENT_STORE", "True").env("GROUP_WORLD_SIZE", "1");
        command.env("RANK", index.to_string()).env("WORLD_SIZE", "2");
        command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = |words: &[&str]| [0, 1].map(|index| worker(index, words)).map(ended);
    let [(code, map, said), other] = both(&["check", "--timeout", PATIENT]);
    assert_eq!((code, other.0), (Some(0), Some(0)), "{said}{other:?}");
    assert!(map.starts_with("2 ranks on 1 host, started by torchrun, met at 127.0.0.1:"), "{map}");
    let [(_, found, _), _] = both(&["doctor", "--timeout", PATIENT]);
    assert!(found.contains("\nrank 1: "), "{found}");
    // The program itself finds the store where torchrun says.
    let words = ["exec", "--meet", PATIENT, "--", "sh", "-c", "echo $MASTER_PORT"];
    for (code, echoed, said) in both(&words) {
        assert_eq!((code, echoed), (Some(0), format!("{port}\n")), "{said}");
    }
}

#[test]
fn a_rank_that_does_not_arrive_is_named_by_rank_0_and_no_rank_of_its_node_repeats_it() {
    let meet = |timeout: u32| {
        let port = free_port();
        [0, 1, 3].map(|index| rank_within(&timeout.to_string(), index, 4, port, &[])).map(ended)
    };
    let named = "mpienv: rank 2 of 4 has not connected to ";
    let begun = Instant::now();
    let [first, others @ ..] = in_time(meet, |[(.., first), others @ ..]| {
        first.starts_with(named) && others.iter().all(|(.., said)| said.is_empty())
    });
    let (code, stdout, stderr) = first;
    assert_eq!((code, stdout.as_str()), (Some(124), ""), "{stderr}");
    assert!(stderr.starts_with(named), "{stderr}");
    for other in others {
        assert_eq!(other, (Some(124), String::new(), String::new()));
    }
    assert!(begun.elapsed() < 2 * SLACK);
}

#[test]
fn rank_0_prints_the_missing_ranks_as_json_and_no_other_rank_prints_anything() {
    let meet = |timeout: u32| {
        let port = free_port();
        [0, 1]
            .map(|index| rank_within(&timeout.to_string(), index, 4, port, &["--json"]))
            .map(ended)
    };
    let [first, second] = in_time(meet, |[(_, object, _), _]| object.contains("ranks 2-3 of 4 "));
    let (code, stdout, stderr) = first;
    let object: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &object["missing"]), (Some(124), &serde_json::json!([2, 3])));
    assert_eq!(format!("mpienv: {}\n", object["error"].as_str().unwrap()), stderr);
    assert_eq!(second, (Some(124), String::new(), String::new()));
}

#[test]
fn the_hosts_of_missing_ranks_are_named_where_the_launcher_lists_them() {
    let words =
        "simulate --launcher slurm --nodes 2 --ppn 2 --rank 0 -- mpienv check --timeout 0.2";
    let output = clean("mpienv").args(words.split(' ')).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let named = "ranks 1-3 of 4 (node0, all of node1) have not connected to node0:";
    assert!(stderr.contains(named), "{stderr}");
}

#[test]
fn a_rank_that_mpirun_cannot_bring_is_named_by_rank_0() {
    if !is_there("mpirun") {
        return;
    }
    // Rank 2 never starts `check`, or is killed before it has met another rank.
    for absent in ["exec sleep 3000", "mpienv check --master-port 1 & kill -9 $!; exec sleep 3000"]
    {
        // mpirun kills all ranks once one has failed, so each first prints how it exited, and waits
        // for the others.
        let script = format!(
            "cd $FOLDER; if test $OMPI_COMM_WORLD_RANK = 2; then {absent}; fi; \
             mpienv check --timeout $TIMEOUT 2> said.$OMPI_COMM_WORLD_RANK; code=$?; \
             echo $code > new.$OMPI_COMM_WORLD_RANK; mv new.$OMPI_COMM_WORLD_RANK code.$OMPI_COMM_WORLD_RANK; \
             while ! test -e code.0 -a -e code.1 -a -e code.3; do sleep 0.01; done; exit $code"
        );
        let meet = |timeout: u32| {
            let folder = tempfile::tempdir().unwrap();
            let mut command = mpirun(free_port());
            command
                .args(["sh", "-c", &script])
                .env("FOLDER", folder.path())
                .env("TIMEOUT", timeout.to_string());
            let begun = Instant::now();
            let output = command.output().unwrap();
            assert_eq!(
                output.status.code(),
                Some(124),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
            let text = |name: String| fs::read_to_string(folder.path().join(name)).unwrap();
            [0, 1, 3].map(|rank| (text(format!("code.{rank}")), text(format!("said.{rank}"))))
        };
        let named = "mpienv: rank 2 of 4 has not connected to 127.0.0.1:";
        let [(code, said), others @ ..] = in_time(meet, |[(_, said), others @ ..]| {
            said.starts_with(named) && others.iter().all(|(_, said)| said.is_empty())
        });
        assert_eq!(code, "124\n", "{said}");
        assert!(said.starts_with(named) && said.contains(" within "), "{said}");
        for other in others {
            assert_eq!(other, ("124\n".to_owned(), String::new()));
        }
    }
}

#[test]
fn rank_0_names_the_missing_one_before_mpirun_ends_it() {
    if !is_there("mpirun") {
        return;
    }
    let script =
        "test $OMPI_COMM_WORLD_RANK != 2 || exec sleep 3000; exec mpienv check --timeout $TIMEOUT";
    let meet = |timeout: u32| {
        let mut command = mpirun(free_port());
        command.args(["--tag-output", "sh", "-c", script]).env("TIMEOUT", timeout.to_string());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let named = "[1,0]<stderr>:mpienv: rank 2 of 4 has not connected to 127.0.0.1:";
    let (code, stderr) = in_time(meet, |(_, stderr)| stderr.contains(named));
    assert_eq!(code, Some(124), "{stderr}");
    assert!(stderr.contains(named), "{stderr}");
}

#[test]
fn a_rank_of_another_version_is_named_by_rank_0_and_told_so() {
    let port = free_port();
    let ranks = [rank(0, 3, port, &[]), rank(1, 3, port, &[])];
    let [protocol, ..] = wire::own_version();
    let mut other = strangers(1, port, b"").remove(0);
    Played { version: [protocol, 9, 8, 7], ..wire::played(2, 3, false, b"", 0) }
        .join(&mut other, b"");
    let named = format!(
        "rank 2 (127.0.0.1) runs mpienv 9.8.7 (protocol {protocol}), rank 0 runs mpienv 0."
    );
    let [(code, stdout, stderr), second] = ranks.map(ended);
    assert_eq!((code, stdout.as_str()), (Some(3), ""), "{stderr}");
    assert!(stderr.starts_with(&format!("mpienv: {named}")), "{stderr}");
    assert_eq!(second, (Some(3), String::new(), String::new()));
    let mut received = Vec::new();
    other.read_to_end(&mut received).unwrap();
    assert!(String::from_utf8_lossy(&received).contains(&named));
}

#[test]
fn a_rank_with_another_world_size_is_named_by_rank_0_and_fails_too() {
    // Rank 0 waits until the deadline for a rank 1 that agrees.
    let meet = |timeout: u32| {
        let (port, timeout) = (free_port(), timeout.to_string());
        [rank_within(&timeout, 0, 2, port, &[]), rank_within(&timeout, 1, 3, port, &[])].map(ended)
    };
    let [first, second] = in_time(meet, |[(.., first), (.., second)]| {
        first.contains("world size") && second.is_empty()
    });
    assert!(first.0 == Some(3) && first.2.contains("world size"), "{first:?}");
    assert_eq!((second.0, second.2.as_str()), (Some(3), ""));
}

/// Rank 1 of 2 with different variables from those that its launcher would set.
fn odd_rank_1(port: u16, vars: &[(&str, &str)]) -> Child {
    let mut command: Command = clean("mpienv");
    command.args(["check", "--timeout", PATIENT]).env("RANK", "1").env("WORLD_SIZE", "2");
    command.env("MASTER_PORT", port.to_string()).envs(vars.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn two_ranks_with_one_local_rank_are_an_error_that_rank_0_explains() {
    let port = free_port();
    let second = odd_rank_1(port, &[("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")]);
    let (code, stdout, stderr) = ended(rank(0, 2, port, &[]));
    assert_eq!(code, Some(3), "{stderr}");
    let what = "ranks 0 and 1 are both local rank 0";
    assert!(stdout.contains(&format!("error [local-rank-twice]: {what}")), "{stdout}");
    let (code, stdout, stderr) = ended(second);
    assert_eq!((code, stdout.as_str()), (Some(3), ""));
    let refers =
        format!("mpienv: the meeting of the ranks failed; rank 0 at 127.0.0.1:{port} prints why\n");
    assert_eq!(stderr, refers);
}

#[test]
fn an_option_that_only_some_ranks_have_is_named_with_these_ranks() {
    for option in ["--mesh", "--compute"] {
        for with in [0, 2] {
            let port = free_port();
            let words = [option];
            let words = |index| &words[usize::from(index != with)..];
            let ranks = [0, 1, 2].map(|index| rank(index, 3, port, words(index)));
            let [(code, stdout, stderr), one, two] = ranks.map(ended);
            let (given, without) = if with == 0 { ("0", "1-2") } else { ("2", "0-1") };
            let said = format!(
                "error [options-differ]: rank {given} started check with {option}, and ranks {without} without it"
            );
            assert!(stdout.contains(&said), "{stdout}{stderr}");
            assert_eq!((code, one.0, two.0), (Some(3), Some(3), Some(3)), "{stderr}{one:?}{two:?}");
        }
    }
}

#[test]
fn an_interface_that_the_host_does_not_have_is_an_error_as_of_exec() {
    let run = |words: &[&str]| {
        let mut command = clean("mpienv");
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        ended(command.spawn().unwrap())
    };
    let check = run(&["check", "--interface", "ib77"]);
    let exec = run(&["exec", "--interface", "ib77", "--", "true"]);
    assert_eq!((check.0, check.1.as_str()), (Some(1), ""), "{}", check.2);
    assert!(check.2.contains("no interface has this name"), "{}", check.2);
    assert_eq!(check, exec);
}

#[test]
fn a_rank_with_another_world_size_prints_itself_why_it_was_turned_away() {
    let port = free_port();
    let zero = rank(0, 2, port, &[]);
    let (code, _, stderr) = ended(rank(2, 3, port, &[]));
    let [zero, one] = [zero, rank(1, 2, port, &[])].map(ended);
    assert_eq!((code, zero.0, one.0), (Some(3), Some(0), Some(0)), "{stderr}{zero:?}{one:?}");
    assert!(
        stderr.starts_with("mpienv: the ranks disagree on the world size: rank 0 says 2, "),
        "{stderr}"
    );
}

#[test]
fn local_sizes_and_names_of_the_master_that_differ_are_findings() {
    let port = free_port();
    let vars = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")];
    let second = odd_rank_1(port, &vars);
    let mut first: Command = clean("mpienv");
    first
        .args(["check", "--timeout", PATIENT])
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .env("LOCAL_RANK", "0");
    first
        .env("LOCAL_WORLD_SIZE", "1")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    let (code, stdout, stderr) =
        ended(first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(code, Some(0), "{stderr}");
    let names =
        format!("rank 0 names the master 127.0.0.1:{port}, and rank 1 names it localhost:{port}");
    assert!(stdout.contains(&format!("note [master-names-differ]: {names}")), "{stdout}");
    let size = "rank 0 has a local size of 1, but 2 ranks are on ";
    assert!(stdout.contains(&format!("warning [local-size-differs]: {size}")), "{stdout}");
    assert_eq!(ended(second).0, Some(0));
}

#[test]
fn ranks_of_which_another_launcher_has_more_fail_although_they_meet() {
    let port = free_port().to_string();
    // torchrun on the second of two nodes, which has not got their number.
    let of_slurm = [
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ("SLURM_NODEID", "1"),
        ("SLURM_NNODES", "2"),
    ];
    let of_torchrun = [
        ("TORCHELASTIC_RUN_ID", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("GROUP_RANK", "0"),
        ("GROUP_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", &port),
        ("TORCHELASTIC_USE_AGENT_STORE", "False"),
    ];
    let start = |rank: &str, words: &[&str]| {
        let mut command: Command = clean("mpienv");
        command.args(["check", "--timeout", PATIENT]).args(words);
        command.envs(of_slurm).envs(of_torchrun).env("RANK", rank).env("LOCAL_RANK", rank);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for words in [&[][..], &["--json"]] {
        let [first, second] = ["0", "1"].map(|rank| start(rank, words)).map(ended);
        assert_eq!((first.0, second.0), (Some(3), Some(3)), "{first:?} {second:?}");
        let said = format!("{}{}", first.1, first.2);
        assert!(said.contains("rank 0: torchrun says rank 0 of 2 "), "{first:?}");
        let is_in_json = first.1.contains("\"code\": \"launchers-disagree\"");
        assert_eq!(is_in_json, !words.is_empty(), "{first:?}");
    }
}

#[test]
fn a_network_without_a_way_to_the_master_is_named() {
    if !is_root() || !is_there("unshare") {
        return;
    }
    // A separate network namespace, in which no interface is up.
    let mut command: Command = clean("unshare");
    command.args(["--net", "mpienv", "check", "--timeout", "8"]);
    command
        .env("RANK", "1")
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "10.9.8.7")
        .env("MASTER_PORT", "6105");
    let (code, _, stderr) =
        ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(code, Some(124), "{stderr}");
    let text = "mpienv: rank 1 did not reach rank 0 at 10.9.8.7:6105 within ";
    assert!(stderr.starts_with(text) && stderr.contains(" s: cannot reach it"), "{stderr}");
}

#[test]
fn two_hundred_strangers_are_counted_and_break_nothing() {
    let port = free_port();
    let zero = rank(0, 2, port, &["--json"]);
    let strangers = strangers(200, port, b"GET / HTTP/1.1\r\n\r\n");
    let (code, _, stderr) = ended(rank(1, 2, port, &[]));
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stdout, stderr) = ended(zero);
    assert_eq!(code, Some(0), "{stderr}");
    let map: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(map["strangers"], strangers.len());
    assert_eq!(map["ranks"].as_array().unwrap().len(), 2);
}

#[test]
fn mpiruns_ranks_meet_despite_two_hundred_strangers() {
    if !is_there("mpirun") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (go, port) = (folder.path().join("go"), free_port());
    // The last rank connects once all strangers have.
    let script = "test $OMPI_COMM_WORLD_RANK != 3 || while ! test -e $GO; do sleep 0.01; done; exec mpienv check --json --timeout 1200";
    let mut command = mpirun(port);
    command.args(["sh", "-c", script]).env("GO", &go).stdout(Stdio::piped()).stderr(Stdio::piped());
    let job = command.spawn().unwrap();
    let noise: Vec<u8> = (0..1000u32).map(|i| (i * 7919 % 251) as u8).collect();
    let strangers = strangers(200, port, &noise);
    fs::write(&go, "").unwrap();
    let (code, stdout, stderr) = ended(job);
    assert_eq!(code, Some(0), "{stderr}");
    let map: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(map["strangers"], strangers.len());
    assert_eq!(map["ranks"].as_array().unwrap().len(), 4);
}

#[test]
fn another_jobs_ranks_are_kept_out() {
    let spawn = |timeout: u32, port: u16, index: &str, token: &str| {
        let mut command: Command = clean("mpienv");
        command.args(["check", "--timeout", &timeout.to_string()]);
        command.env("RANK", index).env("WORLD_SIZE", "2").env("MPIENV_TOKEN", token);
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let meet = |timeout: u32| {
        let port = free_port();
        let zero = spawn(timeout, port, "0", "one");
        [ended(spawn(timeout, port, "1", "two")), ended(zero)]
    };
    let differs = "because its token differs: it belongs to another job, or";
    let [(code, _, stderr), zero] = in_time(meet, |[one, _]| one.2.contains(differs));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains(differs), "{stderr}");
    let (code, _, stderr) = zero;
    assert_eq!(code, Some(124), "{stderr}");
}

#[test]
fn what_a_rank_says_of_itself_does_not_command_rank_0s_terminal() {
    let port = free_port();
    let first = rank(0, 2, port, &[]);
    // Another rank, which sends any names for its host and the master.
    let (second, size) = (mpienv::Rank::new(1, 2).unwrap(), Some(2));
    let report = serde_json::json!({
        "host": "\u{1b}[2J\u{9b}31mhost\r\n", "local_rank": 1, "local_size": size, "master": "\u{1b}]0;owned\u{7}:1",
    });
    let rendezvous = mpienv::rendezvous::Rendezvous::new(
        second,
        mpienv::Host::LOOPBACK,
        mpienv::Port::new(port).unwrap(),
    );
    rendezvous.gather(serde_json::to_vec(&report).unwrap()).unwrap();
    let (code, stdout, stderr) = ended(first);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("host") && stdout.contains("owned"), "{stdout}");
    assert!(!(stdout + &stderr).contains(|c: char| c.is_control() && c != '\n'));
}
