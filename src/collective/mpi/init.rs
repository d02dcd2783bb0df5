//! Connects the ranks by MPI, with a limit of the time that its initialization takes.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::Mpi;
use super::watch;
use crate::builder::OnLost;
use crate::builder::{OverMpi, Timeouts};
use crate::cluster::info::ClusterInfo;
use crate::error::CollectiveError;
use mpienv_core::Environment;
use mpienv_mpi::{Hints, MpiError, World};

/// Connects the ranks by MPI. If MPI is not `required`, returns why it is not used instead of an
/// error.
pub(crate) fn connect(
    info: &ClusterInfo,
    timeouts: Timeouts,
    required: bool,
    on_lost: OnLost,
    hints: &Hints,
) -> OverMpi {
    if !required && !info.launcher().starts_mpi(&Environment::current()) {
        return Ok(Err("the launcher does not start MPI programs"));
    }
    let limit = limit(timeouts.connecting, on_lost.clone()).map_err(CollectiveError::Watch)?;
    #[expect(unsafe_code, reason = "Open MPI may then copy messages of any length")]
    // SAFETY: the ranks of a group compare the lengths of each call before they make it.
    let hints = unsafe { hints.single_copy() };
    let world = match World::of_group(info, &hints) {
        // Do not skip a library that the user named.
        Err(MpiError::NoLibrary { .. }) if !required && !is_named() => {
            return Ok(Err("no MPI library could be loaded; MPI as the backend shows why"));
        }
        Err(MpiError::Simulated { .. }) if !required => {
            return Ok(Err("the launcher is only simulated, and its MPI not started"));
        }
        Err(MpiError::Asked) if !required => {
            return Ok(Err(
                "this process has asked the launcher for rank 0's host, and cannot use MPI after that",
            ));
        }
        world => world.map_err(CollectiveError::Mpi)?,
    };
    drop(limit);
    Ok(Ok(Box::new(Mpi::new(world, timeouts, on_lost)?)))
}

/// Returns whether a user has named the MPI library to use.
pub(crate) fn is_named() -> bool {
    Environment::current().get("MPIENV_MPI_LIB").is_some()
}

/// Exits the process after `limit`, unless the result is dropped first. MPI's initialization itself
/// has no time limit.
fn limit(limit: Duration, on_lost: OnLost) -> io::Result<Sender<()>> {
    let (done, wait) = mpsc::channel();
    thread::Builder::new().name("mpi-init".to_owned()).spawn(move || {
        if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            watch::exit(&CollectiveError::MpiTimedOut { seconds: limit.as_secs_f64() }, &on_lost);
        }
    })?;
    Ok(done)
}
