//! The process becomes another program.

use std::io;
use std::process::Command;

/// Replaces this process by `command`; returns only when that fails.
///
/// Process id, open files and environment are kept, and signals reach the program itself.
#[cfg(unix)]
pub fn exec(command: &mut Command) -> io::Error {
    use std::os::unix::process::CommandExt;
    command.exec()
}
