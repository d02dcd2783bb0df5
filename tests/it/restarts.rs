//! `mpienv launch --max-restarts`: what restarts, what does not, and the output that remains.

mod nodes;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::launched::{launch, living, piped, signal, sorted, text};
use crate::support::tool::clean;

/// Waits until both workers of a node are running.
#[track_caller]
fn wait_for_two(child: &mut Child) {
    if !has_two(child) {
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        panic!("{:?}: {said}", child.wait());
    }
}

/// The same; returns whether both have run.
fn has_two(child: &mut Child) -> bool {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    (0..2).all(|_| stdout.read_line(&mut String::new()).unwrap() > 0)
}

/// Reads up to a line that contains this text.
#[track_caller]
fn read_to(stdout: &mut impl BufRead, wanted: &str) {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "no {wanted}");
    }
}

fn said(output: &Output) -> String {
    text(&output.stderr)
}

#[test]
fn a_worker_that_fails_starts_all_workers_again_until_they_succeed() {
    let script = "echo $RANK/$WORLD_SIZE $MPIENV_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT; \
                  test $MPIENV_RESTART_COUNT = 2 && exit 0; test $RANK = 1 && kill -s KILL $$; exec sleep 3000";
    let output = launch("again", 2, &["--max-restarts", "5"], script).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let expected =
        ["[0] 0/2 0 0", "[0] 0/2 1 1", "[0] 0/2 2 2", "[1] 1/2 0 0", "[1] 1/2 1 1", "[1] 1/2 2 2"]
            .map(str::to_owned);
    // A worker may be stopped before it prints anything.
    let lines = sorted(&output.stdout);
    assert!(lines.iter().all(|line| expected.contains(line)), "{lines:?}");
    assert!(lines.contains(&expected[2]) && lines.contains(&expected[5]), "{lines:?}");
    let said = said(&output);
    let [first, second] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(first.starts_with("mpienv: attempt 0 failed: rank 1 on "), "{said}");
    assert!(
        first.contains(": signal 9 (SIGKILL) after ")
            && first.ends_with("; attempt 1 starts in 0.5 s"),
        "{said}"
    );
    assert!(
        second.starts_with("mpienv: attempt 1 failed: ")
            && second.ends_with("; attempt 2 starts in 1 s"),
        "{said}"
    );
    assert_eq!(living("again"), [""; 0]);
}

#[test]
fn the_last_exit_code_is_kept_and_the_report_names_every_attempt() {
    let script = "test $RANK = 1 || exec sleep 3000; seq 1 5 >&2; sleep 0.2; exit $((MPIENV_RESTART_COUNT + 6))";
    let output = launch("kept", 2, &["--max-restarts", "1"], script).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let text = said(&output);
    let above = " failed with exit code 7; see the last lines of its stderr above\n";
    let (_, report) = text.split_once(above).unwrap_or_else(|| panic!("{text}"));
    let lines: Vec<_> = report.lines().collect();
    assert!(
        lines[0].starts_with("  failed ") && lines[0].ends_with(" the other workers:"),
        "{text}"
    );
    assert_eq!(
        lines[1..3],
        ["    stopped with SIGTERM: rank 0", "  2 of 2 attempts used"],
        "{text}"
    );
    assert!(
        lines[3].starts_with("    attempt 0: rank 1 on ") && lines[3].ends_with(", stderr: 5"),
        "{text}"
    );
    assert!(lines[3].contains(": exit code 6 after "), "{text}");
    assert_eq!(lines.len(), 4, "{text}");
    let quiet = launch("kept", 2, &["--max-restarts", "1", "-q"], script).output().unwrap();
    assert!(said(&quiet).ends_with(above), "{}", said(&quiet));
    assert_eq!(living("kept"), [""; 0]);
}

#[test]
fn a_platforms_count_of_restarts_may_be_as_high_as_a_number_can_be() {
    let mut command = launch("high", 1, &["--max-restarts", "1"], "exit 3");
    let output = command.env("MPIENV_RESTART_COUNT", u32::MAX.to_string()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("    attempt 4294967295: rank 0 on "), "{}", said(&output));
}

#[test]
fn a_launch_goes_on_and_restarts_after_its_program_was_replaced() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| folder.path().join(name);
    let [program, go] = ["mpienv", "go"].map(at);
    fs::hard_link(env!("CARGO_BIN_EXE_mpienv"), &program).unwrap();
    let script = r#"echo attempt $MPIENV_RESTART_COUNT; test $MPIENV_RESTART_COUNT = 1 && exit
                    while ! test -e "$1"; do sleep 0.1; done; exit 5"#;
    let mut command = clean(program.to_str().unwrap());
    command.args(["launch", "--nproc-per-node", "1", "--max-restarts", "1", "--"]);
    command.args(["sh", "-c", script, "sh"]).arg(&go);
    let mut child = piped(&mut command);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    read_to(&mut stdout, "attempt 0");
    // As an upgrade does it.
    fs::write(at("new"), "another version").unwrap();
    fs::rename(at("new"), &program).unwrap();
    fs::write(&go, "").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((rest.as_str(), output.status.code()), ("[0] attempt 1\n", Some(0)), "{output:?}");
}

