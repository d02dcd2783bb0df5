//! Checks whether each rank on this node has a device.

use crate::{ClusterInfo, Environment, Finding, Severity};
use mpienv_core::seam::{SIMULATED, Shown, counted, is_device, shown, visible};
use mpienv_launch::seam::Devices;
use serde::Serialize;

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const CODE: &str = "visible-devices";
const EFFECT: &str = "a program that uses the device numbered LOCAL_RANK finds no such device, or shares one with another rank";

/// The devices of this host, as `show` and `doctor` list them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostDevices {
    /// How many programs can open.
    count: u32,
    /// How many of them a list of visible devices leaves to this process.
    visible: u32,
    /// The names of their models, where the driver tells them.
    models: Vec<String>,
    /// The pattern of the names of their files, or the list.
    source: String,
}

impl HostDevices {
    /// Returns what this process sees of the devices. `None` if the host has none.
    pub(crate) fn of(devices: &Devices, environment: &Environment) -> Option<HostDevices> {
        let (count, files) = devices.files?;
        let list = shown(environment).next();
        let limit = list.as_ref().map(|list| list.count.clone().unwrap_or(0));
        let visible = limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(count).min(count);
        let source = list.map_or(files.to_owned(), |Shown { variable, value, .. }| {
            format!("{variable}={value}")
        });
        let models = devices.models().into_iter().map(str::to_owned).collect();
        Some(HostDevices { count, visible, models, source })
    }

    pub(crate) fn row(&self) -> [String; 3] {
        let HostDevices { count, visible, models, source } = self;
        let value =
            if visible < count { format!("{visible} of {count}") } else { count.to_string() };
        let models = if models.is_empty() { String::new() } else { models.join(", ") + ", " };
        ["devices".to_owned(), value, format!("{models}{source}")]
    }
}

/// Compares the devices, and the lists of visible ones, with the ranks on this node.
pub(crate) fn few(info: &ClusterInfo, devices: &Devices) -> Option<Finding> {
    cuda(info).or_else(|| others(info)).or_else(|| fewer_than_ranks(info, devices))
}

/// Compares the device files with the ranks on this node, unless a list counts instead.
fn fewer_than_ranks(info: &ClusterInfo, devices: &Devices) -> Option<Finding> {
    let environment = info.environment();
    let (size, (count, files)) = (info.local_world_size()?, devices.files?);
    // The ranks of a simulated job all run on this host.
    let is_counted = shown(environment).next().is_none() && !environment.is_set(SIMULATED);
    let devices = counted(count as usize, "device");
    Some(Finding::warning(
        "few-devices",
        format!("this node has {devices} ({files}) for its {size} ranks"),
        EFFECT,
        format!(
            "start at most {} on each node; if the program uses no device, none is needed",
            counted(count as usize, "rank")
        ),
    ))
    .filter(|_| is_counted && count < size)
}

/// Returns the only device that this process sees, by a name that other processes of the host give
/// it too. `None` if it sees several, or if nothing tells which it is.
pub(crate) fn only(info: &ClusterInfo, devices: &Devices) -> Option<String> {
    let environment = info.environment();
    let list = environment.get(CUDA).map(|list| list.to_string_lossy());
    let mut entries = list.iter().flat_map(|list| list.split(',')).map(str::trim);
    if let (Some(uuid), None) = (entries.next(), entries.next())
        && (uuid.starts_with("GPU-") || uuid.starts_with("MIG-"))
    {
        return Some(uuid.to_owned());
    }
    // Slurm may have hidden devices, after which a process counts those that are left.
    if environment.is_set("SLURM_JOB_ID") && !environment.is_set("SLURM_STEP_GPUS") {
        return None;
    }
    let seen = devices.visible(environment, info.local_rank()?).ok()?;
    if let [device] = seen[..] { Some(device.address.clone()) } else { None }
}

