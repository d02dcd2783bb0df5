//! SIGINT and SIGTERM to `mpienv launch`: workers that ignore them are killed, and others have time
//! to save their state.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::launched::{launch, living, master_port, node, piped, signal, text};
use crate::support::processes::until;
use crate::support::tool::is_there;

/// Workers that no signal ends, with a process that has left their group.
const IGNORES: &str =
    "trap '' INT TERM HUP USR1; (setsid sleep 3000 &); echo up; while :; do sleep 3000; done";
/// The signals that end a job, their exit codes, and what mpienv calls them.
const REQUESTS: [(&str, i32, &str); 2] =
    [("INT", 130, "Ctrl-C (SIGINT)"), ("TERM", 143, "SIGTERM")];

/// Starts two workers, and waits until both are running.
#[track_caller]
fn started(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    running(piped(command))
}

/// Waits until two workers are running.
#[track_caller]
fn running(mut child: Child) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.ends_with("] up\n"), "{line:?}");
    }
    (child, stdout)
}

/// Reads stderr up to the line that names the workers that remain.
#[track_caller]
fn read_to_remaining(child: &mut Child) -> (String, BufReader<std::process::ChildStderr>) {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    if line.starts_with("mpienv: nodes 0 and 1 are both on ") {
        line.clear();
        stderr.read_line(&mut line).unwrap();
    }
    assert!(line.contains(", mpienv waits for rank"), "{line:?}");
    (line, stderr)
}

#[test]
fn a_second_signal_kills_workers_that_ignore_the_first() {
    for (name, code, called) in REQUESTS {
        for second in ["INT", "TERM"] {
            let (mut child, _stdout) =
                started(&mut launch("second", 2, &["--grace", "inf"], IGNORES));
            signal(name, &child);
            let (said, mut stderr) = read_to_remaining(&mut child);
            let waits = format!(
                "mpienv: after {called}, mpienv waits for ranks 0-1; a second signal kills them at once\n"
            );
            assert_eq!(said, waits);
            signal(second, &child);
            let mut rest = String::new();
            stderr.read_to_string(&mut rest).unwrap();
            assert_eq!(
                rest,
                format!("mpienv: stopped by {called}; a second signal killed ranks 0-1\n")
            );
            assert_eq!(child.wait().unwrap().code(), Some(code), "{name} {second}");
            assert_eq!(living("second"), [""; 0]);
        }
    }
}

#[test]
fn the_end_of_the_grace_after_a_signal_kills_workers_that_ignore_it() {
    for (name, code, called) in REQUESTS {
        let (child, _stdout) = started(&mut launch("ignored", 2, &["--grace", "1"], IGNORES));
        signal(name, &child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            text(&output.stderr),
            format!("mpienv: stopped by {called}; killed after 1 s: ranks 0-1\n")
        );
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(living("ignored"), [""; 0]);
    }
}

#[test]
fn a_second_signal_ends_the_wait_for_workers_that_ignore_the_end_of_another() {
    let script = format!("test $RANK = 0 || {{ echo up; read line <$FIFO; exit 4; }}; {IGNORES}");
    if !is_there("mkfifo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (mut child, _stdout) =
        started(launch("wait", 2, &["--grace", "inf"], &script).env("FIFO", &fifo));
    fs::write(&fifo, "go\n").unwrap();
    signal("TERM", &child);
    let (_, mut stderr) = read_to_remaining(&mut child);
    signal("TERM", &child);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    // SIGTERM may end the other worker before it fails by itself.
    assert!(matches!(child.wait().unwrap().code(), Some(4 | 143)), "{rest}");
    assert_eq!(living("wait"), [""; 0]);
}

#[test]
fn a_worker_that_saves_its_state_has_time_although_another_has_ended_at_once() {
    for (name, code, called) in REQUESTS {
        // Longer than the others may take after a failure.
        let script = format!(
            "test $RANK = 1 || trap 'sleep 6; echo saved; exit 0' {name}; echo up; while :; do sleep 0.1 & wait; done"
        );
        let (child, mut stdout) = started(&mut launch("saves", 2, &[], &script));
        signal(name, &child);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "[0] saved\n", "{name}");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let said = text(&output.stderr);
        assert!(said.ends_with(&format!("mpienv: stopped by {called}\n")), "{said}");
        assert_eq!(living("saves"), [""; 0]);
    }
}

#[test]
fn ranks_of_python_that_save_their_state_after_ctrl_c_and_fail_then_have_time() {
    if !is_there("python3") {
        return;
    }
    let program = "import os, time\n\
                   try:\n print('up', flush=True); time.sleep(3000)\n\
                   except KeyboardInterrupt:\n\
                   \x20if os.environ['RANK'] == '0': time.sleep(6)\n print('saved', flush=True); raise";
    // dash dies at once, as a shell script's worker does, and leaves Python to save.
    for before in ["exec", "true;"] {
        let script = format!("{before} python3 -c \"{program}\"; true");
        let (child, mut stdout) = started(&mut launch("python", 2, &[], &script));
        signal("INT", &child);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let mut lines: Vec<_> = rest.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["[0] saved", "[1] saved"], "{before}");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    }
}

