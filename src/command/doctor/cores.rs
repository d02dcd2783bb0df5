//! Checks whether this process may use all cores that its cgroup allows, and those near its device.

use super::machine::Machine;
use crate::{ClusterInfo, Environment, Finding, Severity};
use mpienv_launch::seam::{BOUND_BY, is_widened, nodes_of, numa_nodes};

/// Compares the allowed cores with those that exist, the requested threads and the node's ranks.
pub(crate) fn binding(info: &ClusterInfo, cores: Option<(usize, usize)>) -> Option<Finding> {
    let environment = info.environment();
    let (allowed, all) = cores.filter(|(allowed, all)| allowed < all)?;
    let threads = threads(environment);
    let too_many = threads.is_some_and(|threads| threads > allowed);
    let severity = if too_many { Severity::Warning } else { Severity::Note };
    let threads =
        threads.map_or(String::new(), |threads| format!(", with OMP_NUM_THREADS={threads}"));
    let ranks = info.local_world_size().filter(|&ranks| ranks > 1);
    let ranks = ranks.map_or(String::new(), |ranks| match all / ranks as usize {
        share if share > allowed => {
            format!("; each of this node's {ranks} ranks could have {share}")
        }
        _ => format!("; this node has {ranks} ranks"),
    });
    let own = environment.get(BOUND_BY).map(|rule| rule.to_string_lossy());
    let (by, unbind) = match (own, info.launcher().spec().unbind) {
        (Some(rule), _) => (&*format!("mpienv --bind {rule}"), "with --bind none"),
        (None, Some(unbind)) => (info.launcher().title(), &*format!("with {unbind}")),
        (None, None) => {
            ("what started it", "without taskset, numactl and the like (`mpirun --bind-to none`)")
        }
    };
    let exec = match is_widened(info, environment, (allowed, all)) {
        true => "start the program with `mpienv exec`, which lets it use all cores; or ",
        false => "",
    };
    Some(Finding::new(
        severity,
        "cpu-binding",
        format!("bound to {allowed} of {all} cores, by {by}{threads}{ranks}"),
        "threads and workers that this process starts share these cores",
        format!("{exec}start it {unbind}, or use fewer threads"),
    ))
}

/// Returns the number of OpenMP threads. In a list for nested regions, the first number counts.
fn threads(environment: &Environment) -> Option<usize> {
    environment.get("OMP_NUM_THREADS")?.to_str()?.split(',').next()?.trim().parse().ok()
}

/// Compares the NUMA node of this rank's GPU with those of its cores.
pub(super) fn device_far(info: &ClusterInfo, machine: &Machine) -> Option<Finding> {
    let index = usize::try_from(info.device_index()?).ok()?;
    let devices = &machine.topology.devices;
    let shown = devices.visible(info.environment(), info.local_rank().unwrap_or(0)).ok()?;
    let device = shown.get(index)?;
    let home = device.node?;
    let nodes = nodes_of(&machine.topology.cores_of(&machine.cpus));
    if nodes.is_empty() || nodes.contains(&home) || !machine.topology.nodes().contains(&home) {
        return None;
    }
    let usable = nodes_of(&machine.topology.cores_of(&machine.usable));
    let remedy = match usable.contains(&home) {
        true => {
            "start it unbound, with `mpienv exec --bind device` or `mpienv launch --bind device`"
        }
        false => {
            "ask the scheduler for cores near the device (on Slurm, --gres-flags=enforce-binding)"
        }
    };
    Some(Finding::warning(
        "device-far",
        format!(
            "bound to CPUs on {} ({}), and its device {index} ({}) is attached to NUMA node {home}",
            numa_nodes(&nodes),
            machine.cpus,
            device.address
        ),
        "what the CPUs and the device exchange crosses the link between the NUMA nodes",
        remedy,
    ))
}
