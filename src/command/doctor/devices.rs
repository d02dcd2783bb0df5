//! Whether each rank of this node has a device.

use super::finding;
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::finding::{Finding, Severity};

/// `CUDA_VISIBLE_DEVICES` against the ranks on this node.
pub(super) fn cuda(info: &ClusterInfo, environment: &Environment) -> Option<Finding> {
    let size = info.local_world_size()?;
    let devices = environment.get("CUDA_VISIBLE_DEVICES")?.to_string_lossy().into_owned();
    let count = visible(&devices);
    // Who hides them all means it: the job computes without.
    let are_hidden = devices.split(',').next().is_none_or(|first| !is_device(first.trim()));
    if count >= size as usize || are_hidden && size == 1 {
        return None;
    }
    let shown = if count == 1 { "device" } else { "devices" };
    let severity = if are_hidden { Severity::Note } else { Severity::Warning };
    finding(
        severity,
        "cuda-devices",
        format!("CUDA_VISIBLE_DEVICES={devices} shows {count} {shown} to the {size} ranks of this node"),
        "a program that uses the device numbered LOCAL_RANK finds no such device, or shares one with another rank",
        "make as many devices visible as the node has ranks (on Slurm, --gpus-per-node instead of --gpus-per-task), or let \
         each rank use device 0 if the launcher gives it one device"
            .into(),
    )
}

/// How many devices CUDA sees: its list ends at the first entry that is none, and is empty where one comes twice.
pub(crate) fn visible(list: &str) -> usize {
    let devices: Vec<&str> = list.split(',').map(str::trim).take_while(|entry| is_device(entry)).collect();
    let twice = devices.iter().enumerate().any(|(index, device)| devices[..index].contains(device));
    if twice { 0 } else { devices.len() }
}

fn is_device(entry: &str) -> bool {
    let is_number = entry.strip_prefix('+').unwrap_or(entry).starts_with(|c: char| c.is_ascii_digit());
    is_number || entry.starts_with("GPU-") || entry.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cudas_list_ends_at_the_first_entry_that_is_no_device() {
        for (list, count) in [
            ("0,1", 2),
            (" 2 , 3 ", 2),
            ("-1", 0),
            ("-1,-1", 0),
            ("0,-1,1", 1),
            ("0,,1", 1),
            ("", 0),
            ("NoDevFiles", 0),
            ("GPU-8932f937,GPU-1fd7a2b4", 2),
            ("MIG-GPU-8932f937/1/2", 1),
            ("0,0", 0),
        ] {
            assert_eq!(visible(list), count, "{list}");
        }
    }
}
