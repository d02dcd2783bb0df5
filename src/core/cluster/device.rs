//! Selects this process's device among those that it can see.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::environment::{Environment, digits};
use crate::value::sourced::{NOT_PROVIDED, Sourced};

/// No node has more devices or cores of devices.
const MOST_DEVICES: u32 = 4096;

/// How a variable says which of the node's devices a process sees.
#[derive(Clone, Copy)]
enum Form {
    /// CUDA's list, which ends at the first entry that is not a device.
    Cuda,
    /// Ascend's list of numbers, which ends at the first other character, even a blank.
    Ascend,
    /// Numbers and ranges of numbers, such as `0,2` and `0-3`.
    Numbers,
    /// Level Zero's devices and tiles, such as `0.1,2`.
    Tiles,
    /// DPC++'s selector, such as `level_zero:0,1`.
    Selector,
    /// How many devices the process takes. 0 means all.
    Count,
    /// The number of the only device.
    One,
}

/// Variables that limit which of the node's devices a process sees, and the pages that say so. For
/// Neuron, a device is a core. The first that is set counts the workers of `launch`.
const LISTS: [(&str, Form); 15] = [
    // https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    ("CUDA_VISIBLE_DEVICES", Form::Cuda),
    // https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    ("ROCR_VISIBLE_DEVICES", Form::Cuda),
    ("HIP_VISIBLE_DEVICES", Form::Cuda),
    ("GPU_DEVICE_ORDINAL", Form::Cuda),
    // https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0028.html
    ("ASCEND_RT_VISIBLE_DEVICES", Form::Ascend),
    // https://gitcode.com/Ascend/mind-cluster: Ascend Docker Runtime
    ("ASCEND_VISIBLE_DEVICES", Form::Numbers),
    // https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask
    ("ZE_AFFINITY_MASK", Form::Tiles),
    // https://intel.github.io/llvm-docs/EnvironmentVariables.html
    ("ONEAPI_DEVICE_SELECTOR", Form::Selector),
    // https://docs.habana.ai/en/latest/Orchestration/Multiple_Tenants_on_HPU/Multiple_Workloads_Single_Docker.html
    ("HABANA_VISIBLE_MODULES", Form::Numbers),
    ("HLS_MODULE_ID", Form::One),
    ("HABANA_VISIBLE_DEVICES", Form::Numbers),
    // https://awsdocs-neuron.readthedocs-hosted.com: "Neuron Runtime configuration"
    ("NEURON_RT_VISIBLE_CORES", Form::Numbers),
    ("NEURON_RT_NUM_CORES", Form::Count),
    // https://github.com/pytorch/xla/blob/master/torch_xla/_internal/tpu.py; the second is older
    ("TPU_VISIBLE_CHIPS", Form::Numbers),
    ("TPU_VISIBLE_DEVICES", Form::Numbers),
];

/// A variable that limits the devices, and how many it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub variable: &'static str,
    pub value: String,
    /// The number of devices, or the entry that names none.
    pub count: Result<usize, String>,
}

/// Returns the variables that are set and limit the devices to a number that is known from them.
pub fn shown(environment: &Environment) -> impl Iterator<Item = Shown> {
    LISTS.iter().filter_map(|&(variable, form)| {
        let value = environment.get(variable)?.to_string_lossy().into_owned();
        let count = count(form, value.trim(), environment)?;
        Some(Shown { variable, value, count })
    })
}

/// Counts the devices that a value shows. `None` if the value does not tell, such as `all`.
fn count(form: Form, value: &str, environment: &Environment) -> Option<Result<usize, String>> {
    match form {
        Form::Cuda => Some(Ok(visible(value))),
        Form::Ascend => Some(Ok(value.split(',').map_while(digits::<u32>).count())),
        Form::Numbers if ["", "all", "none", "void"].contains(&value) => None,
        Form::Numbers => Some(count_different(value, range)),
        Form::Tiles if value.is_empty() => None,
        Form::Tiles => {
            let hierarchy = environment.get("ZE_FLAT_DEVICE_HIERARCHY");
            // There, tiles are parts of a device. Elsewhere, each is a device.
            let are_parts = hierarchy.is_some_and(|it| it.eq_ignore_ascii_case("COMPOSITE"));
            Some(count_different(value, |entry| {
                let mut device = tile(entry)?;
                device.truncate(if are_parts { 1 } else { device.len() });
                Ok([device])
            }))
        }
        Form::Selector => {
            // Several terms, exclusions, kinds and `*` name no fixed number.
            let (_, list) = value.split_once(':')?;
            let count = count_different(list, |entry| tile(entry).map(|tile| [tile])).ok()?;
            let is_one_term = !value.contains(['!', ';']);
            is_one_term.then_some(Ok(count))
        }
        Form::Count => value.parse().ok().filter(|&count| count > 0).map(Ok),
        Form::One if value.is_empty() => None,
        Form::One => Some(digits::<u32>(value).map(|_| 1).ok_or_else(|| value.to_owned())),
    }
}

