//! What carries the gradients from rank to rank.

use std::time::Duration;

use mpienv::{ClusterInfo, rendezvous};

use crate::collective::alone::Alone;
use crate::collective::tcp::{ConnectError, Tcp};
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
/// When a rank does not come within `timeout`, or the master is not known.
pub fn connect(backend: Backend, info: &ClusterInfo, timeout: Duration) -> Result<Box<dyn Collective>, BackendError> {
    match backend {
        Backend::Auto | Backend::Tcp if info.world_size() == 1 => Ok(Box::new(Alone)),
        Backend::Auto | Backend::Tcp => {
            let host = info.master_addr()?.clone();
            Ok(Box::new(Tcp::connect(info.world(), host, info.master_port(), timeout, b"")?))
        }
    }
}

/// Why there is nothing to carry the gradients.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Nobody says where rank 0 is.
    #[error(transparent)]
    Master(#[from] mpienv::Error),
    /// The ranks did not meet, or could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl BackendError {
    /// Whether a rank did not come in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            BackendError::Connect(ConnectError::Rendezvous(error)) => error.kind() == rendezvous::ErrorKind::TimedOut,
            BackendError::Connect(ConnectError::Collective(error)) => matches!(error, CollectiveError::TimedOut { .. }),
            _ => false,
        }
    }
}