/// Compares the lists of other makers than NVIDIA. One device may be each rank's own.
fn others(info: &ClusterInfo) -> Option<Finding> {
    let size = info.local_world_size().unwrap_or(1);
    let lists = shown(info.environment()).filter(|list| list.variable != CUDA);
    lists.into_iter().find_map(|Shown { variable, value, count }| match count {
        Err(entry) => Some(no_device(variable, &value, &entry)),
        Ok(count) => (count > 1 && count < size as usize).then(|| {
            Finding::warning(
                CODE,
                format!(
                    "{variable}={value} shows {count} devices to the {size} ranks of this node"
                ),
                EFFECT,
                format!(
                    "name as many devices in {variable} as the node has ranks, or one for each rank"
                ),
            )
        }),
    })
}

fn no_device(variable: &str, value: &str, entry: &str) -> Finding {
    Finding::warning(
        CODE,
        format!("{variable}={value} names no device: {entry:?} is not one"),
        EFFECT,
        format!("correct {variable}, or unset it to see all devices"),
    )
}

/// What stands in a list of visible devices to hide all of them: Slurm writes `NoDevFiles`.
const HIDDEN: [&str; 5] = ["", "-1", "nodevfiles", "none", "void"];

/// Compares `CUDA_VISIBLE_DEVICES` with the ranks on this node.
fn cuda(info: &ClusterInfo) -> Option<Finding> {
    let size = info.local_world_size()?;
    let devices = info.environment().get(CUDA)?.to_string_lossy().into_owned();
    let count = visible(&devices);
    let first = devices.split(',').next().unwrap_or_default().trim();
    if !is_device(first) && !HIDDEN.contains(&first.to_ascii_lowercase().as_str()) {
        return Some(no_device(CUDA, &devices, first));
    }
    // Users who hide all devices do so on purpose, because the job does not need them.
    let are_hidden = !is_device(first);
    if count >= size as usize || are_hidden && size == 1 {
        return None;
    }
    let shown = counted(count, "device");
    let remedy = match info.launcher().spec().devices.filter(|_| are_hidden) {
        Some(command) => format!("`{command}` gives each rank a device, which is its device 0"),
        None => "make as many devices visible as the node has ranks (on Slurm, --gpus-per-node instead of --gpus-per-task), or let each rank use device 0 if the launcher gives it one device"
            .to_owned(),
    };
    let severity = if are_hidden { Severity::Note } else { Severity::Warning };
    Some(Finding::new(
        severity,
        CODE,
        format!("CUDA_VISIBLE_DEVICES={devices} shows {shown} to the {size} ranks of this node"),
        EFFECT,
        remedy,
    ))
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
            few(&info, &Devices::default()).map(|finding| finding.to_string())
        };
        let few = found("ASCEND_RT_VISIBLE_DEVICES", "0,1").unwrap();
        assert!(few.contains("ASCEND_RT_VISIBLE_DEVICES=0,1 shows 2 devices to the 4"), "{few}");
        let none = found("ZE_AFFINITY_MASK", "0.").unwrap();
        assert!(none.contains("ZE_AFFINITY_MASK=0. names no device"), "{none}");
        assert!(none.contains("correct ZE_AFFINITY_MASK"), "{none}");
        let none = found(CUDA, "foo,0").unwrap();
        assert!(none.starts_with("warning: ") && none.contains("\"foo\" is not one"), "{none}");
        for hidden in ["", "-1", "NoDevFiles"] {
            assert!(found(CUDA, hidden).unwrap().starts_with("note: "), "{hidden}");
        }
        assert_eq!(found("ZE_AFFINITY_MASK", "0.1"), None);
        assert_eq!(found("NEURON_RT_VISIBLE_CORES", "0-3"), None);
    }

    #[test]
    fn where_a_launcher_hides_all_devices_the_remedy_is_its_own_option() {
        let task = [("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "2"), ("FLUX_JOB_NNODES", "1")];
        let environment =
            Environment::from_vars(task.into_iter().chain([("CUDA_VISIBLE_DEVICES", "-1")]));
        let info = ClusterInfo::from_environment(&environment).unwrap();
        let finding = cuda(&info).unwrap();
        assert_eq!(finding.severity, Severity::Note);
        assert_eq!(
            finding.remedy,
            "`flux run -g 1` gives each rank a device, which is its device 0"
        );
    }
}