#[test]
fn nothing_restarts_after_a_usage_error_or_a_command_that_cannot_start() {
    for (code, reason) in
        [(2, "an invalid command line"), (126, "cannot be started"), (127, "cannot be started")]
    {
        let output =
            launch("final", 1, &["--max-restarts", "3"], &format!("exit {code}")).output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let said = said(&output);
        assert!(
            said.contains("  1 of 4 attempts used\n  not restarted: exit code ")
                && said.contains(reason),
            "{said}"
        );
    }
    let help = clean("mpienv").args(["launch", "--help"]).output().unwrap();
    let help = text(&help.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("Nothing restarts after exit codes 2, 126 and 127,"), "{help}");
    let guide = include_str!("../../src/guide/launch.md");
    let guide = guide.split_whitespace().collect::<Vec<_>>().join(" ");
    let of_guide =
        "Nothing restarts after exit codes 2 (usage), 126 and 127 (the command cannot be started)";
    assert!(guide.contains(of_guide));
    let mut command = clean("mpienv");
    let output = command
        .args(["launch", "--nproc-per-node", "1", "--max-restarts", "3", "--", "/"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(!said(&output).contains("attempt 1"), "{}", said(&output));
}

#[test]
fn words_that_do_not_fit_the_port_of_an_attempt_are_the_error() {
    // Two attempts have two ports, and the sum is valid for the first port only.
    let mut command = clean("mpienv");
    command.args(["launch", "--template", "--port-range", "64000-64001", "--nproc-per-node", "1"]);
    command.args(["--max-restarts", "1", "--", "sh", "-c", "exit 1", "{master_port+1535}"]);
    let output = command.output().unwrap();
    let said = said(&output);
    let end = "mpienv: \"{master_port+1535}\": 64001 + 1535 is not a number from 1 to 65535; ";
    assert!(said.lines().last().is_some_and(|line| line.starts_with(end)), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn nothing_restarts_after_a_signal_that_ends_the_job_or_announces_its_end() {
    for name in ["TERM", "INT", "HUP", "USR1"] {
        let script = format!("trap 'exit 9' {name}; echo up; while :; do sleep 0.1 & wait; done");
        let (mark, options) = (format!("ended-{name}"), ["--max-restarts", "3", "--grace", "3000"]);
        let mut child = piped(&mut launch(&mark, 1, &options, &script));
        read_to(&mut BufReader::new(child.stdout.take().unwrap()), "up");
        signal(name, &child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(9), "{name}: {}", said(&output));
        let reason =
            "  1 of 4 attempts used\n  not restarted: mpienv received a signal that ends the job\n";
        assert!(said(&output).ends_with(reason), "{name}: {}", said(&output));
        assert_eq!(living(&mark), [""; 0]);
    }
    // SIGUSR2 does not prevent restarts.
    let script = "test $MPIENV_RESTART_COUNT = 1 && exit; trap 'exit 9' USR2; echo up; while :; do sleep 0.1 & wait; done";
    let mut child = piped(&mut launch("USR2", 1, &["--max-restarts", "3"], script));
    read_to(&mut BufReader::new(child.stdout.take().unwrap()), "up");
    signal("USR2", &child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn nothing_restarts_without_a_reader_of_the_output() {
    // Like Python, which ignores SIGPIPE.
    let script = "trap '' PIPE; while echo up; do sleep 0.1; done 2>&-; exit 1";
    let mut child = piped(&mut launch("reader", 1, &["--max-restarts", "3"], script));
    read_to(&mut BufReader::new(child.stdout.take().unwrap()), "up");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).ends_with("\n  not restarted: nothing reads the output of the workers\n"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_signal_during_the_pause_ends_the_job_with_the_last_exit_code() {
    // Returns whether the launch ended within the pause.
    let ends_at_once = || {
        let mut child = piped(&mut launch("pause", 1, &["--max-restarts", "9"], "exit 7"));
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        read_to(&mut stderr, "attempt 5 starts in 8 s");
        let start = Instant::now();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
        let took = start.elapsed();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        assert!(
            rest.contains(" failed with exit code 7; ")
                && rest.contains("  5 of 10 attempts used\n"),
            "{rest}"
        );
        assert_eq!(living("pause"), [""; 0]);
        took < Duration::from_secs(8)
    };
    // A busy machine may take longer.
    assert!((0..9).any(|_| ends_at_once()));
}

#[test]
fn each_attempt_has_its_own_folder_words_and_port() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = clean("mpienv");
    command.args([
        "launch",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--template",
        "--log-dir",
    ]);
    let script = "echo $MASTER_PORT; exit $((1 - $0))";
    let output =
        command.arg(folder.path()).args(["--", "sh", "-c", script, "{restart}"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let port = |attempt: u32, rank: u32| {
        fs::read_to_string(folder.path().join(format!("attempt_{attempt}/rank.{rank}/stdout")))
            .unwrap()
    };
    assert_eq!(port(1, 0), port(1, 1));
    assert!(["", &port(1, 0)].iter().all(|other| *other != port(0, 0) + &port(0, 1)));
    assert_ne!(port(0, 0), port(1, 0));
    // Without restarts, the folders do not include the attempt.
    let output = clean("mpienv")
        .args(["launch", "--nproc-per-node", "1", "--log-dir"])
        .arg(folder.path())
        .args(["--", "sh", "-c", "echo x${MPIENV_RESTART_COUNT}${TORCHELASTIC_RESTART_COUNT}"])
        .output();
    assert!(output.unwrap().status.success());
    assert_eq!(fs::read_to_string(folder.path().join("rank.0/stdout")).unwrap(), "x\n");
}
