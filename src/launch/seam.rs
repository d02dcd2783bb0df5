//! What the command needs of this crate and programs do not. Any version may change it.

use std::path::PathBuf;
use std::process::Command;

use mpienv_core::ClusterInfo;
use mpienv_core::seam::{Attempt, TargetFile};

use crate::target_file::HeldFile;
use crate::{Launch, LaunchError, StartError};

pub use crate::affinity::{allowed as allowed_cpus, usable as usable_cpus};
pub use crate::bind::{BOUND_BY, Binding, Division, Node, bind_to_share, numa_nodes, topology};
pub use crate::binding::{release_default_binding, widen_default_binding};
pub use crate::core_share::{CoreShare, Rule, TooFew, divide};
pub use crate::cores::{
    Allowed, Roots, allowed, count as count_cores, of_children as cores_of_children,
};
#[cfg(unix)]
pub use crate::exec::{exec, own_program};
pub use crate::share::{Share, of_rank as share_of_rank, of_workers as share_of_workers};
pub use crate::topology::{Core, Cpus, Device, Devices, Topology, nodes_of};

/// Declares that this process exits once it has reported how the launch ended. A signal leaves it
/// time to do so.
pub fn whole_process(launch: Launch) -> Launch {
    Launch { is_whole_process: true, ..launch }
}

/// Returns the places of the workers in the first attempt.
pub fn places(launch: &mut Launch) -> &[ClusterInfo] {
    launch.enter(Attempt { base: launch.base(), again: 0 });
    &launch.workers
}

/// Like [`Launch::run`], but `command` may fail. Its text is then the reason that all nodes show.
/// Workers that have already started are killed.
///
/// # Errors
/// Those of [`Launch::run`], or [`LaunchError::OtherNode`] if `command` fails.
pub fn try_run(
    launch: Launch,
    command: impl FnMut(&ClusterInfo) -> Result<Command, String>,
) -> Result<(), LaunchError> {
    launch.try_run(command)
}

/// Returns the same error for a terminal on which the workers' output appears. `is_brief`: the user
/// asked for silence, and gets no report.
pub fn for_terminal(error: LaunchError, is_brief: bool) -> LaunchError {
    error.for_terminal(is_brief)
}

/// Returns the error for a command that the system would start in a way that the user does not
/// intend.
pub fn before(command: &Command) -> Option<StartError> {
    StartError::before(command)
}

/// Returns the error that starting the command would give, as far as its file shows.
pub fn foreseen(command: &Command) -> Option<StartError> {
    StartError::foreseen(command)
}

/// Returns the words of the command that was probably meant.
pub fn meant(error: &StartError) -> Option<&[std::ffi::OsString]> {
    error.meant()
}

/// Writes a file for the program that is about to replace this process. Returns its path, and
/// whether it stays when that program has exited.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn leave_file(file: TargetFile) -> Result<(PathBuf, bool), LaunchError> {
    Ok(HeldFile::write(file)?.hand_over())
}
