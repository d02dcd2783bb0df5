//! Selects this process's device among those that it can see.

use crate::environment::Environment;
use crate::value::sourced::{NOT_PROVIDED, Sourced};

/// Variables that limit which of the node's devices a process sees: CUDA's list, and ROCm's two.
const LISTS: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// Returns the device's number among the visible ones, and the reason for it.
pub(super) fn index(environment: &Environment, local_rank: Option<u32>) -> Sourced<Option<u32>> {
    let set = LISTS
        .iter()
        .filter_map(|name| Some((name, visible(&environment.get(name)?.to_string_lossy()))));
    // Each list can only hide devices that the others show, so the shortest list counts.
    let fewest = set.min_by_key(|(_, count)| *count);
    let (value, source) = match (fewest, local_rank) {
        (Some((name, 0)), _) => (None, format!("{name} shows no device")),
        (Some((name, 1)), _) => (Some(0), format!("{name} shows one device")),
        (_, None) => (None, NOT_PROVIDED.to_owned()),
        (None, Some(rank)) => {
            (Some(rank), "the local rank, because no variable hides a device".to_owned())
        }
        (Some((name, count)), Some(rank)) if (rank as usize) < count => {
            (Some(rank), format!("the local rank: {name} shows {count} devices"))
        }
        (Some((name, count)), Some(rank)) => {
            (None, format!("{name} shows {count} devices, and the local rank is {rank}"))
        }
    };
    Sourced::new(value, source)
}

/// Counts the devices that CUDA sees. The list ends at the first invalid entry, and a duplicate
/// makes it empty.
pub fn visible(list: &str) -> usize {
    let devices: Vec<&str> =
        list.split(',').map(str::trim).take_while(|entry| is_device(entry)).collect();
    let twice = devices.iter().enumerate().any(|(index, device)| devices[..index].contains(device));
    if twice { 0 } else { devices.len() }
}

pub fn is_device(entry: &str) -> bool {
    let is_number =
        entry.strip_prefix('+').unwrap_or(entry).starts_with(|c: char| c.is_ascii_digit());
    is_number || entry.starts_with("GPU-") || entry.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cudas_list_ends_at_the_first_entry_that_is_not_a_device() {
        let lists = [("0,,1", 1), ("0,0", 0), (" 2 , 3 ", 2), ("MIG-GPU-8932f937/1/2", 1)];
        for (list, count) in lists {
            assert_eq!(visible(list), count, "{list}");
        }
    }
}
