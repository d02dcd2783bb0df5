//! Whether the launcher starts MPI programs, and MPI's initialization within a limit.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use mpienv::mpi::{Error, Hints, MpiVars, World};
use mpienv::{ClusterInfo, Environment, Launcher};

use super::BackendError;
use crate::exit;

/// All ranks in MPI, or why there is no MPI; that is an error where it is `required`.
pub(super) fn begin(
    info: &ClusterInfo,
    timeout: Duration,
    required: bool,
) -> Result<Result<World, &'static str>, BackendError> {
    let environment = Environment::of_this_process();
    let vars = MpiVars::of(&environment);
    if !required && !starts_mpi(info.launcher(), &environment) {
        return Ok(Err("the launcher starts no MPI programs"));
    }
    let watch = watch(timeout).map_err(BackendError::Watch)?;
    let world = match World::init_with(info.launcher(), &vars, &hints(info)) {
        // A library that was wished for by name is not passed over.
        Err(Error::NoLibrary { .. }) if !required && vars.library.is_none() => {
            return Ok(Err("no MPI library could be loaded; --backend mpi shows why"));
        }
        world => world?,
    };
    drop(watch);
    world.check(info.world())?;
    Ok(Ok(world))
}

/// What MPI does not know of this job.
fn hints(info: &ClusterInfo) -> Hints {
    // The linear model's gradient, 31,400 bytes, goes at once.
    Hints { one_machine: info.local_world_size() == Some(info.world_size()), eager_limit: Some(32 * 1024) }
}

/// Whether MPI finds its launcher in a process that this one started.
fn starts_mpi(launcher: Launcher, environment: &Environment) -> bool {
    match launcher {
        Launcher::OpenMpi | Launcher::Hydra | Launcher::Mvapich | Launcher::Pals | Launcher::Jsm => true,
        // `srun --mpi=none` leaves MPI alone, and Open MPI's initialization then ends the process.
        Launcher::Slurm | Launcher::Flux => {
            ["PMIX_RANK", "PMI_RANK"].into_iter().any(|name| environment.get(name).is_some())
        }
        _ => false,
    }
}

/// Ends the process at the limit, unless what is returned is dropped before: MPI's initialization waits for ever for a
/// rank that does not come.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_starts_mpi_programs_where_it_gives_them_a_pmi() {
        let of = |names: &[&str]| Environment::from_vars(names.iter().map(|&name| (name, "0")));
        assert!(!starts_mpi(Launcher::Slurm, &of(&["SLURM_PROCID"])));
        assert!(starts_mpi(Launcher::Slurm, &of(&["SLURM_PROCID", "PMI_RANK"])));
        assert!(starts_mpi(Launcher::Slurm, &of(&["SLURM_PROCID", "PMIX_RANK"])));
        assert!(starts_mpi(Launcher::OpenMpi, &of(&[])));
        assert!(!starts_mpi(Launcher::User, &of(&["PMI_RANK"])));
    }
}
