//! Workers and a real terminal.

use std::process::Command;

use crate::support::tool::{clean, is_there};

/// Runs `mpienv` on a separate terminal, types Ctrl-C once mpienv reports that a worker is stopped, and prints the
/// terminal's output. The exit code is mpienv's.
const ON_A_TERMINAL: &str = r"
import os, pty, select, sys
process, terminal = pty.fork()
if process == 0:
    os.execvp('mpienv', ['mpienv'] + sys.argv[1:])
text, typed = b'', False
while select.select([terminal], [], [], 60)[0]:
    try:
        read = os.read(terminal, 4096)
    except OSError:
        break
    if not read:
        break
    text += read
    if text.count(b'is stopped') == 2 and not typed:
        typed = True
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
    if !is_there("python3") {
        return None;
    }
    let path = clean("sh").get_envs().find(|(name, _)| *name == "PATH").unwrap().1.unwrap().to_owned();
    let vars = [&[("TERM", "xterm"), ("PATH", path.to_str().unwrap())], vars].concat();
    let output =
        Command::new("python3").env_clear().envs(vars).args(["-c", ON_A_TERMINAL]).args(words).output().unwrap();
    Some((output.status.code(), String::from_utf8_lossy(&output.stdout).replace('\r', "")))
}

#[test]
fn a_worker_that_the_terminal_stops_is_reported_with_the_reason_and_killed_by_ctrl_c() {
    let cases = [
        ("read line </dev/tty; echo $line", "it reads the terminal (SIGTTIN)"),
        ("stty -F /dev/tty -echo; echo set", "it writes to the terminal or changes its settings (SIGTTOU)"),
    ];
    for (script, reason) in cases {
        let words = ["launch", "--nproc-per-node", "2", "--", "sh", "-c", script];
        let Some((code, text)) = on_a_terminal(&words) else { return };
        for rank in 0..2 {
            let is_reported = text
                .lines()
                .any(|line| line.starts_with(&format!("mpienv: rank {rank} (process ")) && line.contains(reason));
            assert!(is_reported, "{text}");
        }
        assert_eq!(code, Some(130), "{text}");
    }
}

#[test]
fn a_worker_that_the_terminal_stops_again_after_ctrl_c_is_killed_after_the_grace() {
    let ask = "import getpass; getpass.getpass()";
    let words = ["launch", "--nproc-per-node", "2", "--grace", "1", "--", "python3", "-c", ask];
    let Some((code, text)) = on_a_terminal(&words) else { return };
    assert!(text.contains("it was asked to end, and SIGKILL ends it in 1 s"), "{text}");
    assert_eq!(code, Some(137), "{text}");
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
        assert!(code == Some(0) && text.ends_with(&format!("set the variables, type {line}\n")), "{text}");
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
    for words in
        [&["show"][..], &["doctor"], &["show", "--help"], &["show", "--bad"], &["exec", "--", "no-such-program"]]
    {
        let Some((_, text)) = on_a_terminal(words) else { return };
        assert!(text.contains('\u{1b}'), "{words:?}: {text}");
        let (_, text) = on_a_terminal_with(words, RANK_0).unwrap();
        assert!(!text.is_empty() && !text.contains('\u{1b}'), "{words:?}: {text}");
        let (_, text) = on_a_terminal_with(words, &[RANK_0, &[("CLICOLOR_FORCE", "1")]].concat()).unwrap();
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
    mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").env("TERM", "xterm");
    let output = mpirun.args(["-n", "2", "--oversubscribe", "mpienv", "doctor", "--timeout", "0"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("open-mpi") && !text.contains('\u{1b}'), "{text}");
}
