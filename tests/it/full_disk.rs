//! Output that cannot be written is never lost silently.

use std::process::{Command, Output};

use crate::support::namespace::unshared;
use crate::support::tool::clean;

/// The output of bash for a script; `/dev/full` acts as a full disk.
fn bash(script: &str) -> Output {
    clean("bash").args(["-c", script]).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const NO_ROOM: &str = "mpienv: cannot write stdout: No space left on device";

#[test]
fn a_launch_whose_stdout_has_no_room_says_so_and_fails() {
    for worker in ["echo x", "yes", "sh -c 'echo x; sleep 3000'"] {
        let output =
            bash(&format!("mpienv launch --nproc-per-node 2 --grace 1 -- {worker} >/dev/full"));
        assert_eq!(output.status.code(), Some(1), "{worker}: {output:?}");
        assert!(said(&output).starts_with(NO_ROOM), "{worker}: {}", said(&output));
        assert!(!said(&output).contains("SIGPIPE"), "{worker}: {}", said(&output));
    }
}

#[test]
fn a_launch_whose_stderr_has_no_room_fails() {
    let output = bash("mpienv launch --nproc-per-node 2 -- sh -c 'echo x >&2' 2>/dev/full");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_launch_whose_log_folder_has_no_room_says_so_and_fails() {
    // The disk is full before the workers start, or the workers fill it, whether or not they check
    // for errors.
    for (before, worker) in [
        ("cat /dev/zero >f/filler", "true"),
        (":", "head -c 1000000 /dev/zero; true"),
        (":", "seq 99999"),
    ] {
        let script = format!(
            "cd $(mktemp -d) && mkdir f && mount -t tmpfs -o size=64k none f && {{ {before}\n}} 2>/dev/null; \
             mpienv launch --nproc-per-node 2 --log-dir f/logs -- sh -c '{worker}'; code=$?; umount f; exit $code"
        );
        let Some(output) = unshared(&["--mount"], &script) else { return };
        assert_eq!(output.status.code(), Some(1), "{worker}: {output:?}");
        assert!(said(&output).contains("cannot write "), "{worker}: {}", said(&output));
        assert!(said(&output).contains("No space left on device"), "{worker}: {}", said(&output));
        let is_foreseen = before != ":";
        assert!(!is_foreseen || said(&output).contains("; free space there"), "{}", said(&output));
    }
}

#[test]
fn a_launch_whose_output_exceeds_the_limit_of_a_file_says_so_and_ends_its_workers() {
    // mpienv's own limit: the workers' is the same, but they write to pipes.
    let prefixed = "mpienv launch --nproc-per-node 2 -- sh -c 'seq 9999; exec sleep 3000' >out";
    let folder = "mpienv launch --nproc-per-node 2 --log-dir logs -- true";
    let on_stderr = "mpienv launch --nproc-per-node 1 -- sh -c 'seq 9999 >&2; exec sleep 3000'";
    for (words, what) in [(prefixed, "stdout"), (folder, "\"logs\""), (on_stderr, "")] {
        let to = if what.is_empty() { "2>err" } else { "" };
        let output = bash(&format!("cd $(mktemp -d) && ulimit -f 1 && {words} {to}"));
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        if !what.is_empty() {
            let is_said =
                said(&output).starts_with(&format!("mpienv: cannot write {what}: File too large"));
            assert!(is_said, "{words}: {}", said(&output));
        }
    }
}

#[test]
fn workers_get_the_default_effect_of_the_limit_of_a_file() {
    let script = "cd $(mktemp -d) && ulimit -f 1 && mpienv launch --nproc-per-node 1 -- sh -c 'exec seq 9999 >out'";
    let output = bash(script);
    assert_eq!(output.status.code(), Some(128 + 25), "{output:?}");
    // Whoever ignores it does so on purpose.
    let output = bash(&format!("trap '' XFSZ; {script}"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Every command that prints.
const PRINTING: [&str; 18] = [
    "--help",
    "--version",
    "--version --json",
    "help launch",
    "export",
    "export --help",
    "export --shell json",
    "show",
    "show --json",
    "doctor",
    "doctor --json",
    "check -q",
    "check -q --json",
    "simulate --launcher slurm",
    "completions bash",
    "man",
    "simulate --launcher slurm --nodes 2000",
    "exec -q --dry-run -- true",
];

#[test]
fn every_command_fails_whose_stdout_is_closed() {
    let starting =
        ["launch --nproc-per-node 2 -- touch $0", "simulate --launcher slurm -- touch $0"];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("started");
    for words in PRINTING.into_iter().chain(starting) {
        let output =
            clean("bash").args(["-c", &format!("mpienv {words} >&-")]).arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        assert!(
            said(&output).starts_with("mpienv: cannot write stdout: it is closed; "),
            "{words}: {}",
            said(&output)
        );
    }
    assert!(!file.exists());
    // A program that mpienv becomes or starts finds stdout as the shell left it.
    for words in ["exec", "simulate --launcher slurm --rank 0"] {
        let output = bash(&format!("mpienv {words} -- sh -c 'test ! -e /proc/self/fd/1' >&-"));
        assert_eq!(output.status.code(), Some(0), "{words}: {output:?}");
    }
    assert_eq!(bash("mpienv export --bad >&-").status.code(), Some(2));
}

#[test]
fn every_command_fails_whose_stdout_is_only_open_for_reading() {
    for words in PRINTING.into_iter().chain(["launch --nproc-per-node 2 -- true"]) {
        let output = bash(&format!("mpienv {words} 1</dev/null"));
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        let expected = "mpienv: cannot write stdout: it is only open for reading; ";
        assert!(said(&output).starts_with(expected), "{words}: {}", said(&output));
    }
    // A program finds it as the shell left it.
    let output = bash("mpienv exec -- sh -c 'test -e /proc/self/fd/1' 1</dev/null");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_stdout_that_is_dev_null_is_not_closed() {
    // A shell opens it for writing; Python and daemons for reading too, as Rust's runtime does if
    // stdout is closed.
    for words in PRINTING {
        for redirection in [">/dev/null", "1<>/dev/null"] {
            let output = bash(&format!("mpienv {words} {redirection}"));
            assert_eq!(said(&output).find("cannot write"), None, "{words} {redirection}");
        }
    }
}

#[test]
fn every_command_fails_whose_stdout_has_no_room() {
    for words in PRINTING {
        let output = bash(&format!("mpienv {words} >/dev/full"));
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        assert!(said(&output).starts_with(NO_ROOM), "{words}: {}", said(&output));
    }
}

#[test]
fn a_command_whose_reader_has_enough_ends_without_a_word() {
    for words in ["simulate --launcher slurm --nodes 20000", "launch --nproc-per-node 2 -- yes"] {
        let output = bash(&format!("mpienv {words} | head -n 1; exit ${{PIPESTATUS[0]}}"));
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(141), ""), "{words}");
    }
}

#[test]
fn a_non_blocking_pipe_gets_every_line() {
    // A slow reader behind a nonblocking pipe, which reports at once that it is full.
    let script = "import fcntl, os, subprocess, sys, time\n\
                  out, into = os.pipe()\n\
                  fcntl.fcntl(into, fcntl.F_SETFL, os.O_NONBLOCK)\n\
                  words = 'mpienv launch --nproc-per-node 1 -- seq 100000'.split()\n\
                  job = subprocess.Popen(words, stdout=into)\n\
                  os.close(into)\n\
                  time.sleep(0.5)\n\
                  lines = open(out).read().splitlines()\n\
                  sys.exit(0 if job.wait() == 0 and len(lines) == 100000 else 1)";
    let mut python = Command::new("python3");
    python
        .env("PATH", clean("sh").get_envs().find(|(name, _)| *name == "PATH").unwrap().1.unwrap());
    assert!(python.args(["-c", script]).status().unwrap().success());
}
