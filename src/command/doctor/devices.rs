//! Checks whether each rank on this node has a device.

use super::finding;
use crate::{ClusterInfo, Environment, Finding, Severity};
use mpienv_core::seam::{LauncherSeam as _, Shown, is_device, shown, visible};

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const CODE: &str = "visible-devices";
const EFFECT: &str = "a program that uses the device numbered LOCAL_RANK finds no such device, or shares one with another rank";

/// Compares the lists of visible devices with the ranks on this node.
pub(super) fn few(info: &ClusterInfo, environment: &Environment) -> Option<Finding> {
    cuda(info, environment).or_else(|| others(info, environment))
}

/// Compares the lists of other makers than NVIDIA. One device may be each rank's own.
fn others(info: &ClusterInfo, environment: &Environment) -> Option<Finding> {
    let size = info.local_world_size().unwrap_or(1);
    let lists = shown(environment).filter(|list| list.variable != CUDA);
    lists.into_iter().find_map(|Shown { variable, value, count }| {
        let (what, remedy) = match count {
            Err(entry) => (
                format!("{variable}={value} names no device: {entry:?} is not one"),
                format!("correct {variable}, or unset it to see all devices"),
            ),
            Ok(count) if count > 1 && count < size as usize => (
                format!(
                    "{variable}={value} shows {count} devices to the {size} ranks of this node"
                ),
                format!(
                    "name as many devices in {variable} as the node has ranks, or one for each rank"
                ),
            ),
            Ok(_) => return None,
        };
        finding(Severity::Warning, CODE, what, EFFECT, remedy)
    })
}

/// Compares `CUDA_VISIBLE_DEVICES` with the ranks on this node.
fn cuda(info: &ClusterInfo, environment: &Environment) -> Option<Finding> {
    let size = info.local_world_size()?;
    let devices = environment.get(CUDA)?.to_string_lossy().into_owned();
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
        CODE,
        format!(
            "CUDA_VISIBLE_DEVICES={devices} shows {count} {shown} to the {size} ranks of this node"
        ),
        EFFECT,
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_any_maker_that_shows_too_few_devices_or_names_none_is_a_warning() {
        let found = |variable, value| {
            let ranks = [("RANK", "1"), ("WORLD_SIZE", "4")];
            let local = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4"), (variable, value)];
            let environment = Environment::from_vars(ranks.into_iter().chain(local));
            let info = ClusterInfo::from_environment(&environment).unwrap();
            few(&info, &environment).map(|finding| finding.to_string())
        };
        let few = found("ASCEND_RT_VISIBLE_DEVICES", "0,1").unwrap();
        assert!(few.contains("ASCEND_RT_VISIBLE_DEVICES=0,1 shows 2 devices to the 4"), "{few}");
        let none = found("ZE_AFFINITY_MASK", "0.").unwrap();
        assert!(none.contains("ZE_AFFINITY_MASK=0. names no device"), "{none}");
        assert!(none.contains("correct ZE_AFFINITY_MASK"), "{none}");
        assert_eq!(found("ZE_AFFINITY_MASK", "0.1"), None);
        assert_eq!(found("NEURON_RT_VISIBLE_CORES", "0-3"), None);
    }

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
