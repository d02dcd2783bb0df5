//! `mpienv launch --stall-timeout`: which jobs hang, what is reported of their ranks, and that
//! nothing of them remains.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use super::collective::example;
use crate::support::launched::{launch, living, master_port, node, piped, text};
use crate::support::python::from_python;
use crate::support::script::script;
use crate::support::timeout::in_time;
use crate::support::tool::is_there;

/// A worker that says it runs, and then waits for another process.
const WAITS: &str = "echo up $RANK; exec cat $FIFO";

/// A folder with a FIFO that no process writes to.
fn fifo() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("fifo")).status().unwrap().success());
    folder
}

fn said(output: &Output) -> String {
    text(&output.stderr)
}

/// Runs a job on this host with longer and longer timeouts, until its workers were in time for all
/// that is `wanted` on stderr.
fn in_time_on_one(job: impl Fn(&str) -> Command, wanted: &[&str]) -> Output {
    let run = |timeout: u32| job(&timeout.to_string()).output().unwrap();
    in_time(run, |output| says_all(output, wanted))
}

fn says_all(output: &Output, wanted: &[&str]) -> bool {
    let text = said(output);
    wanted.iter().all(|wanted| text.contains(wanted))
}

/// The same on two nodes; returns the output of both.
fn in_time_on_two(job: impl Fn(u32, u16, &str) -> Command, wanted: &[&str]) -> [Output; 2] {
    let run = |timeout: u32| {
        let port = master_port();
        let nodes = [0, 1].map(|rank| piped(&mut job(rank, port, &timeout.to_string())));
        let ends = nodes.map(|node| thread::spawn(|| node.wait_with_output().unwrap()));
        ends.map(|end| end.join().unwrap())
    };
    in_time(run, |outputs| says_all(&outputs[0], wanted))
}

#[test]
fn of_two_nodes_the_rank_that_a_signal_has_stopped_is_named_before_anything_ends() {
    let folder = fifo();
    let script = format!("test $RANK = 3 && {{ echo up 3; kill -s STOP $$; }}; {WAITS}");
    let job = |rank, port, timeout: &str| {
        let mut command = node("stop", rank, port, &["--stall-timeout", timeout], &script);
        command.env("FIFO", folder.path().join("fifo"));
        command
    };
    let odd = "  rank 3 differs from the others: stopped by a signal\n    rank 3 on ";
    let outputs = in_time_on_two(job, &[odd, "  ranks 0-2: waiting in openat"]);
    let text = said(&outputs[0]);
    assert!(text.contains("mpienv: the job has stalled: no rank has written "), "{text}");
    assert!(text.contains(odd) && text.contains(" (sh): last output "), "{text}");
    for rank in 0..4 {
        assert!(text.contains(&format!("; last line: up {rank}\n")), "{text}");
    }
    let (report, end) =
        text.split_once("mpienv: the job stalled: no rank was active for ").unwrap();
    assert!(report.contains("CPU time 0."), "{text}");
    assert!(end.contains(" s: rank 3 on ") && end.contains("; ranks 0-2: waiting in "), "{text}");
    assert!(end.contains(" after the attempt started; the workers:\n"), "{text}");
    let other = said(&outputs[1]);
    assert!(other.contains("mpienv: the job stalled: no rank was active for "), "{other}");
    assert!(!other.contains("has stalled"), "{other}");
    for output in &outputs {
        assert_eq!(output.status.code(), Some(124), "{}", said(output));
    }
    assert_eq!(living("stop"), [""; 0]);
}

