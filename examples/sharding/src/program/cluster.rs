//! Uses `mpienv` to find this process's rank and to start ranks on this machine.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use mpienv::{ClusterInfo, ErrorKind, Launch, LaunchError};

/// Returns this process's rank and the layout of the job.
pub fn place() -> Result<ClusterInfo, ClusterError> {
    Ok(ClusterInfo::from_env()?)
}

/// Starts `count` ranks on this machine, each with `command`, and waits for them. Forwards this
/// process's signals.
///
/// The program must not start other processes while the ranks run: see [`Launch::subreaper`].
pub fn start(count: u32, mut command: impl FnMut() -> Command) -> Result<(), ClusterError> {
    let info = place()?;
    info.starting(count).warn();
    let launch = Launch::new(&info, count)?.subreaper(true);
    Ok(launch.run(|_rank| command())?)
}

/// Returns whether this process was [`start`]'s watchdog, which has finished. Call this first in
/// `main`.
pub fn has_served_as_watchdog() -> bool {
    mpienv::serve_as_watchdog()
}

/// Makes this process exit when its parent, given by process ID, exits. Linux only.
///
/// This covers the moment before [`start`] has registered the process it started.
pub fn end_with(parent: u32) -> io::Result<()> {
    mpienv::end_with_parent(parent)
}

/// Why a rank cannot be determined, or started ranks failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The launcher's variables are wrong.
    #[error(transparent)]
    Environment(#[from] mpienv::Error),
    /// Ranks cannot be started, or one failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl ClusterError {
    /// Returns the exit code of the rank that failed, if any. As in shells, a signal's number is
    /// added to 128.
    pub fn rank_exit_code(&self) -> Option<u8> {
        let ClusterError::Launch(error) = self else { return None };
        let code = match error.kind() {
            ErrorKind::Failed(status) => {
                status.code().or(status.signal().map(|signal| 128 + signal))
            }
            ErrorKind::Stopped(signal) => Some(128 + signal),
            _ => None,
        };
        code.and_then(|code| code.try_into().ok())
    }
}
