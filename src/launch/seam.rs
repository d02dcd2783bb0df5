//! What the command needs of this crate and programs do not. Any version may change it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use mpienv_core::ClusterInfo;
use mpienv_core::seam::{Attempt, PlanOptions, TargetFile};

use crate::job::Job;
use crate::target_file::HeldFile;
use crate::{Launch, LaunchError, Variables};

pub use crate::affinity::{allowed as allowed_cpus, usable as usable_cpus};
pub use crate::bind::{
    BOUND_BY, Division, Node, bind_to_share, is_widened, numa_nodes, release_default_binding,
    topology, widen_default_binding,
};
pub use crate::core_share::{CoreShare, TooFew, divide};
pub use crate::cores::{Allowed, count as count_cores, of_children as cores_of_children};
pub use crate::error::for_terminal;
pub use crate::job::{ARRIVAL, NodeOptions, SAME_OPTIONS, nodes_differ, tell_if_on_one_host};
pub use crate::process::{exec, keep_ended_children, own_program, stat_fields};
pub use crate::share::{Share, of_rank as share_of_rank, of_workers as share_of_workers};
pub use crate::start_error::{foreseen, meant};
pub use crate::topology::{Core, Cpus, Device, Devices, Topology, nodes_of};

/// Declares that this process exits once it has reported how the launch ended. A signal leaves it
/// time to do so.
pub fn whole_process(launch: Launch) -> Launch {
    Launch { is_whole_process: true, ..launch }
}

/// Declares that the launches of all nodes have met just now, for at most this time: they need no
/// longer to meet once more, and a warning about that meeting is not repeated.
pub fn has_met(launch: Launch, within: Option<Duration>) -> Launch {
    Launch { arrival: within, ..launch }
}

/// Plans for the workers with these options. Those of threads apply where the launch decides none.
pub fn launch_with_plan_options(launch: Launch, options: PlanOptions) -> Launch {
    Launch { variables: Variables::Planned(Box::new(options)), ..launch }
}

/// Returns the places of the workers in the first attempt.
pub fn places(launch: &mut Launch) -> &[ClusterInfo] {
    launch.enter(Attempt { base: launch.base(), again: 0 });
    &launch.workers
}

/// Returns what must be the same on every node.
pub fn node_options(launch: &Launch) -> NodeOptions {
    launch.node_options()
}

/// Like [`Launch::run`], but `command` may fail. Its text is then the reason that all nodes show.
/// Workers that have already started are killed.
///
/// # Errors
/// Those of [`Launch::run`], or [`LaunchError::OtherNode`] if `command` fails.
pub fn try_run(
    launch: Launch,
    mut command: impl FnMut(&ClusterInfo) -> Result<Command, String>,
) -> Result<(), LaunchError> {
    Job::new(launch, &mut command)?.run()
}

/// Writes a file for the program that is about to replace this process. Returns its path, and
/// whether it stays when that program has exited.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn leave_file(file: TargetFile) -> Result<(PathBuf, bool), LaunchError> {
    Ok(HeldFile::write(file)?.hand_over())
}
