//! Controls the processes that a launch starts, by the means that the system provides.
//!
//! Each worker has its own process group: the children of a worker are stopped with it, and signals
//! are passed on. All its descendants are stopped with it, in any process group.

mod groups;

pub(super) use groups::{Signals, Supervisor, Unbound, Waker};

/// Lets this program serve as the watchdog of its own workers. Call it in the first line of `main`.
///
/// [`Launch`](crate::Launch) then starts the program a second time, as a process that only waits.
/// If the first process is killed by a signal that it cannot catch, this watchdog kills the workers
/// and their descendants. In the watchdog, this function returns true once it has finished, and
/// `main` must then return. In all other processes it returns false. In a program that does not
/// call this function, workers have no watchdog. Workers that call
/// [`end_with_parent`](crate::end_with_parent) are still killed, but the processes that they
/// started are not.
///
/// ```no_run
/// use std::process::Command;
/// use mpienv::{ClusterInfo, Launch};
///
/// if mpienv::serve_as_watchdog() {
///     return Ok(());
/// }
/// let info = ClusterInfo::from_env()?;
/// Launch::new(&info, 2)?.run(|_worker| Command::new("./train"))?;
/// # Ok::<(), mpienv::LaunchError>(())
/// ```
#[must_use = "the watchdog's process has nothing more to do"]
pub fn serve_as_watchdog() -> bool {
    groups::serve()
}
