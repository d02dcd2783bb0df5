//! Restarts of a job on several nodes: all start again together, or all end together.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{has_two, read_to, said, wait_for_two};
use crate::support::clock::SLACK;
use crate::support::launched::{launch, living, master_port, node, node_of, piped, signal, sorted};
use crate::support::processes::until;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::clean;

/// The outputs of both nodes.
fn both(mark: &str, options: &[&str], vars: [&[(&str, &str)]; 2], script: &str) -> [Output; 2] {
    let port = master_port();
    let start = |rank: u32| {
        piped(node(mark, rank, port, options, script).envs(vars[rank as usize].iter().copied()))
    };
    let [first, second] = [start(0), start(1)];
    let second = std::thread::spawn(|| second.wait_with_output().unwrap());
    [first.wait_with_output().unwrap(), second.join().unwrap()]
}

/// Asserts that both nodes succeeded, and what each of their ranks printed in two attempts.
#[track_caller]
fn printed_by_both(outputs: &[Output; 2], lines_of: impl Fn(u32) -> [String; 2]) {
    for (output, ranks) in outputs.iter().zip([[0, 1], [2, 3]]) {
        assert_eq!(output.status.code(), Some(0), "{}", said(output));
        assert_eq!(sorted(&output.stdout), ranks.map(&lines_of).concat());
    }
}

#[test]
fn a_worker_that_fails_on_one_node_starts_the_workers_of_all_nodes_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; echo $RANK $MPIENV_RESTART_COUNT; test $MPIENV_RESTART_COUNT = 1 && exit 0; : > $RANK; \
         test $RANK = 3 || exec sleep 3000; until test -e 0 -a -e 1 -a -e 2; do sleep 0.01; done; exit 5",
        folder.path().display()
    );
    let start = Instant::now();
    let outputs = both("nodes", &["--max-restarts", "1"], [&[], &[]], &script);
    assert!(start.elapsed() < SLACK);
    printed_by_both(&outputs, |rank| [0, 1].map(|again| format!("[{rank}] {rank} {again}")));
    let text = said(&outputs[0]);
    assert!(
        text.contains("mpienv: attempt 0 failed: rank 3 on ")
            && text.contains(": exit code 5 after "),
        "{text}"
    );
    assert_eq!(said(&outputs[1]), "");
    assert_eq!(living("nodes"), [""; 0]);
}

#[test]
fn a_worker_that_is_killed_is_the_cause_even_if_another_node_notices_first() {
    // Rank 3 has lost rank 0, whose own node has not yet noticed that it died.
    let run = || {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {}; test $RANK = 3 && {{ until test -e up.$MPIENV_RESTART_COUNT; do sleep 0.01; done; exit 5; }}; \
             test $RANK = 0 || exec sleep 3000; \
             trap 'kill -s KILL $$' TERM; : > up.$MPIENV_RESTART_COUNT; while :; do sleep 0.1 & wait; done",
            folder.path().display()
        );
        both("noticed", &["--max-restarts", "1"], [&[], &[]], &script)
    };
    // Rank 0 must die within a second of rank 3's failure, for which a busy machine may leave its
    // shell no time.
    let is_late = |outputs: &[Output; 2]| {
        let said = said(&outputs[0]);
        said.contains("attempt 0 failed: rank 3 on ") || said.contains(" failed with exit code 5; ")
    };
    let outputs = (0..9).map(|_| run()).find(|outputs| !is_late(outputs)).unwrap_or_else(run);
    for output in &outputs {
        assert_eq!(output.status.code(), Some(137), "{}", said(output));
        assert!(
            said(output).contains("mpienv: rank 0 on ")
                && said(output).contains(" failed with signal 9 (SIGKILL)")
        );
    }
    let text = said(&outputs[0]);
    assert!(text.contains("    failed afterwards with exit code 5: rank 3\n"), "{text}");
    assert!(text.contains("mpienv: attempt 0 failed: rank 0 on "), "{text}");
    assert_eq!(living("noticed"), [""; 0]);
}

