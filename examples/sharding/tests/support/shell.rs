//! Programs in a shell that redirects their stdout.

use std::io::pipe;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `words` with the programs next to `program` on PATH; `to` redirects their stdout.
pub fn bash(program: &str, words: &str, to: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    let programs = Path::new(program).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    command.env_clear().env("PATH", path).current_dir(folder.path()).stdin(Stdio::null());
    command.args(["-c", &format!("{words} {to}; exit ${{PIPESTATUS[0]}}")]).output().unwrap()
}

/// What the programs wrote to stderr, but for remarks.
pub fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let is_remark =
        |line: &&str| line.contains("embedded digits") || line.contains("gradients over");
    text.lines().filter(|line| !is_remark(line)).map(|line| format!("{line}\n")).collect()
}

/// Asserts that a program whose reader leaves ends with the code for that, and without a word.
#[track_caller]
pub fn assert_ends_with_its_reader(program: &str, words: &str, to: &str) {
    let output = bash(program, words, to);
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(141), ""), "{words}");
}

/// Asserts that a program that finds no room for its output says so.
#[track_caller]
pub fn assert_finds_no_room(program: &str, words: &str) {
    let output = bash(program, words, ">/dev/full");
    assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
    assert!(said(&output).contains("No space left on device"), "{words}: {}", said(&output));
}

/// Asserts that two ranks stop when the reader of rank 1's output is gone, and that neither calls
/// the other lost.
#[track_caller]
pub fn assert_all_end_with_a_reader(ranks: [Command; 2]) {
    let mut index = 0;
    let start = |mut command: Command| {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let stdout = if index == 1 { Stdio::from(writer) } else { Stdio::null() };
        index += 1;
        command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in ranks.map(start) {
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(141), ""));
    }
}