/// Counts the different devices that the entries of a list name, or returns an entry that names
/// none.
fn count_different<T: Ord, I: IntoIterator<Item = T>>(
    list: &str,
    devices: impl Fn(&str) -> Result<I, String>,
) -> Result<usize, String> {
    let mut different = BTreeSet::new();
    for entry in list.split(',') {
        different.extend(devices(entry.trim())?);
    }
    Ok(different.len())
}

/// Parses a number or a range. A range above any node's devices is none.
fn range(entry: &str) -> Result<RangeInclusive<u32>, String> {
    let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
    let range = digits(first).zip(digits(last)).filter(|(first, last)| first <= last);
    let range = range.filter(|(first, last)| last - first < MOST_DEVICES);
    range.map(|(first, last)| first..=last).ok_or_else(|| entry.to_owned())
}

/// Parses a device and its tile, such as `0.1`.
fn tile(entry: &str) -> Result<Vec<u32>, String> {
    entry.split('.').map(digits).collect::<Option<_>>().ok_or_else(|| entry.to_owned())
}

/// Returns the device's number among the visible ones, and the reason for it.
pub(super) fn index(environment: &Environment, local_rank: Option<u32>) -> Sourced<Option<u32>> {
    // Each list can only hide devices that the others show, so the shortest list counts.
    let fewest = shown(environment).min_by_key(|list| list.count.clone().unwrap_or(0));
    let fewest = match fewest {
        Some(Shown { variable, value, count: Err(entry) }) => {
            let source =
                format!("{variable}={value} shows no device, because {entry:?} names none");
            return Sourced::new(None, source);
        }
        other => other.and_then(|list| Some((list.variable, list.count.ok()?))),
    };
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
    fn each_makers_list_shows_the_devices_that_its_documentation_says() {
        for (variable, value, count) in [
            ("ZE_AFFINITY_MASK", "0.1", Some(Ok(1))),
            ("ZE_AFFINITY_MASK", "0.0,0.1,2", Some(Ok(3))),
            ("ZE_AFFINITY_MASK", "", None),
            ("ZE_AFFINITY_MASK", "x", Some(Err("x"))),
            ("ZE_AFFINITY_MASK", "1,0.", Some(Err("0."))),
            ("ONEAPI_DEVICE_SELECTOR", "level_zero:0,1", Some(Ok(2))),
            ("ONEAPI_DEVICE_SELECTOR", "*:1.0", Some(Ok(1))),
            ("ONEAPI_DEVICE_SELECTOR", "level_zero:gpu", None),
            ("ONEAPI_DEVICE_SELECTOR", "level_zero:0;opencl:1", None),
            ("ONEAPI_DEVICE_SELECTOR", "!opencl:0", None),
            ("ASCEND_RT_VISIBLE_DEVICES", "4,5", Some(Ok(2))),
            ("ASCEND_RT_VISIBLE_DEVICES", "1, 2,3", Some(Ok(1))),
            ("ASCEND_RT_VISIBLE_DEVICES", "GPU-1", Some(Ok(0))),
            ("ASCEND_VISIBLE_DEVICES", "0-2,4", Some(Ok(4))),
            ("HABANA_VISIBLE_MODULES", "0,1,2,3", Some(Ok(4))),
            ("HABANA_VISIBLE_DEVICES", "all", None),
            ("HLS_MODULE_ID", "5", Some(Ok(1))),
            ("HLS_MODULE_ID", "five", Some(Err("five"))),
            ("NEURON_RT_VISIBLE_CORES", "0-3", Some(Ok(4))),
            ("NEURON_RT_VISIBLE_CORES", "3-0", Some(Err("3-0"))),
            ("NEURON_RT_VISIBLE_CORES", "0-4294967295", Some(Err("0-4294967295"))),
            ("NEURON_RT_NUM_CORES", "2", Some(Ok(2))),
            ("NEURON_RT_NUM_CORES", "0", None),
            ("TPU_VISIBLE_CHIPS", "0,1", Some(Ok(2))),
            ("TPU_VISIBLE_DEVICES", "0", Some(Ok(1))),
        ] {
            let environment = Environment::from_vars([(variable, value)]);
            let found = shown(&environment).next().map(|list| list.count);
            assert_eq!(found, count.map(|it| it.map_err(str::to_owned)), "{variable}={value}");
        }
    }

    #[test]
    fn tiles_are_devices_unless_the_hierarchy_is_composite() {
        for (hierarchy, count) in [("FLAT", 3), ("COMBINED", 3), ("COMPOSITE", 2)] {
            let environment = Environment::from_vars([
                ("ZE_AFFINITY_MASK", "0.0,0.1,1.0"),
                ("ZE_FLAT_DEVICE_HIERARCHY", hierarchy),
            ]);
            assert_eq!(shown(&environment).next().unwrap().count, Ok(count), "{hierarchy}");
        }
    }

    #[test]
    fn cudas_list_ends_at_the_first_entry_that_is_not_a_device() {
        let lists = [("0,,1", 1), ("0,0", 0), (" 2 , 3 ", 2), ("MIG-GPU-8932f937/1/2", 1)];
        for (list, count) in lists {
            assert_eq!(visible(list), count, "{list}");
        }
    }
}
