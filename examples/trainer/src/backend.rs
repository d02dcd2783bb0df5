//! The transport that carries the gradients between ranks.

use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::rendezvous::ErrorKind;

use crate::collective::Collective;
use crate::collective::alone::Alone;
#[cfg(feature = "mpi")]
use crate::collective::mpi::Mpi;
use crate::collective::tcp::{ConnectError, MeetingPoint, Tcp};
use crate::exit;

#[cfg(feature = "mpi")]
mod library;

/// The transport to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// MPI if the launcher starts MPI programs and its library can be loaded, otherwise TCP
    Auto,
    /// The launcher's MPI library, or the one that MPIENV_MPI_LIB names
    #[cfg(feature = "mpi")]
    Mpi,
    /// TCP connections between the ranks, which meet at MASTER_ADDR:MASTER_PORT
    Tcp,
}

/// Connects to the other ranks. If there are any, `remark` gets the name of the transport; `warn` gets warnings.
///
/// # Errors
/// If the ranks cannot meet, or the required MPI cannot be used.
pub fn connect(
    backend: Backend,
    info: &ClusterInfo,
    timeout: Duration,
    remark: &mut dyn FnMut(&str),
    warn: &mut dyn FnMut(&str),
) -> Result<Box<dyn Collective>, BackendError> {
    if info.world_size() == 1 {
        return Ok(Box::new(Alone));
    }
    let why = match backend {
        #[cfg(feature = "mpi")]
        Backend::Auto | Backend::Mpi => match library::begin(info, timeout, backend == Backend::Mpi)? {
            Ok(world) => {
                remark(&format!("gradients over MPI ({}, {})", world.library().display(), world.version()));
                return Ok(Box::new(Mpi::new(world, timeout).map_err(ConnectError::from)?));
            }
            Err(why) => format!(" ({why})"),
        },
        #[cfg(not(feature = "mpi"))]
        Backend::Auto => " (built without MPI)".to_owned(),
        Backend::Tcp => String::new(),
    };
    remark(&format!("gradients over TCP{why}"));
    let place = MeetingPoint {
        host: info.master_addr()?.clone(),
        port: info.master_port(),
        default_port: info.default_master_port(),
        token: info.token().as_bytes().to_vec(),
    };
    let tcp = Tcp::connect(info.world(), &place, timeout)?;
    if tcp.rejected() > 0 {
        warn(&format!(
            "connections to rank {} that were not from ranks of this job: {}; they came from a port scanner, a health \
             check, or another job with the same MASTER_PORT",
            info.rank(),
            tcp.rejected()
        ));
    }
    Ok(Box::new(tcp))
}

/// Why the ranks cannot be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The address of rank 0 is unknown.
    #[error(transparent)]
    Master(#[from] mpienv::Error),
    /// The ranks did not meet, or could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// MPI cannot be used.
    #[cfg(feature = "mpi")]
    #[error("{0}; use --backend tcp to train without MPI")]
    Mpi(mpienv::mpi::MpiError),
    /// MPI's initialization cannot be limited in time.
    #[cfg(feature = "mpi")]
    #[error("cannot start the thread that limits MPI's initialization: {0}")]
    Watch(std::io::Error),
}

impl BackendError {
    /// The exit code, one of [`exit`]'s.
    pub fn exit_code(&self) -> u8 {
        match self {
            BackendError::Connect(ConnectError::Rendezvous(error)) => match error.kind() {
                ErrorKind::TimedOut => exit::TIMED_OUT,
                ErrorKind::Lost => exit::TRAINING_FAILED,
                _ => exit::WRONG_INPUT,
            },
            BackendError::Connect(ConnectError::Collective(error)) => exit::of_collective(error),
            _ => exit::WRONG_INPUT,
        }
    }
}
