//! What `mpienv` does for the programs: finds the place of this process, and starts ranks on this machine.

use std::io;
use std::process::Command;

use mpienv::{ClusterInfo, Launch, LaunchError};

/// The place of this process in the cluster.
///
/// # Errors
/// If the launcher's variables are wrong.
pub fn place() -> Result<ClusterInfo, ClusterError> {
    Ok(ClusterInfo::from_env()?)
}

/// Starts `count` ranks on this machine, each by `command`, and waits for all. They receive this process's signals.
///
/// The program must not start other processes in the meantime: see [`Launch::subreaper`].
///
/// # Errors
/// If a rank cannot be started, or fails.
pub fn start(count: u32, mut command: impl FnMut() -> Command) -> Result<(), ClusterError> {
    let launch = Launch::new(&place()?, count)?.subreaper();
    Ok(launch.run(|_rank| command())?)
}

/// For the first line of `main`: whether this process was started as the watchdog of [`start`] and has finished.
pub fn has_served_as_watchdog() -> bool {
    #[cfg(unix)]
    let has_served = mpienv::serve_as_watchdog();
    #[cfg(not(unix))]
    let has_served = false;
    has_served
}

/// Makes this process exit with its parent, whose id it takes; on Linux only.
///
/// This covers the instant before [`start`] knows of the process that it has started.
pub fn end_with(parent: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    mpienv::end_with_parent(parent)?;
    #[cfg(not(target_os = "linux"))]
    let _ = parent;
    Ok(())
}

/// Why a process does not know its place, or its ranks failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The launcher's variables are wrong.
    #[error(transparent)]
    Environment(#[from] mpienv::Error),
    /// Ranks cannot be started, or one failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl ClusterError {
    /// The exit code of the rank that failed, if one did; as in shells, 128 plus the number of the signal that killed it.
    pub fn rank_exit_code(&self) -> Option<u8> {
        match self {
            ClusterError::Launch(LaunchError::Failed { status, .. }) => {
                #[cfg(unix)]
                let by_signal = std::os::unix::process::ExitStatusExt::signal(status).map(|signal| 128 + signal);
                #[cfg(not(unix))]
                let by_signal = None;
                status.code().or(by_signal).and_then(|code| code.try_into().ok())
            }
            _ => None,
        }
    }
}
