//! Workers and a real terminal.

use std::process::Command;

use crate::support::tool::{clean, is_there};

/// Runs `mpienv` on a separate terminal, and prints the terminal's output. Types Ctrl-C each time
/// that mpienv has printed the next of these texts, separated by `|`, as often as the number of
/// workers. The exit code is mpienv's.
const ON_A_TERMINAL: &str = r"
import os, pty, select, sys
process, terminal = pty.fork()
if process == 0:
    os.execvp('mpienv', ['mpienv'] + sys.argv[3:])
text, marks, count = b'', [mark for mark in sys.argv[1].encode().split(b'|') if mark], int(sys.argv[2])
while select.select([terminal], [], [], 180)[0]:
    try:
        read = os.read(terminal, 4096)
    except OSError:
        break
    if not read:
        break
    text += read
    if marks and text.count(marks[0]) == count:
        marks.pop(0)
        count = 1
        os.write(terminal, b'\x03')
else:
    os.kill(process, 9)
sys.stdout.buffer.write(text)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
";

fn on_a_terminal(words: &[&str]) -> Option<(Option<i32>, String)> {
    on_a_terminal_with(words, &[])
}

fn on_a_terminal_with(words: &[&str], vars: &[(&str, &str)]) -> Option<(Option<i32>, String)> {
    typed("", words, vars)
}

/// `marks`: the texts after which Ctrl-C is typed. The first one comes from each of two workers.
fn with_ctrl_c(marks: &str, words: &[&str]) -> Option<(Option<i32>, String)> {
    typed(marks, words, &[("NO_COLOR", "1")])
}

fn typed(marks: &str, words: &[&str], vars: &[(&str, &str)]) -> Option<(Option<i32>, String)> {
    if !is_there("python3") {
        return None;
    }
    let path =
        clean("sh").get_envs().find(|(name, _)| *name == "PATH").unwrap().1.unwrap().to_owned();
    let vars = [&[("TERM", "xterm"), ("PATH", path.to_str().unwrap())], vars].concat();
    let mut command = Command::new("python3");
    command.env_clear().envs(vars).args(["-c", ON_A_TERMINAL, marks, "2"]).args(words);
    let output = command.output().unwrap();
    Some((output.status.code(), String::from_utf8_lossy(&output.stdout).replace('\r', "")))
}

/// What a worker's stop is reported with.
const STOPPED: &str = "is stopped";

#[test]
fn a_worker_that_the_terminal_stops_is_reported_with_the_reason_and_killed_by_ctrl_c() {
    let cases = [
        ("read line </dev/tty; echo $line", "it reads the terminal (SIGTTIN)"),
        (
            "stty -F /dev/tty -echo; echo set",
            "it writes to the terminal or changes its settings (SIGTTOU)",
        ),
    ];
    for (script, reason) in cases {
        let words = ["launch", "--nproc-per-node", "2", "--", "sh", "-c", script];
        let Some((code, text)) = with_ctrl_c(STOPPED, &words) else { return };
        for rank in 0..2 {
            let is_reported = text.lines().any(|line| {
                line.starts_with(&format!("mpienv: rank {rank} (process ")) && line.contains(reason)
            });
            assert!(is_reported, "{text}");
        }
        assert_eq!(code, Some(130), "{text}");
    }
}

#[test]
fn a_worker_that_the_terminal_stops_again_after_ctrl_c_is_killed_after_the_grace() {
    let ask = "import getpass; getpass.getpass()";
    let words = ["launch", "--nproc-per-node", "2", "--grace", "1", "--", "python3", "-c", ask];
    let Some((code, text)) = with_ctrl_c(STOPPED, &words) else { return };
    assert!(text.contains("it was asked to end, and SIGKILL ends it in 1 s"), "{text}");
    assert!(
        text.contains("mpienv: stopped by Ctrl-C (SIGINT); killed after 1 s: ranks 0-1\n"),
        "{text}"
    );
    assert_eq!(code, Some(130), "{text}");
    // Or never.
    let words = ["launch", "--nproc-per-node", "2", "--grace", "inf", "--", "python3", "-c", ask];
    let marks = format!("{STOPPED}|mpienv waits for");
    let Some((_, text)) = with_ctrl_c(&marks, &words) else { return };
    assert!(text.contains("it was asked to end\n") && !text.contains("SIGKILL"), "{text}");
}