#[test]
fn all_nodes_exit_with_the_first_failure_and_the_first_node_reports_it() {
    let script =
        "test $RANK = 2 && { sleep 0.3; seq 1 4 >&2; echo why >&2; exit 5; }; exec sleep 3000";
    let outputs = both("codes", &["--max-restarts", "1"], [&[], &[]], script);
    for output in &outputs {
        assert_eq!(output.status.code(), Some(5), "{}", said(output));
    }
    let text = said(&outputs[0]);
    let quote = " failed with exit code 5\n  last lines of its stderr:\n    1\n    2\n    3\n    4\n    why\n";
    assert!(text.contains(quote), "{text}");
    // The lines themselves are on the terminal of the node that failed.
    let own = said(&outputs[1]);
    assert!(
        own.ends_with(" failed with exit code 5; see the last lines of its stderr above\n"),
        "{own}"
    );
    assert!(
        text.contains("    stopped with SIGTERM: ranks 0-1, 3\n  2 of 2 attempts used\n"),
        "{text}"
    );
    assert_eq!(living("codes"), [""; 0]);
}

#[test]
fn the_attempt_goes_on_from_the_highest_count_of_any_nodes_platform() {
    let counts: [&[(&str, &str)]; 2] =
        [&[("TORCHELASTIC_RESTART_COUNT", "1")], &[("TORCHELASTIC_RESTART_COUNT", "3")]];
    // No worker fails before all have said their counts.
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; echo $MPIENV_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT; n=$MPIENV_RESTART_COUNT; : > $RANK.$n; \
         until test -e 0.$n -a -e 1.$n -a -e 2.$n -a -e 3.$n; do sleep 0.01; done; test $n = 4",
        folder.path().display()
    );
    let outputs = both("counts", &["--max-restarts", "1"], counts, &script);
    printed_by_both(&outputs, |rank| [3, 4].map(|count| format!("[{rank}] {count} {count}")));
    let text = said(&outputs[0]);
    assert!(
        text.contains("mpienv: attempt 3 failed: ") && text.contains("; attempt 4 starts in "),
        "{text}"
    );
}

#[test]
fn a_signal_on_one_node_ends_the_job_on_all_without_a_restart() {
    let port = master_port();
    let script = "trap 'exit 9' TERM; echo up; while :; do sleep 0.1 & wait; done";
    let [mut first, mut second] = [0, 1].map(|rank| {
        piped(&mut node("term2", rank, port, &["--max-restarts", "3", "--grace", "3000"], script))
    });
    [&mut first, &mut second].into_iter().for_each(wait_for_two);
    signal("TERM", &second);
    for child in [first, second] {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(9), "{}", said(&output));
        assert!(!said(&output).contains("attempt 1"), "{}", said(&output));
    }
    assert_eq!(living("term2"), [""; 0]);
}

#[test]
fn a_signal_on_a_node_that_then_finishes_forbids_a_restart_of_all() {
    let (port, folder) = (master_port(), tempfile::tempdir().unwrap());
    // The workers of the second node run until they may fail.
    let script = "test $MPIENV_RESTART_COUNT = 0 || exit 0; trap 'exit 0' TERM; echo up; \
                  while test ! -e $GO; do sleep 0.1; done; test $RANK -lt 2 || exit 5; exec sleep 3000";
    let go = folder.path().join("go");
    let [mut first, mut second] = [0, 1].map(|rank| {
        piped(node("finished", rank, port, &["--max-restarts", "3"], script).env("GO", &go))
    });
    [&mut first, &mut second].into_iter().for_each(wait_for_two);
    signal("TERM", &first);
    // If its workers have not finished by then, they are stopped, with the same result.
    std::thread::sleep(Duration::from_millis(500));
    fs::write(&go, "").unwrap();
    for child in [first, second] {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    }
    assert_eq!(living("finished"), [""; 0]);
}

#[test]
fn a_signal_that_comes_while_the_last_worker_ends_is_not_lost() {
    let script = "test ${MPIENV_RESTART_COUNT:-0} = 0 || exit 0; echo $$; exec sleep 3000";
    let mut left: Vec<u32> = (0..120).rev().collect();
    while let Some(step) = left.pop() {
        let restarts = step % 2;
        let mut child =
            piped(&mut launch("late", 1, &["--max-restarts", &restarts.to_string()], script));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let worker =
            Pid::from_raw(line.trim().rsplit(' ').next().unwrap().parse().unwrap()).unwrap();
        let killed = Instant::now();
        kill_process(worker, Signal::KILL).unwrap();
        std::thread::sleep(Duration::from_micros(300 * u64::from(step)));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let waited = killed.elapsed();
        // A second attempt would succeed.
        let output = child.wait_with_output().unwrap();
        // It starts after 500 ms, before which a busy machine may not have sent the signal.
        if waited >= Duration::from_millis(400) && output.status.success() {
            left.push(step);
            continue;
        }
        assert_eq!(output.status.code(), Some(137), "{step}: {}: {}", output.status, said(&output));
        assert!(
            said(&output).contains(" failed with signal 9 (SIGKILL); "),
            "{step}: {}",
            said(&output)
        );
        let end =
            "  1 of 2 attempts used\n  not restarted: mpienv received a signal that ends the job\n";
        assert_eq!(said(&output).ends_with(end), restarts == 1, "{step}: {}", said(&output));
    }
    assert_eq!(living("late"), [""; 0]);
}

