//! Different targets of stdout: a reader that closes early, and a full disk.

use std::io::pipe;
use std::process::{Command, Output, Stdio};

use crate::support::port::free_port;
use crate::support::rank::rank;
use crate::support::timeout::PATIENT;

/// Runs `words` with the programs on PATH; `to` redirects their stdout.
fn bash(words: &str, to: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_mnist")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    command.env_clear().env("PATH", path).current_dir(folder.path()).stdin(Stdio::null());
    command.args(["-c", &format!("{words} {to}; exit ${{PIPESTATUS[0]}}")]).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let is_remark =
        |line: &&str| line.contains("embedded digits") || line.contains("gradients over");
    text.lines().filter(|line| !is_remark(line)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_run_whose_reader_has_enough_ends_without_a_word() {
    for words in [
        "mnist --epochs 1000000",
        "mnist --epochs 1000000 --ranks 2 --timeout 1200",
        "mnist --epochs 1000000 --ranks 2 --timeout 1200 --strategy '((2,1),(1,1))'",
        "quickstart --threads 2 --epochs 100000",
    ] {
        let output = bash(words, "| head -n 1");
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(141), ""), "{words}");
    }
}

#[test]
fn a_reader_that_leaves_before_the_last_lines_causes_no_error_message() {
    for words in [
        "mnist --epochs 1 --quiet",
        "mnist plan",
        "quickstart plan",
        "quickstart --threads 2 --epochs 1",
    ] {
        let output = bash(&format!("(sleep 0.3; exec {words})"), "| true");
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(141), ""), "{words}");
    }
}

#[test]
fn a_rank_whose_reader_is_gone_stops_the_others_and_none_calls_it_lost() {
    let quickstart = |index, folder: &std::path::Path, port| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
        command
            .envs(rank(index, 2, port).get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["--epochs", "100000", "--timeout", PATIENT, "--output"]).arg(folder);
        command
    };
    for program in ["mnist", "quickstart"] {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let start = |index| {
            let mut command = match program {
                "mnist" => {
                    let mut command = rank(index, 2, port);
                    command.args(["--epochs", "1000000", "--timeout", PATIENT]);
                    command
                }
                _ => quickstart(index, folder.path(), port),
            };
            let (reader, writer) = pipe().unwrap();
            drop(reader);
            let stdout = if index == 1 { Stdio::from(writer) } else { Stdio::null() };
            command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap()
        };
        for child in [0, 1].map(start) {
            let output = child.wait_with_output().unwrap();
            assert_eq!(
                (output.status.code(), said(&output).as_str()),
                (Some(141), ""),
                "{program}"
            );
        }
    }
}

#[test]
fn help_and_plans_that_find_no_room_are_an_error() {
    for words in [
        "mnist --help",
        "mnist -V",
        "mnist plan",
        "quickstart --help",
        "quickstart plan --help",
        "quickstart plan",
    ] {
        let output = bash(words, ">/dev/full");
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        assert!(said(&output).contains("No space left on device"), "{words}: {}", said(&output));
    }
}

#[test]
fn a_file_beyond_the_limit_of_file_sizes_is_an_error_and_not_a_signal() {
    for ranks in ["", "--ranks 2"] {
        // Bash counts in blocks of 1024 bytes. The model alone has 31,400.
        let output = bash(
            &format!("(ulimit -f 4; exec mnist --epochs 1 {ranks} --quiet --checkpoint-dir kept)"),
            "2>&1",
        );
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("kept/checkpoint-") && said.contains("File too large"), "{said}");
    }
}
