//! A host's cores, NUMA nodes and devices, as the files of Linux describe them.
//!
//! Everything is read below a root folder, so that tests read copies of other machines' files.

mod devices;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;

use mpienv_core::seam::ranges;

pub use self::devices::{Device, Devices};

/// The hosts' cores and devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// All cores that are online, in the order in which they are next to each other: by socket,
    /// NUMA node and number.
    pub cores: Vec<Core>,
    /// The host's GPUs.
    pub devices: Devices,
}

/// A core, with all of its hardware threads that are online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// The core's CPUs. More than one with SMT (hyper-threading).
    pub cpus: Cpus,
    /// The number of its NUMA node, if Linux lists it in one.
    pub node: Option<u32>,
    /// The number of its socket.
    package: Option<u32>,
}

impl Topology {
    /// Reads `sys/devices/system/{cpu,node}` and `sys/bus/pci/devices` below a root folder.
    ///
    /// Files that are missing leave out what they would say. A container may have none at all.
    pub fn read(root: &Path) -> Topology {
        let system = root.join("sys/devices/system");
        let online: Cpus = text(&system.join("cpu/online")).unwrap_or_default();
        let nodes = nodes(&system.join("node"));
        let mut seen = BTreeSet::new();
        let mut cores = Vec::new();
        for cpu in online.iter() {
            if seen.contains(&cpu) {
                continue;
            }
            let folder = system.join(format!("cpu/cpu{cpu}/topology"));
            let siblings = text(&folder.join("thread_siblings_list")).unwrap_or_default();
            let cpus: Cpus = online.and(&siblings).iter().chain([cpu]).collect();
            seen.extend(cpus.iter());
            let node = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|(node, _)| *node);
            cores.push(Core { cpus, node, package: text(&folder.join("physical_package_id")) });
        }
        Topology { cores: in_order(cores), devices: Devices::read(root) }
    }

    /// Returns the cores that these CPUs belong to, each with those of its CPUs that are among
    /// them.
    ///
    /// A CPU that is not listed, as in a container without `/sys`, is a core of its own.
    pub fn cores_of(&self, cpus: &Cpus) -> Vec<Core> {
        let cores = self.cores.iter();
        let mut found: Vec<Core> = cores
            .map(|core| Core { cpus: core.cpus.and(cpus), ..core.clone() })
            .filter(|core| !core.cpus.is_empty())
            .collect();
        let is_listed = |cpu: u32| self.cores.iter().any(|core| core.cpus.contains(&cpu));
        let others = cpus.iter().filter(|cpu| !is_listed(*cpu));
        let alone = |cpu| Core { cpus: Cpus::from_iter([cpu]), node: None, package: None };
        found.extend(others.map(alone));
        found
    }

    /// Returns the numbers of the NUMA nodes that have cores.
    pub fn nodes(&self) -> Vec<u32> {
        nodes_of(&self.cores)
    }
}

/// Returns the NUMA nodes of these cores, each once.
pub fn nodes_of(cores: &[Core]) -> Vec<u32> {
    let nodes: BTreeSet<u32> = cores.iter().filter_map(|core| core.node).collect();
    nodes.into_iter().collect()
}

/// Sorts cores so that those of a NUMA node, and the NUMA nodes of a socket, are next to each other
/// even if the CPUs are numbered alternately.
fn in_order(mut cores: Vec<Core>) -> Vec<Core> {
    let mut sockets: BTreeMap<Option<u32>, Option<u32>> = BTreeMap::new();
    for Core { node, package, .. } in &cores {
        let lowest = sockets.entry(*node).or_insert(*package);
        *lowest = (*lowest).min(*package);
    }
    let socket = |core: &Core| sockets.get(&core.node).copied().flatten();
    cores.sort_by_key(|core| (socket(core), core.node, core.package, core.cpus.first().copied()));
    cores
}

/// Returns the CPUs of each NUMA node.
fn nodes(folder: &Path) -> BTreeMap<u32, Cpus> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, text(&entry.path().join("cpulist"))?))
    };
    entries.filter_map(node).collect()
}

/// Returns the value of a file with one line.
pub(crate) fn text<T: FromStr>(file: &Path) -> Option<T> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A set of CPUs, by Linux's numbers. Its text is a list as in `/sys`: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(BTreeSet<u32>);

impl Cpus {
    /// Returns the CPUs, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Returns the CPUs that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Cpus) -> Cpus {
        Cpus(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns the CPUs that are in at least one of the sets.
    #[must_use]
    pub fn or(&self, other: &Cpus) -> Cpus {
        Cpus(self.0.union(&other.0).copied().collect())
    }
}

impl Deref for Cpus {
    type Target = BTreeSet<u32>;

    fn deref(&self) -> &BTreeSet<u32> {
        &self.0
    }
}

impl FromIterator<u32> for Cpus {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Cpus {
        Cpus(cpus.into_iter().collect())
    }
}

impl FromStr for Cpus {
    type Err = Infallible;

    /// Parses a list of the kernel. Linux writes no other entries than these, so that others are
    /// left out.
    fn from_str(text: &str) -> Result<Cpus, Infallible> {
        let run = |entry: &str| {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        Ok(text.split(',').filter_map(run).flatten().collect())
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<u32> = self.iter().collect();
        f.write_str(&ranges(&cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_written_as_linux_writes_it() {
        for list in ["", "0", "0-3", "0-3,8,10-11"] {
            assert_eq!(list.parse::<Cpus>().unwrap().to_string(), list);
        }
        assert_eq!(" 2, 0-1\n".parse::<Cpus>().unwrap().to_string(), "0-2");
    }
}
