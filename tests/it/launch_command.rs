//! `mpienv launch`: places, exit codes, signals, and that no process is left behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::launched::{launch, living, piped, signal, sorted, text};
use crate::support::processes::{state, until};
use crate::support::tool::{clean, is_there};

/// The variables that mpirun sets for the second of two processes, each alone on its node.
const SECOND_NODE: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("MASTER_ADDR", "node-0"),
];

/// Reads this many lines: once they have arrived, as many workers are ready.
fn lines(child: &mut Child, count: usize) -> (Vec<String>, BufReader<std::process::ChildStdout>) {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines: Vec<_> = (0..count)
        .map(|_| {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            line
        })
        .collect();
    lines.sort();
    (lines, stdout)
}

#[test]
fn the_first_failure_gives_the_exit_code_and_is_named_in_one_line() {
    let start = Instant::now();
    let script = "test $LOCAL_RANK = 2 || exec sleep 3000; echo first >&2; echo last >&2; exit 7";
    let output = launch("named", 4, &[], script).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let named = format!(
        "mpienv: rank 2 on {} failed with exit code 7; see the last lines of its stderr above",
        host.trim()
    );
    let said = text(&output.stderr);
    let rest = said
        .strip_prefix(&format!("[2] first\n[2] last\n{named}\n"))
        .unwrap_or_else(|| panic!("{said}"));
    let [first, others] = rest.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(
        first.starts_with("  failed ")
            && first.ends_with(" s after the attempt started; the other workers:")
    );
    assert_eq!(others, "    stopped with SIGTERM: ranks 0-1, 3");
    let quiet = launch("named", 4, &["-q"], script).output().unwrap();
    assert_eq!(text(&quiet.stderr), format!("[2] first\n[2] last\n{named}\n"));
    assert_eq!(living("named"), [""; 0]);
}

#[test]
fn a_worker_that_a_signal_ended_is_128_and_the_signals_number() {
    let output = launch("signalled", 2, &[], "test $RANK = 1 && kill -s KILL $$; exec sleep 3000")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(137));
    let said = text(&output.stderr);
    assert!(said.contains(" failed with signal 9 (SIGKILL); it wrote nothing to stderr"), "{said}");
}

#[test]
fn only_a_worker_that_something_else_has_killed_may_have_run_out_of_memory() {
    let in_shell = "sh -c 'kill -s KILL $$'; exit";
    for (end, hints) in [("kill -s KILL $$", 1), (in_shell, 1), ("exit 7", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "up=$UP/$MPIENV_RESTART_COUNT; test $RANK = 0 && {{ trap '' TERM; : >$up; sleep 3000; true; }}; \
             until test -e $up; do sleep 0.01; done; {end}"
        );
        let mut command = launch("memory", 2, &["--grace", "0.5", "--max-restarts", "1"], &script);
        let said = text(&command.env("UP", folder.path()).output().unwrap().stderr);
        assert!(said.contains("\n    killed after the grace period: rank 0\n"), "{said}");
        assert_eq!(said.matches("if memory runs out: look at `dmesg`").count(), hints, "{said}");
    }
}

#[test]
fn a_launch_that_is_killed_leaves_nothing_behind() {
    let script =
        "trap '' TERM HUP INT; (trap '' TERM HUP; sleep 3000; true) & echo up; sleep 3000; true";
    let mut child = piped(&mut launch("killed", 3, &[], script));
    assert_eq!(lines(&mut child, 3).0, ["[0] up\n", "[1] up\n", "[2] up\n"]);
    assert!(living("killed").len() >= 6);
    child.kill().unwrap();
    child.wait().unwrap();
    until("all are gone", || living("killed").is_empty());
}