#[test]
fn a_program_that_ctrl_c_interrupts_shows_its_traceback_once_and_no_failure() {
    // A signal that comes just before Python's sleep is handled only after it.
    let script =
        "import time; print('up', flush=True); all(time.sleep(0.1) is None for _ in iter(int, 1))";
    let words = ["launch", "--nproc-per-node", "2", "--", "python3", "-c", script];
    let Some((code, text)) = with_ctrl_c("] up", &words) else { return };
    assert_eq!(code, Some(130), "{text}");
    assert!(text.ends_with("\nmpienv: stopped by Ctrl-C (SIGINT)\n"), "{text}");
    assert!(text.matches("KeyboardInterrupt").count() <= 2 && !text.contains("failed"), "{text}");
}

#[test]
fn a_second_ctrl_c_kills_workers_that_ignore_the_first() {
    let script = "trap '' INT TERM; echo up; while :; do sleep 600; done";
    let words = ["launch", "--nproc-per-node", "2", "--grace", "inf", "--", "sh", "-c", script];
    let waits = "mpienv: after Ctrl-C (SIGINT), mpienv waits for ranks 0-1; a second signal kills them at once\n";
    let Some((code, text)) = with_ctrl_c("] up|mpienv waits for", &words) else { return };
    assert!(
        text.ends_with("mpienv: stopped by Ctrl-C (SIGINT); a second signal killed ranks 0-1\n"),
        "{text}"
    );
    assert!(text.contains(waits), "{text}");
    assert_eq!(code, Some(130), "{text}");
}

#[test]
fn export_on_a_terminal_says_which_line_sets_the_variables() {
    for (options, line) in [
        (&[][..], "eval \"$(mpienv export)\""),
        (&["--for", "jax"], "eval \"$(mpienv export --for jax)\""),
        (&["--shell", "fish"], "mpienv export --shell fish | source"),
        (&["--shell", "csh"], "eval \"`mpienv export --shell csh`\""),
    ] {
        let words = [&["export"], options].concat();
        let Some((code, text)) = on_a_terminal(&words) else { return };
        assert!(
            code == Some(0) && text.ends_with(&format!("set the variables, type {line}\n")),
            "{text}"
        );
        let (_, text) = on_a_terminal(&[&words[..], &["-q"]].concat()).unwrap();
        assert!(text.contains("MASTER_PORT") && !text.contains("type "), "{text}");
        let (_, text) = on_a_terminal_with(&words, RANK_0).unwrap();
        assert!(text.contains("MASTER_PORT") && !text.contains("type "), "{text}");
    }
    let (_, text) = on_a_terminal(&["export", "--shell", "json"]).unwrap();
    assert!(text.trim_end().ends_with('}'), "{text}");
}

/// The only rank, as mpirun starts it.
const RANK_0: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "1"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
];

#[test]
fn colors_are_for_people_and_not_for_ranks_whose_terminal_is_the_launchers() {
    for words in [
        &["show"][..],
        &["doctor"],
        &["show", "--help"],
        &["show", "--bad"],
        &["exec", "--", "no-such-program"],
    ] {
        let Some((_, text)) = on_a_terminal(words) else { return };
        assert!(text.contains('\u{1b}'), "{words:?}: {text}");
        let (_, text) = on_a_terminal_with(words, RANK_0).unwrap();
        assert!(!text.is_empty() && !text.contains('\u{1b}'), "{words:?}: {text}");
        let (_, text) =
            on_a_terminal_with(words, &[RANK_0, &[("CLICOLOR_FORCE", "1")]].concat()).unwrap();
        assert!(text.contains('\u{1b}'), "{words:?}: {text}");
        let (_, text) = on_a_terminal_with(words, &[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap();
        assert!(text.contains('\u{1b}'), "a person may set these: {words:?}: {text}");
    }
}

#[test]
fn what_mpiruns_ranks_print_into_a_file_has_no_colors() {
    if !is_there("mpirun") {
        return;
    }
    let mut mpirun = clean("mpirun");
    mpirun
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("TERM", "xterm");
    let output = mpirun
        .args(["-n", "2", "--oversubscribe", "mpienv", "doctor", "--timeout", "0"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("open-mpi") && !text.contains('\u{1b}'), "{text}");
}
