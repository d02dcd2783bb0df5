//! The process becomes another program.

use std::process::Command;

use crate::launch::start_error::StartError;

/// Replaces this process by `command`; returns only when that fails.
///
/// Process id, open files and environment are kept, and signals reach the program itself. What is ignored stays so
/// (`nohup`), but for SIGPIPE, which the program gets at its default: Rust's runtime ignores it before `main`, so that
/// nobody knows any more how it was. A program that is to ignore it does so itself, or a shell before it:
/// `sh -c 'trap "" PIPE; exec "$@"' sh CMD`.
///
/// ```no_run
/// use std::process::Command;
///
/// let info = mpienv::ClusterInfo::from_env()?;
/// let mut python = Command::new("python");
/// info.exports()?.apply_to(python.arg("train.py"));
/// let error = mpienv::exec(&mut python);
/// eprintln!("{error}");
/// # Ok::<(), mpienv::Error>(())
/// ```
#[cfg(unix)]
pub fn exec(command: &mut Command) -> StartError {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    StartError::new(command, error)
}
