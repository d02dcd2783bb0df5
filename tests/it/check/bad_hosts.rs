//! `mpienv check --bad-hosts`, and what becomes of a rank that is lost while the ranks measure.

use std::fs;
use std::iter;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{ended, rank};
use crate::support::port::free_port;
use crate::support::timeout::in_time;
use crate::support::tool::clean;

#[test]
fn the_file_of_bad_hosts_is_empty_without_one_whether_something_is_measured_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.txt");
    let check = |option: &str| {
        let mut command = clean("mpienv");
        command.args(["check", option, "--bad-hosts"]).arg(&file);
        ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let (code, _, stderr) = check("--compute");
    assert_eq!((code, fs::read(&file).unwrap()), (Some(0), Vec::new()), "{stderr}");
    // A list of an earlier run does not stay if the ranks do not meet.
    fs::write(&file, "node7\n").unwrap();
    let mut command = clean("mpienv");
    command.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1");
    command.args(["check", "--compute", "--timeout", "1", "--bad-hosts"]).arg(&file);
    let output = command.env("MASTER_PORT", free_port().to_string()).output().unwrap();
    assert_eq!((output.status.code(), fs::read(&file).unwrap()), (Some(124), Vec::new()));
    let (code, _, stderr) = check("--json");
    assert_eq!((code, fs::read(&file).unwrap()), (Some(0), Vec::new()), "{stderr}");
}

#[test]
fn the_file_of_bad_hosts_names_a_host_of_which_no_rank_arrived_and_not_all_hosts_but_rank_0s() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.txt");
    // How many nodes there are, and on how many of them ranks arrive.
    for (nodes, here, absent) in [("2", 1, ""), ("3", 1, ""), ("3", 2, "node2\n")] {
        let run = |timeout: u32| {
            let port = free_port().to_string();
            let rank = |rank: u32| {
                let mut command: Command = clean("mpienv");
                command.args(["simulate", "--launcher", "slurm", "--ppn", "1", "--nodes", nodes]);
                command.args(["--rank", &rank.to_string(), "--", "mpienv", "check", "--compute"]);
                command.args(["--master-addr", "127.0.0.1", "--master-port", &port]);
                command.args(["--timeout", &timeout.to_string(), "--bad-hosts"]).arg(&file);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            };
            let ranks: Vec<_> = (0..here).map(rank).collect();
            let (code, _, stderr) = ranks.into_iter().map(ended).collect::<Vec<_>>().swap_remove(0);
            (code, stderr, fs::read_to_string(&file).unwrap())
        };
        let (code, stderr, found) = in_time(run, |(_, _, found)| found == absent);
        assert_eq!((code, found.as_str()), (Some(124), absent), "{stderr}");
        let said = format!("mpienv: {} is empty: check blames no single host\n", file.display());
        assert_eq!(stderr.contains(&said), absent.is_empty(), "{stderr}");
    }
}

/// Kills a rank once it has computed for a moment. Returns whether it had not ended by itself.
fn killed_while_it_computes(mut rank: Child) -> bool {
    let stat = format!("/proc/{}/stat", rank.id());
    let ticks = || {
        let text = fs::read_to_string(&stat).ok()?;
        text.rsplit(')').next()?.split(' ').nth(12)?.parse::<u32>().ok()
    };
    while rank.try_wait().unwrap().is_none() {
        if ticks().is_some_and(|ticks| ticks > 10) {
            rank.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(1));
    }
    rank.wait().unwrap().code().is_none()
}

#[test]
fn a_rank_that_is_lost_while_the_ranks_compute_is_named_with_its_host_and_rank_0_is_not_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.txt");
    let words = ["--compute", "--bad-hosts", file.to_str().unwrap()];
    // On a busy machine, a rank may have computed before it is killed.
    let (first, second) = iter::repeat_with(|| {
        let port = free_port();
        let [first, second, last] = [0, 1, 2].map(|index| rank(index, 3, port, &words));
        let is_killed = killed_while_it_computes(last);
        let ended = (ended(first), ended(second));
        is_killed.then_some(ended)
    })
    .find_map(|ended| ended)
    .unwrap();
    let host = mpienv::host_name().unwrap();
    let named = format!("rank 2 on {host} was lost while the ranks measured");
    assert!(first.2.contains(&named), "{first:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{host}\n"));
    // The first rank of a node refers to rank 0, and the others say nothing.
    assert_eq!((first.0, second), (Some(3), (Some(3), String::new(), String::new())));
}

#[test]
fn a_file_of_bad_hosts_that_cannot_be_written_keeps_no_rank_from_meeting_rank_0() {
    let port = free_port();
    let ranks = [&["--compute", "--bad-hosts", "/nowhere/bad"][..], &["--compute"]];
    let [zero, one] = [0, 1].map(|index| rank(index, 2, port, ranks[index as usize])).map(ended);
    // 3 if one of the ranks, on cores that others use, is also slow.
    assert!(matches!((zero.0, one.0), (Some(1 | 3), Some(0))), "{zero:?}{one:?}");
    assert!(zero.1.contains("\ncompute: the median rank does "), "{zero:?}");
    assert!(
        zero.2.contains("mpienv: cannot write the list of hosts to /nowhere/bad: "),
        "{zero:?}"
    );
}
