//! Where this process is, and how to start ranks of it on this machine: what `mpienv` knows.

use std::io;
use std::process::Command;

use mpienv::{ClusterInfo, Launch, LaunchError};

/// Where this process is.
pub fn place() -> Result<ClusterInfo, ClusterError> {
    Ok(ClusterInfo::from_env()?)
}

/// Starts `count` ranks on this machine, each as `command` says, and waits for all; signals are passed on to them.
///
/// For a program that starts nothing else meanwhile: see [`Launch::subreaper`].
pub fn start(count: u32, mut command: impl FnMut() -> Command) -> Result<(), ClusterError> {
    let launch = Launch::new(&place()?, count)?.subreaper();
    Ok(launch.run(|_rank| command())?)
}

/// For the first line of `main`: whether this process is the watchdog that [`start`] has started, and is done.
pub fn has_served_as_watchdog() -> bool {
    #[cfg(unix)]
    let has_served = mpienv::serve_as_watchdog();
    #[cfg(not(unix))]
    let has_served = false;
    has_served
}

/// From now on this process ends with the process that started it, by its id; on Linux only.
///
/// What [`start`] starts ends with this process anyway, but for the instant before it is known to have been started.
pub fn end_with(parent: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    mpienv::end_with_parent(parent)?;
    #[cfg(not(target_os = "linux"))]
    let _ = parent;
    Ok(())
}

/// Why a process does not know where it is, or its ranks failed.
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
    /// The exit code of the rank that failed, when one did; as in shells 128 and its number if a signal ended it.
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
