//! The process becomes another program.

use std::io;
use std::process::Command;

/// Replaces this process by `command`; returns only when that fails.
///
/// Process id, open files and environment are kept, and signals reach the program itself.
///
/// ```no_run
/// use std::process::Command;
///
/// let info = mpienv::ClusterInfo::from_env()?;
/// let error = mpienv::exec(Command::new("python").arg("train.py").envs(info.exports()?));
/// eprintln!("python cannot be started: {error}");
/// # Ok::<(), mpienv::Error>(())
/// ```
#[cfg(unix)]
pub fn exec(command: &mut Command) -> io::Error {
    use std::os::unix::process::CommandExt;
    command.exec()
}
