//! Checks whether each rank on this node has a device.

use super::finding;
use crate::{ClusterInfo, Environment, Finding, Severity};
use mpienv_core::seam::{LauncherSeam as _, is_device, visible};

/// Compares `CUDA_VISIBLE_DEVICES` with the ranks on this node.
pub(super) fn cuda(info: &ClusterInfo, environment: &Environment) -> Option<Finding> {
    let size = info.local_world_size()?;
    let devices = environment.get("CUDA_VISIBLE_DEVICES")?.to_string_lossy().into_owned();
    let count = visible(&devices);
    // Users who hide all devices do so on purpose, because the job does not need them.
    let are_hidden = devices.split(',').next().is_none_or(|first| !is_device(first.trim()));
    if count >= size as usize || are_hidden && size == 1 {
        return None;
    }
    let shown = if count == 1 { "device" } else { "devices" };
    let remedy = match info.launcher().advice().devices.filter(|_| are_hidden) {
        Some(command) => format!("`{command}` gives each rank a device, which is its device 0"),
        None => "make as many devices visible as the node has ranks (on Slurm, --gpus-per-node instead of --gpus-per-task), or let each rank use device 0 if the launcher gives it one device"
            .to_owned(),
    };
    let severity = if are_hidden { Severity::Note } else { Severity::Warning };
    finding(
        severity,
        "cuda-devices",
        format!(
            "CUDA_VISIBLE_DEVICES={devices} shows {count} {shown} to the {size} ranks of this node"
        ),
        "a program that uses the device numbered LOCAL_RANK finds no such device, or shares one with another rank",
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_launcher_hides_all_devices_the_remedy_is_its_own_option() {
        let task = [("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "2"), ("FLUX_JOB_NNODES", "1")];
        let environment =
            Environment::from_vars(task.into_iter().chain([("CUDA_VISIBLE_DEVICES", "-1")]));
        let info = ClusterInfo::from_environment(&environment).unwrap();
        let finding = cuda(&info, &environment).unwrap();
        assert_eq!(finding.severity, Severity::Note);
        assert_eq!(
            finding.remedy,
            "`flux run -g 1` gives each rank a device, which is its device 0"
        );
    }
}
