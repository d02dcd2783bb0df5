//! Kills a process together with the one that started it.

mod death;

use std::io;

/// Asks Linux to kill this process when the thread that started it exits. Does nothing on other
/// systems, which do not offer it.
///
/// The request survives an `exec`, but child processes do not inherit it. If the process of a
/// [`Launch`](crate::Launch) is killed, its watchdog kills the workers, except for a worker that is
/// just being started. A worker that calls this function first closes that gap. `parent` is the
/// process ID of the process that started this one.
///
/// ```no_run
/// use std::os::unix::process::CommandExt;
/// use std::process::Command;
///
/// // The program that starts this one passes its process ID as the first argument.
/// let parent = std::env::args().nth(1).and_then(|id| id.parse().ok()).unwrap_or_default();
/// mpienv::end_with_parent(parent)?;
/// let error = Command::new("python").arg("train.py").exec();
/// eprintln!("{error}");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the parent has already exited, or if the system refuses.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    death::signal_with(parent)
}