#[test]
fn a_rank_that_sleeps_is_named_and_the_file_has_every_rank() {
    let (folder, logs) = (fifo(), tempfile::tempdir().unwrap());
    let script = format!("test $RANK = 1 && {{ echo one; sleep 3000; exit 0; }}; {WAITS}");
    let job = |timeout: &str| {
        let logs = logs.path().to_str().unwrap();
        let options = ["--stall-timeout", timeout, "--log-dir", logs];
        let mut command = launch("sleep", 3, &options, &script);
        command.env("FIFO", folder.path().join("fifo"));
        command
    };
    let odd = "  rank 1 differs from the others: sleeping in clock_nanosleep";
    let output = in_time_on_one(job, &[odd, "  ranks 0, 2: waiting in openat"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(124), "{text}");
    // The shell before it is not what hangs.
    assert!(
        text.contains(" (sleep): last output ") && text.contains("; last line: one\n"),
        "{text}"
    );
    assert!(text.contains("  ranks 0, 2: waiting in openat"), "{text}");
    let json = fs::read(logs.path().join("stall.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["differ"], serde_json::json!([1]));
    let ranks = json["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3);
    for (rank, line, state) in [(0, "up 0", "waits"), (1, "one", "sleeps"), (2, "up 2", "waits")] {
        let found = &ranks[rank];
        assert_eq!((&found["last_line"], &found["state"]), (&line.into(), &state.into()), "{json}");
        assert!(found["process"].as_u64().is_some_and(|process| process > 1), "{json}");
        assert!(found["cpu_seconds"].as_f64().is_some_and(|time| time < 1.0), "{json}");
    }
    assert_eq!(living("sleep"), [""; 0]);
}

#[test]
fn a_rank_that_never_enters_an_all_reduce_is_named() {
    let rank = example("collective_rank").display().to_string();
    let odd = "  rank 2 differs from the others: sleeping in clock_nanosleep";
    let script = |backend| format!("exec {rank} 1000 1200 {backend} 2");
    let shared = script("shared-memory");
    let job = |timeout: &str| launch("absent", 4, &["--stall-timeout", timeout], &shared);
    let wanted = [odd, "  ranks 0-1, 3: waiting in futex"];
    let text = said(&in_time_on_one(job, &wanted));
    assert!(wanted.iter().all(|wanted| text.contains(wanted)), "{text}");
    let tcp = script("tcp");
    let job =
        |rank, port, timeout: &str| node("absent", rank, port, &["--stall-timeout", timeout], &tcp);
    let wanted = [odd, "  ranks 0-1, 3: waiting in epoll_wait"];
    let [first, second] = in_time_on_two(job, &wanted);
    let text = said(&first);
    assert!(wanted.iter().all(|wanted| text.contains(wanted)), "{text}");
    assert_eq!((first.status.code(), second.status.code()), (Some(124), Some(124)), "{text}");
    assert_eq!(living("absent"), [""; 0]);
}

#[test]
fn a_job_of_which_one_rank_shows_a_sign_of_life_in_time_is_left_alone() {
    // Ten signs, four in each timeout.
    let signs = |timeout: u32, sign: &str| {
        let pause = f64::from(timeout) / 4.0;
        format!(
            "test $RANK = 1 || exec sleep {}; for _ in 0 1 2 3 4 5 6 7 8 9; do {sign}; sleep {pause}; done",
            10.0 * pause
        )
    };
    let is_left_alone = |mark: &str, options: &[&str], sign: &str| {
        let run = |timeout: u32| {
            let seconds = timeout.to_string();
            let options = [&["--stall-timeout", &seconds], options].concat();
            launch(mark, 2, &options, &signs(timeout, sign)).output().unwrap()
        };
        let output = in_time(run, |output| output.status.success());
        assert_eq!((output.status.code(), said(&output)), (Some(0), String::new()), "{sign}");
        assert_eq!(living(mark), [""; 0]);
    };
    let logs = tempfile::tempdir().unwrap();
    let to_file = ["--log-dir", logs.path().to_str().unwrap()];
    thread::scope(|scope| {
        scope.spawn(|| is_left_alone("stall-lines", &[], "echo"));
        // Not a whole line.
        scope.spawn(|| is_left_alone("bytes", &[], "printf ."));
        scope.spawn(|| is_left_alone("files", &to_file, "printf . >&2"));
        scope.spawn(|| is_left_alone("touch", &[], "touch $MPIENV_HEARTBEAT_FILE"));
    });
}

#[test]
fn a_node_on_which_nothing_is_written_does_not_stall_a_job_in_which_another_writes() {
    // The second node is silent for three timeouts; then the first one finishes, and the second one
    // has one more timeout.
    let folder = fifo();
    let job = |rank, port, timeout: &str| {
        let pause: f64 = timeout.parse::<f64>().unwrap() / 4.0;
        let script = format!(
            "test $RANK -lt 2 || exec cat $FIFO; for _ in 0 1 2 3 4 5 6 7 8 9 10 11; do echo; sleep {pause}; done; \
             echo last of $RANK >&2"
        );
        let mut command = node("quiet", rank, port, &["--stall-timeout", timeout], &script);
        command.env("FIFO", folder.path().join("fifo"));
        command
    };
    let [first, second] = in_time_on_two(job, &["] last of 0\n", "] last of 1\n"]);
    let text = said(&first);
    let (before, report) = text.split_once("mpienv: the job has stalled: ").unwrap();
    assert!(before.contains("last of 0\n") && before.contains("last of 1\n"), "{text}");
    // Only ranks that run are described.
    assert!(report.contains("  ranks 2-3: waiting in openat"), "{text}");
    assert!(!report.contains("rank 0") && report.contains(": no output, "), "{text}");
    assert_eq!((first.status.code(), second.status.code()), (Some(124), Some(124)), "{text}");
    assert_eq!(living("quiet"), [""; 0]);
}

#[test]
fn a_stall_is_a_failure_after_which_the_workers_start_again() {
    let folder = fifo();
    let logs = tempfile::tempdir().unwrap();
    let job = |timeout: &str| {
        let logs = logs.path().to_str().unwrap();
        let options = ["--stall-timeout", timeout, "--max-restarts", "1", "--log-dir", logs];
        let script = format!("test $MPIENV_RESTART_COUNT = 1 && exit 0; {WAITS}");
        let mut command = launch("restart", 2, &options, &script);
        command.env("FIFO", folder.path().join("fifo"));
        command
    };
    let output = in_time_on_one(job, &[": ranks 0-1: waiting in openat"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("mpienv: attempt 0 failed: stalled, silent for "), "{text}");
    assert!(text.ends_with("; attempt 1 starts in 0.5 s\n"), "{text}");
    assert!(logs.path().join("attempt_0/stall.json").is_file());
    assert!(!logs.path().join("attempt_1/stall.json").exists());
    assert_eq!(living("restart"), [""; 0]);
}

#[test]
fn output_that_nothing_reads_is_not_a_stall() {
    let run = |timeout: u32| {
        let options = ["--stall-timeout", &timeout.to_string()];
        // More than any pipe holds.
        let child = piped(&mut launch("slow", 1, &options, "yes | head -c 1000000"));
        thread::sleep(Duration::from_secs(3 * u64::from(timeout)));
        child.wait_with_output().unwrap()
    };
    let output = in_time(run, |output| output.status.success());
    assert_eq!((output.status.code(), said(&output)), (Some(0), String::new()));
    // Each line of two bytes has a prefix of four.
    assert_eq!(output.stdout.len(), 3_000_000);
}

#[test]
fn nodes_with_different_stall_timeouts_are_named_with_both() {
    for (options, of_second) in [
        (&["--max-restarts", "1", "--stall-timeout", "2m"][..], "--stall-timeout 120"),
        (&["--max-restarts", "1"][..], "no --stall-timeout"),
    ] {
        let port = master_port();
        let first = ["--max-restarts", "1", "--stall-timeout", "60"];
        let nodes = [(0, &first[..]), (1, options)]
            .map(|(rank, options)| piped(&mut node("other", rank, port, options, "echo up")));
        for output in nodes.map(|node| node.wait_with_output().unwrap()) {
            let said = said(&output);
            assert_eq!(output.status.code(), Some(3), "{said}");
            assert!(output.stdout.is_empty(), "a worker has started: {said}");
            assert!(said.contains(") has --stall-timeout 60, and node 1 ("), "{said}");
            let end = format!(") has {of_second}; pass one of the two on every node\n");
            assert!(said.ends_with(&end), "{said}");
        }
    }
}

#[test]
fn a_stall_timeout_is_a_time_above_0() {
    let run = |time: &str| launch("time", 1, &["--stall-timeout", time], "true").output().unwrap();
    for time in ["90", "90s", "10m", "2h", "0.5h", "500ms", "inf"] {
        assert_eq!(run(time).status.code(), Some(0), "{time}");
    }
    for time in ["0", "-1", "m", "10 min", "nan", ""] {
        let output = run(time);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{time}: {said}");
        assert!(
            said.contains("expected a time above 0, such as 90 (seconds), 500ms, 10m or 2h"),
            "{said}"
        );
    }
}

/// A Python program whose rank 1 waits for a queue, and the others for an event.
const PYTHON: &str = "import os, queue, threading
def receive():
    queue.Queue().get()
def enter():
    threading.Event().wait()
print('up', flush=True)
receive() if os.environ['RANK'] == '1' else enter()
";

/// A launch of this program, with the folder first on PATH.
fn python(mark: &str, timeout: &str, folder: &Path) -> Command {
    let script = format!("exec python3 {}/hangs.py", folder.display());
    fs::write(folder.join("hangs.py"), PYTHON).unwrap();
    let mut command = launch(mark, 3, &["--stall-timeout", timeout], &script);
    let old = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
    let old: Vec<_> = std::env::split_paths(old.unwrap()).collect();
    let path = std::iter::once(folder.to_owned()).chain(old);
    command.env("PATH", std::env::join_paths(path).unwrap());
    command
}

#[test]
fn where_python_code_waits_tells_the_odd_rank_from_the_others() {
    let Some(py_spy) = from_python("pyspy", "py-spy").filter(|_| is_there("python3")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(py_spy, folder.path().join("py-spy")).unwrap();
    let job = |timeout: &str| python("spy", timeout, folder.path());
    let odd = "  rank 1 differs from the others: waiting in futex";
    let wanted = [odd, "  ranks 0, 2: waiting in futex"];
    let text = said(&in_time_on_one(job, &wanted));
    assert!(wanted.iter().all(|wanted| text.contains(wanted)), "{text}");
    assert!(text.contains("\n      in receive (hangs.py:3)\n"), "{text}");
    assert!(text.contains("\n      in enter (hangs.py:5)\n"), "{text}");
    assert_eq!(living("spy"), [""; 0]);
}

#[test]
fn a_report_without_py_spy_says_how_to_install_it() {
    if !is_there("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let job = |timeout: &str| {
        let mut command = python("no-spy", timeout, folder.path());
        let path = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
        let folders = std::env::split_paths(path.unwrap());
        let others: Vec<_> = folders.filter(|folder| !folder.join("py-spy").exists()).collect();
        command.env("PATH", std::env::join_paths(others).unwrap());
        command
    };
    let text = said(&in_time_on_one(job, &["  ranks 0-2: waiting in futex"]));
    assert_eq!(
        text.matches("py-spy is not on PATH; after `pip install py-spy`").count(),
        1,
        "{text}"
    );
    assert_eq!(living("no-spy"), [""; 0]);
}

#[test]
fn a_py_spy_that_hangs_delays_the_report_but_does_not_stop_it() {
    if !is_there("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("py-spy"), "#!/bin/sh\nexec sleep 3000\n");
    let job = |timeout: &str| python("slow-spy", timeout, folder.path());
    let text = said(&in_time_on_one(job, &["  ranks 0-2: waiting in futex"]));
    assert!(
        text.contains("  ranks 0-2: waiting in futex") && !text.contains("      in "),
        "{text}"
    );
    assert_eq!(living("slow-spy"), [""; 0]);
}
