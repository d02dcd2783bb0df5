//! What carries the gradients from rank to rank.

use std::time::Duration;

use mpienv::Rank;

use crate::collective::alone::Alone;
use crate::collective::{Collective, CollectiveError};

/// What carries the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// What fits the launcher: TCP.
    Auto,
    /// Connections between the ranks, which meet at MASTER_ADDR:MASTER_PORT.
    Tcp,
}

/// Meets the other ranks.
///
/// # Errors
/// When a rank does not come within `timeout`, or the backend cannot be had.
pub fn connect(backend: Backend, rank: Rank, timeout: Duration) -> Result<Box<dyn Collective>, BackendError> {
    match backend {
        Backend::Auto | Backend::Tcp if rank.size() == 1 => Ok(Box::new(Alone)),
        Backend::Auto | Backend::Tcp => Err(BackendError::None { ranks: rank.size(), timeout }),
    }
}

/// Why there is nothing to carry the gradients.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// No backend for more than one rank is built in.
    #[error("this build has no backend for {ranks} ranks")]
    None {
        /// How many ranks there are.
        ranks: u32,
        /// How long to wait for them.
        timeout: Duration,
    },
    /// The ranks did not meet.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}
