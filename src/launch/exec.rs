//! Replaces this process with another program.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launch::start_error::{StartError, before, find};

/// Replaces this process with `command`; returns only if that fails.
///
/// The process id, the open files and the environment are kept, and signals reach the program
/// directly. Ignored signals stay ignored (`nohup`). The exception is SIGPIPE, which is reset to
/// its default, because Rust's runtime ignores it before `main` and its former state is lost. To
/// ignore it, start the program through a shell: `sh -c 'trap "" PIPE; exec "$@"' sh CMD`.
///
/// A Python script whose first line names no interpreter is an error, because the system would
/// start it with `sh`.
pub fn exec(command: &mut Command) -> StartError {
    use std::os::unix::process::CommandExt;
    before(command).unwrap_or_else(|| {
        let error = command.exec();
        StartError::new(command, error)
    })
}

/// Returns the path of the running program, even if its file was replaced. Without /proc, finds it
/// by its name.
pub fn own_program() -> Option<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Some(running.to_owned());
    }
    let file = find(&Command::new(std::env::args_os().next()?))?;
    std::path::absolute(file).ok()
}