#[test]
fn a_signal_at_any_moment_of_a_restart_ends_the_job_with_its_report() {
    // The first restart begins after 500 ms, and fails some milliseconds later.
    let moment = |step: u32| Duration::from_millis(490 + u64::from(step));
    let signalled = |step: u32| {
        let mut child = piped(&mut launch("moment", 1, &["--max-restarts", "9"], "exit 7"));
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        read_to(&mut stderr, "attempt 1 starts in 0.5 s");
        std::thread::sleep(moment(step));
        signal(["TERM", "INT", "HUP"][step as usize % 3], &child);
        let (mut rest, status) = (String::new(), child.wait().unwrap());
        stderr.read_to_string(&mut rest).unwrap();
        // The signal may kill a worker that has just started.
        assert!(matches!(status.code(), Some(7 | 129 | 130 | 143)), "{step}: {status}: {rest}");
        let end = " of 10 attempts used\n";
        let reason = "  not restarted: mpienv received a signal that ends the job\n";
        assert!(rest.contains(end) && rest.contains(reason), "{step}: {status}: {rest}");
    };
    std::thread::scope(|scope| {
        for first in 0..6 {
            scope.spawn(move || (first..60).step_by(6).for_each(signalled));
        }
    });
    assert_eq!(living("moment"), [""; 0]);
}

#[test]
fn a_node_that_is_gone_ends_the_job_with_its_name_on_all_others() {
    for (lost, how, reason) in [
        (1, "KILL", "its mpienv closed the connection"),
        (0, "KILL", "its mpienv closed the connection"),
        (1, "STOP", "nothing was heard from it for 1 s"),
        (0, "STOP", "nothing was heard from it for 1 s"),
    ] {
        let named = format!("mpienv: node {lost} (");
        let lose = |timeout: u32| {
            let (port, mark) = (master_port(), format!("gone-{lost}-{how}"));
            let options = ["--max-restarts", "3", "--node-timeout", &timeout.to_string()];
            let script = "echo up; exec sleep 3000";
            let mut nodes =
                [0, 1].map(|rank| piped(&mut node(&mark, rank, port, &options, script)));
            // A node whose machine is so busy that the others give it up has no second line.
            let all_run = nodes.iter_mut().all(has_two);
            if all_run {
                signal(how, &nodes[lost]);
            }
            let [first, second] = nodes;
            let (mut lost_node, other) = if lost == 0 { (first, second) } else { (second, first) };
            let output = other.wait_with_output().unwrap();
            lost_node.kill().unwrap();
            lost_node.wait().unwrap();
            until("all are gone", || living(&mark).is_empty());
            (timeout, output.status.code(), said(&output))
        };
        // Only a node that hangs needs the timeout.
        let (timeout, code, text) = match how {
            "STOP" => in_time(lose, |(.., text)| text.contains(&named)),
            _ => lose(1200),
        };
        assert_eq!(code, Some(3), "{text}");
        assert!(
            text.contains(&named) && text.contains(&reason.replace("1 s", &format!("{timeout} s"))),
            "{text}"
        );
    }
}

#[test]
fn nodes_with_different_settings_are_named_with_both_values() {
    let settings = |max_restarts, node_timeout| {
        ["--max-restarts", max_restarts, "--node-timeout", node_timeout]
    };
    let usual = settings("3", "1200");
    for (other, of_other, of_first) in [
        (settings("5", "1200"), "--max-restarts 5", "--max-restarts 3"),
        (settings("3", "1200.5"), "--node-timeout 1200.5", "--node-timeout 1200"),
    ] {
        let port = master_port();
        let nodes = [(0, usual), (1, other)]
            .map(|(rank, options)| piped(&mut node("settings", rank, port, &options, "echo up")));
        for output in nodes.map(|node| node.wait_with_output().unwrap()) {
            let said = said(&output);
            assert_eq!(output.status.code(), Some(3), "{said}");
            assert!(output.stdout.is_empty(), "a worker has started: {said}");
            let names = |node: u32, option: &str| {
                said.contains(&format!("node {node} ("))
                    && said.contains(&format!(") has {option}"))
            };
            assert!(names(0, of_first) && names(1, of_other), "{said}");
            assert!(said.ends_with("; pass one of the two on every node\n"), "{said}");
        }
    }
}

