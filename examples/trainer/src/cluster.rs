//! Where this process is: its rank, from the launcher.

use std::ffi::OsString;

use mpienv::Rank;

/// This process's rank and the number of ranks.
///
/// # Errors
/// When the launcher's variables contradict each other.
pub fn rank() -> Result<Rank, ClusterError> {
    Ok(Rank::ALONE)
}

/// The environment of each of `count` ranks on this machine.
///
/// # Errors
/// As [`rank`].
pub fn workers(count: u32) -> Result<Vec<Vec<(OsString, OsString)>>, ClusterError> {
    Err(ClusterError::NoWorkers(count))
}

/// Why a process does not know where it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Ranks cannot be started.
    #[error("this build cannot start {0} ranks itself: start them with mpirun")]
    NoWorkers(u32),
}
