//! Programs with little memory: they fail with an ordinary error.

use std::path::Path;
use std::process::{Command, Output};

/// The memory limit of a program in KiB: enough for the embedded digits, and for its threads.
const LITTLE: u32 = 600_000;

/// The same command with limited address space.
pub fn with_little_memory(command: &Command) -> Command {
    let mut limited = Command::new("/bin/sh");
    limited.env_clear().arg("-c").arg(format!("ulimit -v {LITTLE}; exec \"$@\"")).arg("sh");
    limited.arg(command.get_program()).args(command.get_args());
    limited.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    limited
}

/// Asserts that the program failed with an ordinary error, which names the file and contains
/// `text`.
#[track_caller]
pub fn assert_fails(output: &Output, text: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{:?}: {said}", output.status);
    assert!(said.contains(text) && !said.contains("panicked"), "{said}");
}