/// Asserts that no worker of two nodes has started, and that node 0 names both with their numbers.
fn assert_numbers_differ(outputs: &[Output; 2], of_other: &str, options: &str) {
    for output in outputs {
        assert_eq!(output.status.code(), Some(3), "{options}: {}", said(output));
        assert!(output.stdout.is_empty(), "a worker has started: {}", said(output));
    }
    let said = said(&outputs[0]);
    assert!(
        said.contains("node 0 (")
            && said.contains(") has --nproc-per-node 2, and node 1 (")
            && said.contains(&format!(") has --nproc-per-node {of_other}"))
            && said.contains("pass one of the two on every node\n"),
        "{options}: {said}"
    );
}

#[test]
fn nodes_with_different_numbers_of_workers_are_named_with_both_before_a_worker_starts() {
    for options in [&["--meet", PATIENT][..], &["--max-restarts", "1"], &["--stall-timeout", "9m"]]
    {
        let port = master_port();
        let nodes = [(0, 2), (1, 1)].map(|(rank, workers)| {
            piped(&mut node_of(workers, "numbers", rank, port, options, "echo up"))
        });
        let outputs = nodes.map(|node| node.wait_with_output().unwrap());
        assert_numbers_differ(&outputs, "1", &format!("{options:?}"));
    }
}

/// One of two nodes, which counts these devices.
fn counting(rank: u32, devices: &str, port: u16) -> Child {
    let (rank, port) = (rank.to_string(), port.to_string());
    let place = ["--node-rank", &rank, "--nnodes", "2", "--master-addr", "127.0.0.1"];
    let mut command = clean("mpienv");
    command.args(["launch", "--nproc-per-node", "auto", "--master-port", &port]).args(place);
    command.args(["--", "sh", "-c", "echo $RANK/$WORLD_SIZE"]);
    piped(command.env("CUDA_VISIBLE_DEVICES", devices))
}

#[test]
fn nodes_that_count_their_workers_meet_unasked_and_start_none_if_the_numbers_differ() {
    let run = |second: &str| {
        let port = master_port();
        let nodes = [(0, "0,1"), (1, second)].map(|(rank, own)| counting(rank, own, port));
        nodes.map(|node| node.wait_with_output().unwrap())
    };
    for (output, expected) in
        run("0,1").iter().zip([["[0] 0/4", "[1] 1/4"], ["[2] 2/4", "[3] 3/4"]])
    {
        assert_eq!(sorted(&output.stdout), expected, "{}", said(output));
        let counted = "mpienv: 2 workers on this node: CUDA_VISIBLE_DEVICES=0,1; waits for ";
        assert!(said(output).starts_with(counted), "{}", said(output));
    }
    assert_numbers_differ(&run("0"), "1\n", "counted");
}

#[test]
fn a_node_that_counts_and_cannot_meet_the_others_reads_that_a_number_needs_no_meeting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = counting(0, "0,1", port).wait_with_output().unwrap();
    assert!(output.stdout.is_empty(), "a worker has started: {}", said(&output));
    let end = "`--nproc-per-node NUMBER`, the same on every node, needs no meeting\n";
    assert!(said(&output).ends_with(end), "{}", said(&output));
}

#[test]
fn an_option_that_only_one_node_has_is_named_where_the_nodes_meet() {
    let meet = ["--meet", PATIENT];
    for options in [["--max-restarts", "1"], ["--stall-timeout", "540"]] {
        for only in [0, 1] {
            let port = master_port();
            let with = [&options[..], &meet].concat();
            let nodes = [0, 1].map(|rank| {
                let options = if rank == only { &with[..] } else { &meet };
                piped(&mut node("only", rank, port, options, "echo up"))
            });
            let [first, second] = nodes.map(|node| node.wait_with_output().unwrap());
            for output in [&first, &second] {
                assert_eq!(output.status.code(), Some(3), "{options:?}: {}", said(output));
                assert!(output.stdout.is_empty(), "a worker has started: {}", said(output));
            }
            let [option, said] = [options.join(" "), said(&first)];
            let has = [option, format!("no {}", options[0])];
            let [with, without] = has.map(|option| format!(") has {option}"));
            let (first, second) = if only == 0 { (with, without) } else { (without, with) };
            let node_1 = format!("{first}, and node 1 (");
            assert!(
                said.starts_with("error [launches-differ]: node 0 (")
                    && said.contains(&node_1)
                    && said.contains(&second),
                "{options:?}: {said}"
            );
        }
    }
}