#[test]
fn a_launch_that_is_killed_while_it_starts_leaves_nothing_behind() {
    for step in 0..40 {
        let mut child =
            launch("young", 6, &[], "exec sleep 3000").stdout(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_micros(250 * step));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    until("all are gone", || living("young").is_empty());
}

#[test]
fn a_signal_is_passed_on_to_the_workers_and_ends_the_job_without_a_report() {
    let mut child = piped(&mut launch("term", 2, &[], "echo up; exec sleep 3000"));
    let (_, _stdout) = lines(&mut child, 2);
    signal("TERM", &child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let said = text(&output.stderr);
    assert_eq!(said, "mpienv: stopped by SIGTERM\n");
    assert_eq!(living("term"), [""; 0]);
}

#[test]
fn workers_that_end_well_on_a_signal_are_a_success() {
    for name in ["INT", "TERM", "HUP", "USR1", "USR2"] {
        // A shell runs its trap once the signal interrupts its `wait`.
        let script =
            format!("trap 'echo got; exit 0' {name}; echo up; while :; do sleep 0.1 & wait; done");
        let mut child = piped(&mut launch(name, 2, &[], &script));
        let (_, mut stdout) = lines(&mut child, 2);
        signal(name, &child);
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        assert_eq!(sorted(&rest), ["[0] got", "[1] got"], "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
        assert_eq!(living(name), [""; 0]);
    }
}

#[test]
fn a_workers_own_children_get_no_signal_that_means_something_to_the_worker_alone() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = "trap 'echo got' USR1; (until test -e $GO; do sleep 0.01; done) & child=$!; echo up; \
                  wait $child; wait $child && echo child ended well";
    let mut child = piped(launch("usr1", 1, &[], script).env("GO", &go));
    let (_, mut stdout) = lines(&mut child, 1);
    signal("USR1", &child);
    let mut rest = String::new();
    stdout.read_line(&mut rest).unwrap();
    fs::write(&go, "").unwrap();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "[0] got\n[0] child ended well\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_the_launch_ignores_its_workers_are_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let worker = "echo up; until test -e $GO; do sleep 0.01; done; echo down";
    let mut command = clean("sh");
    command.args([
        "-c",
        &format!("trap '' HUP; exec mpienv launch --nproc-per-node 1 -- sh -c '{worker}'"),
    ]);
    let mut child = piped(command.env("GO", &go));
    let (_, mut stdout) = lines(&mut child, 1);
    signal("HUP", &child);
    // A signal that was passed on would end the worker now.
    thread::sleep(Duration::from_millis(300));
    fs::write(&go, "").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "[0] down\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_launch_that_is_started_with_sigchld_blocked_or_ignored_sees_its_workers_end() {
    let script = "test $RANK = 1 || exec sleep 3000; sleep 0.3; exit 5";
    for how in ["--block-signal=CHLD", "--ignore-signal=CHLD"] {
        let limit = SLACK.as_secs().to_string();
        let mut command = clean("timeout");
        command.args(["-s", "KILL", &limit, "env", how, "mpienv", "launch"]);
        command.args(["--nproc-per-node", "2", "--", "sh", "-c", script]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{how}: {}", text(&output.stderr));
    }
}

#[test]
fn a_worker_that_does_not_end_when_asked_is_killed_after_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    let script = "test $RANK = 0 && { until test -e $UP; do sleep 0.01; done; exit 4; }; \
                  trap 'echo asked' TERM; echo up; : > $UP; while :; do sleep 0.1 & wait; done";
    let start = Instant::now();
    let mut command = launch("grace", 2, &["--grace", "8"], script);
    let output = command.env("UP", folder.path().join("up")).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(start.elapsed() >= Duration::from_secs(8) && start.elapsed() < SLACK);
    assert_eq!(text(&output.stdout), "[1] up\n[1] asked\n");
    assert_eq!(living("grace"), [""; 0]);
}

#[test]
fn what_a_worker_left_behind_ends_with_the_job() {
    let start = Instant::now();
    let output = launch("remains", 2, &[], "sleep 3000 & sleep 3000 & exit 0").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    assert_eq!(living("remains"), [""; 0]);
}

#[test]
fn one_process_on_each_node_starts_its_nodes_part_of_the_job() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR; mpienv show --json \
                  | grep -e '\"rank\": [0-9]'";
    let output = launch("node", 2, &[], script).envs(SECOND_NODE).output().unwrap();
    let expected = [
        "[2]   \"rank\": 2,",
        "[2] 2/4 0/2 1 node-0",
        "[3]   \"rank\": 3,",
        "[3] 3/4 1/2 1 node-0",
    ];
    assert_eq!(sorted(&output.stdout), expected);
}

#[test]
fn several_processes_on_the_node_start_no_workers() {
    let output = launch("several", 2, &[], "true")
        .envs(SECOND_NODE)
        .env("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
        .output();
    let Output { status, stderr, .. } = output.unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(
        text(&stderr)
            .contains("this process cannot start workers, because it must be the job's only process on its node"),
        "{}",
        text(&stderr)
    );
}

#[test]
fn the_nodes_first_worker_has_the_input() {
    let mut command = launch("input", 2, &[], "cat; echo end");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"a\nb\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(sorted(&output.stdout), ["[0] a", "[0] b", "[0] end", "[1] end"]);
}

#[test]
fn an_outsider_that_holds_the_pipe_delays_the_end_by_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = "echo $$; until test -e $GO; do sleep 0.01; done; echo last";
    let mut child = piped(launch("held", 1, &[], script).env("GO", &go));
    let (first, mut stdout) = lines(&mut child, 1);
    let worker = first[0].trim().strip_prefix("[0] ").unwrap();
    let _held = fs::File::options().write(true).open(format!("/proc/{worker}/fd/1")).unwrap();
    fs::write(&go, "").unwrap();
    let start = Instant::now();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "[0] last\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
}

#[test]
fn a_program_that_is_not_there_is_code_127_and_named_once() {
    for verb in [
        &["launch", "--nproc-per-node", "3", "--max-restarts", "2"][..],
        &["simulate", "--launcher", "slurm", "--ppn", "3"],
    ] {
        let output = clean("mpienv").args(verb).args(["--", "no-such-program"]).output().unwrap();
        assert_eq!(output.status.code(), Some(127));
        assert_eq!(
            text(&output.stderr),
            "mpienv: cannot start \"no-such-program\": No such file or directory (os error 2); check that it is \
             installed on this host and on PATH\n",
            "{verb:?}"
        );
    }
}

#[test]
fn numbers_without_sense_are_refused() {
    for options in [
        &["--nproc-per-node", "0"][..],
        &["--nproc-per-node", "2", "--grace", "-1"],
        &["--grace", "nan"],
        &[],
    ] {
        let output =
            clean("mpienv").arg("launch").args(options).args(["--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}");
    }
}

#[test]
fn workers_may_use_every_core_though_mpirun_bound_the_launch_to_one() {
    if !is_there("mpirun") || !is_there("taskset") {
        return;
    }
    let bound = |words: &[&str]| {
        let mut command = clean("mpirun");
        // Without these, Open MPI refuses to run as root, as containers do.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let output = command
            .args(["-n", "1", "--bind-to", "core"])
            .args(words)
            // It counts no more than OMP_NUM_THREADS.
            .args(["env", "-u", "OMP_NUM_THREADS", "nproc"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // The cores that mpirun gives to a program, and all cores of the machine.
    let one = bound(&[])[0].clone();
    let all = clean("taskset").args(["-c", "0-1023", "nproc"]).output().unwrap();
    let all = text(&all.stdout).trim().to_owned();
    let workers = |count: &str| ["0", "1"].map(|rank| format!("[{rank}] {count}")).to_vec();
    let mut free = bound(&["mpienv", "launch", "--nproc-per-node", "2", "--"]);
    free.sort();
    assert_eq!(free, workers(&all));
    let mut kept = bound(&["mpienv", "launch", "--keep-binding", "--nproc-per-node", "2", "--"]);
    kept.sort();
    assert_eq!(kept, workers(&one));
}

#[test]
fn a_worker_that_is_killed_long_after_the_first_failure_is_not_its_cause() {
    let script = "test $RANK = 0 && { sleep 0.3; exit 5; }; \
                  trap 'sleep 1.5; kill -s KILL $$' TERM; while :; do sleep 0.1 & wait; done";
    let output = launch("consequence", 2, &[], script).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
}

#[test]
fn a_worker_that_failed_is_the_cause_although_one_that_lost_it_is_noticed_first() {
    for (code, expected, named) in [(101, 101, "rank 1 on "), (0, 3, "rank 0 on ")] {
        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        let script =
            "echo $$; until test -e $GO; do sleep 0.01; done; test $RANK = 0 && exit 3; exit $CODE";
        let mut command = launch("lost", 2, &[], script);
        let mut child = piped(command.env("GO", &go).env("CODE", code.to_string()));
        let (ready, _stdout) = lines(&mut child, 2);
        let has_state = |process: &str, wanted| {
            let process = Path::new("/proc").join(process);
            state(&process).is_some_and(|state| state.starts_with(wanted))
        };
        // As on a busy machine, both have exited when the launch looks.
        signal("STOP", &child);
        until("the launch is stopped", || has_state(&child.id().to_string(), 'T'));
        fs::write(&go, "").unwrap();
        let has_exited = |line: &String| has_state(line.trim().rsplit(' ').next().unwrap(), 'Z');
        until("both have exited", || ready.iter().all(has_exited));
        signal("CONT", &child);
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{said}");
        assert!(said.contains(&format!("mpienv: {named}")), "{said}");
        assert!(code == 0 || said.contains(" exit code 3: rank 0"), "{said}");
    }
}

#[test]
fn a_worker_that_ends_after_one_that_lost_it_is_the_cause() {
    // Rank 1 leaves the others, and its process ends only when that of rank 0 has.
    let script = "cd $AT; \
                  test $RANK = 0 && { echo $$ >new; mv new process; exit 3; }; \
                  until test -e process; do sleep 0.01; done; \
                  until grep -q 'State:.Z' /proc/$(cat process)/status; do sleep 0.01; done; \
                  exit 101";
    let folder = tempfile::tempdir().unwrap();
    let mut command = launch("later", 2, &[], script);
    let output = command.env("AT", folder.path()).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(101), "{said}");
    assert!(said.contains("mpienv: rank 1 on ") && said.contains(" exit code 3: rank 0"), "{said}");
}

#[test]
fn a_script_that_kills_its_command_when_it_is_asked_to_exit_is_not_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let script = "test $RANK = 1 && { until test -e $AT; do sleep 0.01; done; exit 1; }; \
                  (trap '' TERM; exec sleep 3000) & trap 'kill -s KILL $!' TERM; : >$AT; wait; wait $!";
    let mut command = launch("script", 2, &["--grace", "60"], script);
    let output = command.env("AT", folder.path().join("up")).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("mpienv: rank 1 on ") && said.contains("exit code 137"), "{said}");
}

#[test]
fn a_worker_that_was_killed_is_the_cause_however_late_its_death_is_seen() {
    if !is_there("chrt") || !is_there("taskset") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Worker 0 runs only when nothing else wants the core, which others keep busy: it is dying for
    // seconds.
    let script = "test $RANK = 0 && { echo $$ >$AT.new; mv $AT.new $AT; while :; do :; done; }; \
                  until test -e $AT; do sleep 0.01; done; pid=$(cat $AT); \
                  chrt -i -p 0 $pid; taskset -c -p 0 $pid; \
                  for i in 1 2 3 4 5 6 7 8; do \
                      timeout -s KILL 5 taskset -c 0 sh -c 'trap \"\" TERM; while :; do :; done' & done; \
                  sleep 1; kill -s KILL $pid; exit 3";
    let mut command = launch("dying", 2, &["--grace", "60"], script);
    let output = command.env("AT", folder.path().join("pid")).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(137), "{said}");
    assert!(said.contains("mpienv: rank 0 on ") && said.contains("SIGKILL"), "{said}");
    assert_eq!(living("dying"), [""; 0]);
}
