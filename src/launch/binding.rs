//! Releases a process from the core to which its launcher bound it by default.

use crate::launch::bind::BOUND_BY;
use crate::launch::{affinity, cores};
use mpienv_core::seam::InfoSeam as _;
use mpienv_core::{ClusterInfo, Environment, Launcher};

/// Variables that show that a user chose cores. mpirun of Open MPI 4 sets them for its options, and
/// users set them by hand, also for version 5. mpienv sets the last.
const ASKED: &[&str] = &[
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_bind_to_core",
    "OMPI_MCA_hwloc_base_bind_to_socket",
    "OMPI_MCA_hwloc_base_cpu_list",
    "OMPI_MCA_hwloc_base_cpu_set",
    "OMPI_MCA_hwloc_base_slot_list",
    "OMPI_MCA_orte_rankfile",
    "OMPI_MCA_rmaps_base_bycore",
    "OMPI_MCA_rmaps_base_bysocket",
    "OMPI_MCA_rmaps_base_cpus_per_rank",
    "OMPI_MCA_rmaps_ppr_n_persocket",
    "OMPI_MCA_rmaps_rank_file_path",
    "PRTE_MCA_hwloc_default_binding_policy",
    "PRTE_MCA_hwloc_default_cpu_list",
    BOUND_BY,
];

/// Policies for placing ranks by nodes or slots, which do not request cores, or by parts of a node,
/// which do.
const MAPPING: &[&str] =
    &["OMPI_MCA_rmaps_base_mapping_policy", "PRTE_MCA_rmaps_default_mapping_policy"];

/// The parts of a node to which Open MPI binds the ranks that it places by them.
const PARTS: &[&str] = &[
    "hwthread", "core", "l1cache", "l2cache", "l3cache", "numa", "socket", "package", "board",
    "rankfile",
];

/// Lets this thread, and the programs that it becomes or starts, use all cores of the host if Open
/// MPI bound it to fewer.
///
/// By default, Open MPI binds each of one or two ranks to one core. A program with several threads
/// is then slower than under torchrun, which binds nothing. The binding stays if mpirun was asked
/// for cores (which version 5 does not show), if it leaves the rank its share of the node's cores,
/// under other launchers, and if an `mpienv exec` before this one had the option to keep it.
///
/// Returns whether the binding has changed.
pub fn widen_default_binding(info: &ClusterInfo, environment: &Environment) -> bool {
    if info.launcher() != Launcher::OpenMpi || info.keeps_binding() || is_asked(environment) {
        return false;
    }
    let Some((allowed, all)) = cores::count().filter(|(allowed, all)| allowed < all) else {
        return false;
    };
    let local_size =
        info.local_world_size().and_then(|size| usize::try_from(size).ok()).unwrap_or(1);
    // With more ranks, Open MPI binds each to a NUMA node or a socket.
    (info.world_size() <= 2 || allowed < all / local_size) && affinity::widen()
}

/// Lets this thread use all cores of the host if Open MPI bound it without being asked, for a
/// process that then chooses its cores itself.
pub fn release_default_binding(info: &ClusterInfo, environment: &Environment) {
    if info.launcher() == Launcher::OpenMpi && !is_asked(environment) {
        let _ = affinity::widen();
    }
}

/// Returns whether a variable shows that a user chose cores.
fn is_asked(environment: &Environment) -> bool {
    let mut policies = MAPPING.iter().filter_map(|name| environment.get(name)?.to_str());
    ASKED.iter().any(|name| environment.is_set(name)) || policies.any(names_cores)
}

/// Returns whether a policy such as `ppr:2:socket` or `slot:PE=2` names parts of a node or the
/// cores for each rank.
fn names_cores(policy: &str) -> bool {
    let policy = policy.to_ascii_lowercase();
    policy
        .split([':', ','])
        .any(|word| PARTS.contains(&word.trim()) || word.trim().starts_with("pe="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_by_parts_of_a_node_asks_for_cores_and_one_by_nodes_does_not() {
        for policy in
            ["core", "Core:PE=1", "slot:PE=1", "ppr:2:socket", "node:span,pe=2", "hwthread"]
        {
            assert!(names_cores(policy), "{policy}");
        }
        for policy in ["", "node", "slot", "ppr:1:node", "slot:OVERSUBSCRIBE", "seq"] {
            assert!(!names_cores(policy), "{policy}");
        }
        for name in ["OMPI_MCA_rmaps_base_mapping_policy", "PRTE_MCA_rmaps_default_mapping_policy"]
        {
            assert!(is_asked(&Environment::from_vars([(name, "core")])), "{name}");
        }
    }
}