#[test]
fn nodes_with_different_numbers_of_nodes_read_which_option_differs() {
    let port = master_port().to_string();
    let [mut first, second] = [("0", "2"), ("1", "3")].map(|(rank, nodes)| {
        let place = ["--node-rank", rank, "--nnodes", nodes, "--master-addr", "127.0.0.1"];
        let options = [&place[..], &["--master-port", &port, "--meet", PATIENT]].concat();
        piped(&mut launch("nnodes", 1, &options, "echo up"))
    });
    let output = second.wait_with_output().unwrap();
    // It still waits for the node that it expects.
    first.kill().unwrap();
    first.wait().unwrap();
    let said = said(&output);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{said}");
    assert!(said.contains("with the same --nnodes and --nproc-per-node on every node"), "{said}");
}

#[test]
fn a_node_whose_other_nodes_do_not_come_says_what_it_waits_for() {
    let port = master_port();
    let mut child = piped(&mut node("waits", 0, port, &["--max-restarts", "1"], "true"));
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let expected = format!(
        "mpienv: node 0 has waited 10 s for `mpienv launch` of the other nodes at 127.0.0.1:{}, ",
        port - 1
    );
    assert!(line.starts_with(&expected) && line.contains("the same --max-restarts"), "{line}");
}

#[test]
fn nodes_that_have_met_and_do_not_meet_again_wait_no_longer_than_asked_and_name_the_firewall() {
    // They agree on the port of the first meeting, and not on that of the second one.
    let script = "unset MASTER_PORT; [ $SLURM_PROCID = 0 ] || eval \"$(mpienv export -q | grep MASTER_PORT=)\"; \
                  mpienv launch --meet 15 --max-restarts 1 --nproc-per-node 1 -- true; echo $?";
    let mut command = clean("mpienv");
    command.args(["simulate", "--launcher", "slurm", "--nodes", "2", "--ppn", "1", "--"]);
    let output = command.args(["bash", "-c", script]).output().unwrap();
    assert_eq!(sorted(&output.stdout), ["[0] 124", "[1] 124"], "{}", said(&output));
    for expected in ["waits for at most 15 s", "a firewall may block this port", "within 15 s"] {
        assert!(said(&output).contains(expected), "{expected}: {}", said(&output));
    }
}

#[test]
fn two_nodes_on_one_host_start_and_the_first_says_once_what_that_means() {
    let restarts = ["--max-restarts", "1"];
    let meet = ["--meet", PATIENT];
    for options in [&meet[..], &restarts, &[restarts, meet].concat()] {
        let outputs = both("host", options, [&[], &[]], "echo $RANK");
        for (output, ranks) in outputs.iter().zip([["[0] 0", "[1] 1"], ["[2] 2", "[3] 3"]]) {
            assert_eq!(output.status.code(), Some(0), "{options:?}: {}", said(output));
            assert_eq!(sorted(&output.stdout), ranks, "{options:?}");
        }
        let [first, second] = outputs.map(|output| said(&output));
        let what = first.strip_prefix("mpienv: nodes 0 and 1 are both on ");
        let what = what.unwrap_or_else(|| panic!("{options:?}: {first}"));
        assert!(
            what.contains(": their workers have the same local ranks, so they may use the same "),
            "{first}"
        );
        assert_eq!((first.lines().count(), second.as_str()), (1, ""), "{options:?}: {first}");
    }
}

#[test]
fn a_node_that_never_comes_is_named() {
    // The meeting's default timeout is ten minutes; --meet is shorter.
    let options = ["--max-restarts", "1", "--meet", "1"];
    let output = node("missing", 0, master_port(), &options, "true").output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    for named in ["rank 1 of 2 has not connected", "rank 1 is node 1\n"] {
        assert!(said(&output).contains(named), "{}", said(&output));
    }
}
