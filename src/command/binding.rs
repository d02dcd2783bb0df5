//! Lets a process out of the core to which its launcher bound it by default.

use crate::cluster::info::ClusterInfo;
use crate::command::doctor::cores;
use crate::environment::Environment;
use crate::value::placement::Launcher;

/// What Open MPI 4 sets where mpirun was asked how to bind.
const BINDING_POLICY: &str = "OMPI_MCA_hwloc_base_binding_policy";

/// Lets this thread, and what it becomes or starts, use all of the host's cores where Open MPI bound it to fewer by default.
///
/// Open MPI binds each of one or two ranks to one core, and a program with several threads is then slower than under
/// torchrun, which binds nothing. A binding stays where mpirun was asked for one (`--bind-to`; version 5 does not tell),
/// where it leaves a rank its share of the node's cores, and under other launchers. Gives whether something has changed;
/// never elsewhere than on Linux.
///
/// ```
/// use mpienv::{ClusterInfo, Environment, widen_default_binding};
///
/// let environment = Environment::current();
/// let info = ClusterInfo::builder().from_environment(&environment)?;
/// if widen_default_binding(&info, &environment) {
///     println!("all cores now");
/// }
/// # Ok::<(), mpienv::Error>(())
/// ```
pub fn widen_default_binding(info: &ClusterInfo, environment: &Environment) -> bool {
    if info.launcher() != Launcher::OpenMpi || environment.is_set(BINDING_POLICY) {
        return false;
    }
    let Some((allowed, all)) = cores::count().filter(|(allowed, all)| allowed < all) else { return false };
    let local_size = info.local_world_size().and_then(|size| usize::try_from(size).ok()).unwrap_or(1);
    // Of more ranks Open MPI binds each to a NUMA node or a socket.
    (info.world_size() <= 2 || allowed < all / local_size) && cores::widen()
}