#[test]
fn the_workers_of_another_node_have_as_much_time_to_save_their_state_as_those_of_the_node_that_was_signaled()
 {
    for (name, code, _) in REQUESTS {
        let port = master_port();
        // Longer than they may take after a failure.
        let script = "test $RANK -lt 2 || trap 'sleep 6; echo saved; exit 0' TERM; \
                      echo up; while :; do sleep 0.1 & wait; done";
        let [(first, _out), (second, mut stdout)] = [0, 1]
            .map(|rank| piped(&mut node("all-save", rank, port, &["--max-restarts", "3"], script)))
            .map(running);
        signal(name, &first);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let mut lines: Vec<_> = rest.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["[2] saved", "[3] saved"], "{name}");
        for child in [first, second] {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        }
    }
}

#[test]
fn a_second_signal_on_one_node_kills_workers_of_others_that_ignore_the_first() {
    let port = master_port();
    let [(mut first, _out), (second, _other)] = [0, 1]
        .map(|rank| {
            piped(&mut node(
                "kill-all",
                rank,
                port,
                &["--max-restarts", "3", "--grace", "inf"],
                IGNORES,
            ))
        })
        .map(running);
    signal("TERM", &first);
    let (_, _stderr) = read_to_remaining(&mut first);
    signal("TERM", &first);
    assert_eq!(first.wait().unwrap().code(), Some(143));
    let output = second.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", text(&output.stderr));
    assert_eq!(living("kill-all"), [""; 0]);
}

#[test]
fn the_time_that_is_named_after_a_signal_is_the_one_that_is_left_since_a_failure() {
    let script = "test $RANK = 1 || { echo up; sleep 1; exit 4; }; \
                  trap 'echo asked' TERM; trap '' INT; echo up; while :; do sleep 0.1 & wait; done";
    let (mut child, mut stdout) = started(&mut launch("left", 2, &["--grace", "30"], script));
    let mut asked = String::new();
    stdout.read_line(&mut asked).unwrap();
    assert_eq!(asked, "[1] asked\n");
    // Makes both times differ.
    thread::sleep(Duration::from_secs(4));
    signal("INT", &child);
    let (said, _stderr) = read_to_remaining(&mut child);
    signal("INT", &child);
    let left =
        said.split_once("SIGKILL ends them in ").and_then(|(_, left)| left.strip_suffix(" s\n"));
    // Four seconds until the signal, and two until the workers are named.
    assert!(left.is_some_and(|left| left.parse::<u32>().unwrap() <= 24), "{said}");
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert_eq!(living("left"), [""; 0]);
}

#[test]
fn a_signal_that_comes_twice_at_once_is_one_request() {
    // `timeout` sends it to its child, and then to the child's group.
    let script = "trap 'echo got; sleep 2; echo saved; exit 0' INT; echo up; while :; do sleep 0.1 & wait; done";
    let (child, mut stdout) = started(&mut launch("twice", 2, &[], script));
    for _ in 0..2 {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    }
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let mut lines: Vec<_> = rest.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] got", "[0] saved", "[1] got", "[1] saved"]);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}

#[test]
fn signals_that_announce_an_end_or_mean_something_else_are_passed_on_and_kill_no_one() {
    for name in ["USR1", "USR2", "HUP"] {
        let script = format!(
            "trap 'echo got' {name}; echo up; for i in 1 2 3 4 5 6; do sleep 0.5 & wait; done; exit 0"
        );
        let (child, mut stdout) = started(&mut launch("announce", 2, &["--grace", "0.2"], &script));
        for _ in 0..2 {
            signal(name, &child);
            thread::sleep(Duration::from_millis(600));
        }
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("[0] got\n") && rest.contains("[1] got\n"), "{name}: {rest}");
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0), "{name}");
    }
}

