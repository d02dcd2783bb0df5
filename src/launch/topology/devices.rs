//! The host's GPUs, and which of them a process uses.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::text;
use mpienv_core::Environment;
use mpienv_core::seam::visible;

const NVIDIA: &str = "0x10de";
const AMD: &str = "0x1002";

/// The classes of PCI devices that compute: VGA and 3D controllers, and for AMD also display
/// controllers and processing accelerators (Instinct).
const CLASSES: [(&str, &[&str]); 2] =
    [(NVIDIA, &["0x0300", "0x0302"]), (AMD, &["0x0300", "0x0302", "0x0380", "0x1200"])];

/// The GPUs of one vendor, NVIDIA's if there are several, in the order of their PCI addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// The GPUs.
    pub all: Vec<Device>,
    vendor: &'static str,
    /// How many devices of any maker programs can open here, and the pattern of the names of their
    /// files, if there are any. A container may have only some of the host's.
    pub files: Option<(u32, &'static str)>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The PCI address, such as `0000:17:00.0`.
    pub address: String,
    /// The number of the NUMA node that it is attached to, if the firmware tells.
    pub node: Option<u32>,
    /// The PCI number of the model.
    model: String,
    /// The name of the model, if NVIDIA's driver is loaded.
    name: Option<String>,
}

impl Devices {
    /// Reads `sys/bus/pci/devices`, `proc/driver/nvidia/gpus` and `dev` below a root folder.
    pub(super) fn read(root: &Path) -> Devices {
        let mut addresses = names(&root.join("sys/bus/pci/devices"));
        addresses.sort_by_key(|address| (domain(address), address.clone()));
        let found = addresses.into_iter().filter_map(|address| gpu(root, address));
        let (nvidia, amd): (Vec<_>, Vec<_>) = found.partition(|(vendor, _)| *vendor == NVIDIA);
        // In a container, this folder lists only the devices that the container may use.
        let known = names(&root.join("proc/driver/nvidia/gpus"));
        let is_known = |device: &Device| known.is_empty() || known.contains(&device.address);
        let (vendor, found) = if nvidia.is_empty() { (AMD, amd) } else { (NVIDIA, nvidia) };
        let all = found.into_iter().map(|(_, device)| device);
        let all = all.filter(|device| vendor == AMD || is_known(device)).collect();
        Devices { all, vendor, files: files(root) }
    }

    /// Returns the names of the models, each once, where NVIDIA's driver tells them.
    pub fn models(&self) -> BTreeSet<&str> {
        self.all.iter().filter_map(|device| device.name.as_deref()).collect()
    }

