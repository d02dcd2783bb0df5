//! Decides whether to use MPI, and initializes it within a time limit.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use mpienv::mpi::{Hints, MpiError, MpiVars, World};
use mpienv::{ClusterInfo, Environment};

use super::BackendError;
use crate::exit;

/// All ranks joined by MPI, or why MPI is not used, which is an error if it is `required`.
pub(super) fn begin(
    info: &ClusterInfo,
    timeout: Duration,
    required: bool,
) -> Result<Result<World, &'static str>, BackendError> {
    let environment = Environment::current();
    let vars = MpiVars::of(&environment);
    if !required && !info.launcher().starts_mpi(&environment) {
        return Ok(Err("the launcher starts no MPI programs"));
    }
    let watch = watch(timeout).map_err(BackendError::Watch)?;
    #[expect(unsafe_code, reason = "hints are set in the environment")]
    // SAFETY: the only other thread is the watch, which does not look at the environment.
    let world = match unsafe { World::init_with(info.launcher(), &vars, &hints(info)) } {
        // A library that the user named is not passed over.
        Err(MpiError::NoLibrary { .. }) if !required && vars.library.is_none() => {
            return Ok(Err("no MPI library could be loaded; --backend mpi shows why"));
        }
        world => world.map_err(BackendError::Mpi)?,
    };
    drop(watch);
    world.check(info.world()).map_err(BackendError::Mpi)?;
    Ok(Ok(world))
}

/// What MPI does not know about this job.
fn hints(info: &ClusterInfo) -> Hints {
    // So that the linear model's gradient, 31,400 bytes, is sent at once.
    Hints::new().one_machine(info.local_world_size() == Some(info.world_size())).eager_limit(32 * 1024)
}

/// Exits the process at the limit unless the result is dropped first: MPI's initialization waits forever for a missing
/// rank.
fn watch(limit: Duration) -> io::Result<Sender<()>> {
    let (done, wait) = mpsc::channel();
    thread::Builder::new().name("mpi-init".to_owned()).spawn(move || {
        if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let seconds = limit.as_secs_f64();
            let why =
                format!("MPI was not initialized within {seconds} s: a rank hangs, is lost, or was never started");
            exit::at_once(&why, exit::TIMED_OUT);
        }
    })?;
    Ok(done)
}
