//! The transport that carries the gradients between ranks.

use std::time::Duration;

use mpienv::collective::{self, ConnectError, Group, GroupBuilder};
use mpienv::{ClusterInfo, ErrorKind};

use crate::program::exit;

/// The transport to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// Shared memory on one host; on several, MPI if the launcher starts MPI programs and its
    /// library can be loaded, otherwise shared memory and TCP
    Auto,
    /// The launcher's MPI library, or the one that MPIENV_MPI_LIB names
    #[cfg(feature = "mpi")]
    Mpi,
    /// Memory that the ranks of a host share, and TCP between hosts
    SharedMemory,
    /// TCP connections between the ranks, which meet at MASTER_ADDR:MASTER_PORT
    Tcp,
}

/// Connects to the other ranks. If there are any, the transport's name is passed to `remark`, and
/// warnings to `warn`.
pub fn connect(
    backend: Backend,
    info: &ClusterInfo,
    timeout: Duration,
    remark: &mut dyn FnMut(&str),
    warn: &mut dyn FnMut(&str),
) -> Result<Group, BackendError> {
    let builder = Group::builder(info).timeout(timeout).backend(match backend {
        Backend::Auto => collective::Backend::Auto,
        #[cfg(feature = "mpi")]
        Backend::Mpi => collective::Backend::Mpi,
        Backend::SharedMemory => collective::Backend::SharedMemory,
        Backend::Tcp => collective::Backend::Tcp,
    });
    let builder = builder.on_lost(|error| exit::say_last(error, exit::of_collective(error)));
    let group = connect_with_hints(builder, info)?;
    if group.size() > 1 {
        remark(&format!("gradients over {}", group.describe()));
    }
    if group.rejected() > 0 {
        warn(&format!(
            "connections to rank {} that were not from ranks of this job: {}; they came from a port scanner, a health \
             check, or another job with the same MASTER_PORT",
            info.rank(),
            group.rejected()
        ));
    }
    Ok(group)
}

/// Connects, with hints about this job for MPI.
#[cfg(feature = "mpi")]
#[expect(unsafe_code, reason = "hints are set in the environment")]
fn connect_with_hints(builder: GroupBuilder, info: &ClusterInfo) -> Result<Group, ConnectError> {
    let is_one_machine = info.local_world_size() == Some(info.world_size());
    // Makes the linear model's gradient, 31,400 bytes, an eager message.
    let hints = mpienv::mpi::Hints::new().one_machine(is_one_machine).eager_limit(32 * 1024);
    // SAFETY: while MPI is initialized, the only other thread enforces the timeout and does not
    // access the environment.
    unsafe { builder.connect_with_hints(&hints) }
}

#[cfg(not(feature = "mpi"))]
fn connect_with_hints(builder: GroupBuilder, _: &ClusterInfo) -> Result<Group, ConnectError> {
    builder.connect()
}

/// Why the ranks cannot be connected.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// MPI cannot be used.
    #[cfg(feature = "mpi")]
    #[error("{0}; use --backend tcp to train without MPI")]
    Mpi(mpienv::mpi::MpiError),
    /// The ranks did not find each other, or could not connect.
    #[error(transparent)]
    Connect(ConnectError),
}

impl From<ConnectError> for BackendError {
    fn from(error: ConnectError) -> BackendError {
        match error {
            #[cfg(feature = "mpi")]
            ConnectError::Mpi(error) => BackendError::Mpi(error),
            error => BackendError::Connect(error),
        }
    }
}

impl BackendError {
    /// The exit code, one of [`exit`]'s.
    pub fn exit_code(&self) -> u8 {
        match self {
            BackendError::Connect(ConnectError::Collective(error)) => exit::of_collective(error),
            BackendError::Connect(error) => match error.kind() {
                ErrorKind::TimedOut => exit::TIMED_OUT,
                ErrorKind::Lost => exit::TRAINING_FAILED,
                _ => exit::WRONG_INPUT,
            },
            #[cfg(feature = "mpi")]
            BackendError::Mpi(_) => exit::WRONG_INPUT,
        }
    }
}