    /// Returns the GPUs that this process sees, in its own order.
    ///
    /// `local_rank`: this process's number among those that the launcher started on the node.
    ///
    /// # Errors
    /// Returns the reason why the variables do not tell.
    pub fn visible(
        &self,
        environment: &Environment,
        local_rank: u32,
    ) -> Result<Vec<&Device>, String> {
        let lists: &[&[&str]] = match self.vendor {
            NVIDIA => &[&["CUDA_VISIBLE_DEVICES"]],
            // HIP numbers the devices that ROCR leaves.
            _ => &[&["ROCR_VISIBLE_DEVICES"], &["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]],
        };
        let count = self.all.len();
        let files = self.files.filter(|_| self.vendor == NVIDIA).map_or(0, |(count, _)| count);
        if (1..count).contains(&(files as usize)) {
            return Err(format!(
                "/dev has {files} of the host's {count} devices, and does not tell which"
            ));
        }
        let mut shown: Vec<&Device> = self.all.iter().collect();
        for names in lists {
            let set = names.iter().find_map(|name| Some((*name, environment.get(name)?)));
            if let Some((name, list)) = set {
                let list = list.to_string_lossy();
                let numbers = of_node(name, &list, environment, local_rank)?;
                let nth = |number: usize| {
                    let count = shown.len();
                    shown.get(number).copied().ok_or_else(|| {
                        format!("{name}={list} names device {number}, and PCI shows {count}")
                    })
                };
                shown = numbers.into_iter().map(nth).collect::<Result<_, _>>()?;
            }
        }
        self.check_order(&shown, environment)?;
        Ok(shown)
    }

    /// Returns an error if CUDA may number the devices in another order than that of PCI.
    fn check_order(&self, shown: &[&Device], environment: &Environment) -> Result<(), String> {
        let is_by_bus =
            environment.get("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
        let are_alike = self.all.windows(2).all(|pair| pair[0].model == pair[1].model);
        if self.vendor != NVIDIA || is_by_bus || are_alike || shown.is_empty() {
            return Ok(());
        }
        Err("the devices are of different models, and CUDA numbers the fastest first unless \
             CUDA_DEVICE_ORDER is PCI_BUS_ID"
            .to_owned())
    }
}

/// Returns the numbers in a list of visible devices, as the node counts them.
///
/// Slurm can hide devices with a cgroup. The others are then numbered from 0 again.
fn of_node(
    name: &str,
    list: &str,
    environment: &Environment,
    local_rank: u32,
) -> Result<Vec<usize>, String> {
    let entries = list.split(',').map(str::trim).take(visible(list));
    let numbers: Option<Vec<usize>> = entries.map(|entry| entry.parse().ok()).collect();
    let numbers = numbers
        .ok_or_else(|| format!("{name}={list} names devices by UUID, which PCI does not show"))?;
    // What Slurm gave to the step on this node, by the node's numbers.
    let Some(given) = environment.get("SLURM_STEP_GPUS") else { return Ok(numbers) };
    let given = given.to_string_lossy();
    let step: Option<Vec<usize>> =
        given.split(',').map(|entry| entry.trim().parse().ok()).collect();
    let Some(step) = step else { return Ok(numbers) };
    let is_from_0 = numbers.iter().copied().eq(0..numbers.len());
    if is_from_0 && numbers.len() == step.len() {
        return Ok(step);
    }
    let are_within = numbers.iter().all(|number| step.contains(number));
    if !are_within || is_from_0 && local_rank > 0 {
        return Err(format!(
            "{name}={list} does not tell which of Slurm's devices {given} this task sees"
        ));
    }
    Ok(numbers)
}

/// Returns a PCI device that is a GPU, with its vendor.
fn gpu(root: &Path, address: String) -> Option<(&'static str, Device)> {
    let folder = root.join("sys/bus/pci/devices").join(&address);
    let (class, vendor): (String, String) =
        (text(&folder.join("class"))?, text(&folder.join("vendor"))?);
    let (vendor, classes) = CLASSES.into_iter().find(|(own, _)| *own == vendor)?;
    if !classes.iter().any(|own| class.starts_with(own)) {
        return None;
    }
    // -1: the firmware does not tell.
    let node = text::<i64>(&folder.join("numa_node")).and_then(|node| u32::try_from(node).ok());
    let model = text(&folder.join("device")).unwrap_or_default();
    let driver = root.join("proc/driver/nvidia/gpus").join(&address).join("information");
    let driver = fs::read_to_string(driver).unwrap_or_default();
    let name = driver.lines().find_map(|line| line.strip_prefix("Model:"));
    let name = name.map(|name| name.trim().to_owned());
    Some((vendor, Device { address, node, model, name }))
}

/// Counts the device files of the first maker that has any.
fn files(root: &Path) -> Option<(u32, &'static str)> {
    // `nvidia0`, and not `nvidiactl`.
    let is_number =
        |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = |kind: &str| {
        let files = names(&root.join("dev"));
        files.iter().filter_map(|name| name.strip_prefix(kind)).filter(is_number).count()
    };
    let kinds = [
        (numbered("nvidia"), "/dev/nvidia*"),
        (numbered("davinci"), "/dev/davinci*"),
        (amd(root), "/dev/dri/renderD*"),
    ];
    let (count, pattern) = kinds.into_iter().find(|(count, _)| *count > 0)?;
    Some((u32::try_from(count).unwrap_or(u32::MAX), pattern))
}

/// Counts AMD's GPUs in this container, because `/sys` lists those of the whole host.
fn amd(root: &Path) -> usize {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    let properties = names(&nodes)
        .into_iter()
        .filter_map(|node| fs::read_to_string(nodes.join(node).join("properties")).ok());
    let files = properties.filter_map(|text| render_device(&text));
    files.filter(|file| root.join(file).exists()).count()
}

/// Returns the device file of a GPU with these properties. CPUs have such properties too, but no
/// file.
fn render_device(properties: &str) -> Option<String> {
    let minor = properties.lines().find_map(|line| line.strip_prefix("drm_render_minor "))?.trim();
    (minor != "0").then(|| format!("dev/dri/renderD{minor}"))
}

/// Returns the domain of a PCI address, whose text may have more digits than others.
fn domain(address: &str) -> u32 {
    address.split(':').next().and_then(|domain| u32::from_str_radix(domain, 16).ok()).unwrap_or(0)
}

/// Returns the names in a folder. A folder that is missing has none.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amds_gpus_have_a_file_and_processors_have_none() {
        let of = |minor: &str| {
            render_device(&format!("cpu_cores_count 0\ndrm_render_minor {minor}\nsimd_count 416\n"))
        };
        assert_eq!(of("128").as_deref(), Some("dev/dri/renderD128"));
        assert_eq!(of("0"), None);
        assert_eq!(render_device(""), None);
    }
}