#[test]
fn a_failure_after_a_signal_names_both() {
    let script =
        "trap 'echo no room >&2; exit 9' TERM; echo up; while :; do sleep 0.1 & wait; done";
    let (child, _stdout) = started(&mut launch("both", 2, &[], script));
    signal("TERM", &child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    let said = text(&output.stderr);
    assert!(said.contains("mpienv: stopped by SIGTERM; rank "), "{said}");
    assert!(
        said.contains(" failed with exit code 9; see the last lines of its stderr above\n"),
        "{said}"
    );
}

#[test]
fn a_worker_that_gets_the_signal_before_mpienv_does_is_stopped_and_has_not_failed() {
    for (name, code, called) in REQUESTS {
        for end in [format!("kill -s {name} $$"), format!("exit {code}")] {
            let folder = tempfile::tempdir().unwrap();
            let script = format!(
                "cd {}; wait_for() {{ until test -e $1; do sleep 0.01; done; }}; \
                 test $RANK = 1 || {{ wait_for up; {end}; }}; \
                 trap 'echo asked; wait_for go; exit 0' TERM; : >up; \
                 while :; do sleep 0.1 & wait; done",
                folder.path().display()
            );
            let mut child = piped(&mut launch("early", 2, &["--grace", "inf"], &script));
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            let mut asked = String::new();
            stdout.read_line(&mut asked).unwrap();
            assert_eq!(asked, "[1] asked\n");
            signal(name, &child);
            fs::write(folder.path().join("go"), "").unwrap();
            let output = child.wait_with_output().unwrap();
            let said = text(&output.stderr);
            assert!(said.ends_with(&format!("mpienv: stopped by {called}\n")), "{end}: {said}");
            assert_eq!(output.status.code(), Some(code), "{end}");
        }
    }
}

#[test]
fn a_signal_to_the_only_worker_is_a_failure_unless_mpienv_soon_gets_it_too() {
    let script = "echo $$; exec sleep 3000";
    let stopped = |also_mpienv: bool| {
        let mut child = piped(&mut launch("soon", 1, &[], script));
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let worker = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        let start = Instant::now();
        kill_process(Pid::from_raw(worker).unwrap(), Signal::TERM).unwrap();
        if also_mpienv {
            thread::sleep(Duration::from_millis(100));
            signal("TERM", &child);
        }
        let took = start.elapsed();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(143));
        (text(&output.stderr), took)
    };
    let (said, _) = stopped(false);
    assert!(said.contains(" failed with signal 15 (SIGTERM); "), "{said}");
    // On a busy machine, the second signal may come too late.
    let in_time = || Some(stopped(true)).filter(|(_, took)| *took < Duration::from_millis(400));
    let (said, _) = (0..100).find_map(|_| in_time()).unwrap();
    assert_eq!(said, "mpienv: stopped by SIGTERM\n");
}

#[test]
fn a_second_signal_on_one_node_ends_the_job_on_all() {
    let port = master_port();
    let options = ["--max-restarts", "3", "--grace", "inf"];
    let script = format!("test $RANK -lt 2 || {{ echo up; exec sleep 3000; }}; {IGNORES}");
    let [(mut first, _out), (second, _other)] =
        [0, 1].map(|rank| piped(&mut node("stop-all", rank, port, &options, &script))).map(running);
    signal("TERM", &first);
    let (_, mut stderr) = read_to_remaining(&mut first);
    signal("TERM", &first);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let expected = "mpienv: stopped by SIGTERM; a second signal killed ranks 0-1\n  1 of 4 attempts used\n  not restarted: ";
    assert!(rest.starts_with(expected), "{rest}");
    assert_eq!(first.wait().unwrap().code(), Some(143));
    let output = second.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).starts_with("mpienv: stopped by SIGTERM on "),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(living("stop-all"), [""; 0]);
}

/// Whether a launch has workers, which may be zombies that it has not reaped.
fn has_workers(launch: &Child) -> bool {
    let parent = launch.id().to_string();
    let folders = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let is_worker = |stat: String| {
        let (name, fields) = stat.rsplit_once(") ")?;
        Some(name.ends_with("(sh") && fields.split(' ').nth(1) == Some(&parent))
    };
    folders.filter_map(is_worker).any(|is_worker| is_worker)
}

#[test]
fn a_second_signal_ends_a_launch_whose_workers_have_finished_before_those_of_other_nodes() {
    let port = master_port();
    let script = "echo up; test $RANK -lt 2 && exec sleep 3000; exit 0";
    let [(other, _out), (mut finished, _gone)] = [0, 1]
        .map(|rank| piped(&mut node("waits", rank, port, &["--max-restarts", "3"], script)))
        .map(running);
    until("the workers of the second node are reaped", || !has_workers(&finished));
    // Signals that follow at once are one request.
    while finished.try_wait().unwrap().is_none() {
        let _ = kill_process(Pid::from_child(&finished), Signal::TERM);
        thread::sleep(Duration::from_millis(300));
    }
    let output = finished.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    assert_eq!(text(&output.stderr), "mpienv: stopped by SIGTERM\n");
    let output = other.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(living("waits"), [""; 0]);
}

#[test]
fn a_grace_longer_than_a_clock_can_tell_is_accepted() {
    let info = mpienv::ClusterInfo::from_vars([("PATH", "/bin")]).unwrap();
    let launch = mpienv::Launch::new(&info, 2).unwrap().grace(Duration::MAX);
    let outcome = launch.run(|worker| {
        let mut command = Command::new("sh");
        command.args(["-c", if worker.rank().is_first() { "exit 3" } else { "exec sleep 3000" }]);
        command
    });
    assert!(matches!(outcome, Err(mpienv::LaunchError::Failed { rank: 0, .. })), "{outcome:?}");
}
