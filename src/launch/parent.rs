//! Kills a process together with the one that started it.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Asks Linux to kill this process when the thread that started it exits.
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
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = i32::try_from(parent).ok().and_then(Pid::from_raw);
    if parent.is_none() || getppid() != parent {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the process that started this one has exited",
        ));
    }
    Ok(())
}
