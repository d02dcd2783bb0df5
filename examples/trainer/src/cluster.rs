//! Where this process is, and how to start ranks of it on this machine: what `mpienv` knows.

use std::process::Command;

use mpienv::Rank;

/// This process's rank and the number of ranks.
///
/// # Errors
/// When the launcher's variables contradict each other.
pub fn rank() -> Result<Rank, ClusterError> {
    Ok(Rank::ALONE)
}

/// Starts `count` ranks on this machine, each as `command` says, and waits for all.
///
/// # Errors
/// When the launcher's variables contradict each other, or a rank cannot be started or fails.
pub fn start(count: u32, _command: impl FnMut() -> Command) -> Result<(), ClusterError> {
    Err(ClusterError::NoLauncher(count))
}

/// Why a process does not know where it is, or its ranks failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Ranks cannot be started.
    #[error("this build cannot start {0} ranks itself: start them with mpirun")]
    NoLauncher(u32),
}
