//! Checks whether this process's cores are near its device.

use super::finding;
use super::machine::Machine;
use crate::{ClusterInfo, Environment, Finding, Severity};
use mpienv_launch::seam::{nodes_of, numa_nodes};

/// Compares the NUMA node of this rank's GPU with those of its cores.
pub(super) fn device_far(
    info: &ClusterInfo,
    environment: &Environment,
    machine: &Machine,
) -> Option<Finding> {
    let index = usize::try_from(info.device_index()?).ok()?;
    let devices = machine.topology.devices();
    let shown = devices.visible(environment, info.local_rank().unwrap_or(0)).ok()?;
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
    finding(
        Severity::Warning,
        "device-far",
        format!(
            "bound to CPUs on {} ({}), and its device {index} ({}) is attached to NUMA node {home}",
            numa_nodes(&nodes),
            machine.cpus,
            device.address
        ),
        "what the CPUs and the device exchange crosses the link between the NUMA nodes",
        remedy.to_owned(),
    )
}
