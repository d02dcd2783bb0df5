//! The cores that each rank of this node is bound to: by Open MPI, without being asked, or by this
//! crate.

use std::path::PathBuf;

use crate::core_share::{CoreShare, TooFew, divide};
use crate::topology::{Core, Cpus, Device, Topology};
use crate::{affinity, cores};
use mpienv_core::seam::{counted, ranges};
use mpienv_core::{ClusterInfo, Environment, Error, Launcher, Reason};

/// The folder below which the host's files are read, instead of `/`. For tests.
const ROOT: &str = "MPIENV_HOST_ROOT";

/// The variable that tells a process's programs which rule bound them.
pub const BOUND_BY: &str = "MPIENV_BIND";

/// The cores to which each worker is bound: see [`Launch::bind`](crate::Launch::bind).
///
/// ```
/// use mpienv::Bind;
///
/// assert_eq!(Bind::default(), Bind::None);
/// assert_eq!(Bind::Device.name(), "device");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bind {
    /// Workers may use all cores.
    #[default]
    None,
    /// Each worker gets its share of the node's cores: whole cores, next to each other, on one NUMA
    /// node if they fit.
    Core,
    /// Each worker gets all cores of a NUMA node. The workers are spread evenly over the NUMA
    /// nodes.
    Numa,
    /// Each worker gets its share of the cores of its GPU's NUMA node.
    Device,
}

impl Bind {
    /// Returns the name that the command's option takes: `none`, `core`, `numa` or `device`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bind::None => "none",
            Bind::Core => "core",
            Bind::Numa => "numa",
            Bind::Device => "device",
        }
    }

    fn error(self, reason: String, remedy: &str) -> Error {
        Error::new(Reason::Malformed(reason), remedy.to_owned()).of("bind").found(self.name())
    }
}

/// How to divide a host's cores: by which rule, its cores and devices, the CPUs that may be used,
/// and the variables that select devices.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// The rule.
    pub bind: Bind,
    /// The host's cores and devices.
    pub topology: Topology,
    /// The CPUs that the ranks may use.
    pub allowed: Cpus,
    /// The variables of the process that starts the ranks.
    pub environment: &'a Environment,
}

/// What a division gives, and what users should know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The share of each rank, by local rank.
    pub shares: Vec<CoreShare>,
    /// What is not as the name of the option promises.
    pub note: Option<String>,
}

/// Binds this thread, the processes that it starts, and the program that it becomes, to a share.
///
/// # Errors
/// Returns an error if the system refuses.
pub fn bind_to_share(bind: Bind, share: &CoreShare) -> Result<(), Error> {
    let refused = |cause| {
        let reason = format!("cannot bind to the CPUs {}: {cause}", share.cpus);
        bind.error(
            reason,
            "start it where the cgroup allows these CPUs, or leave the ranks unbound",
        )
    };
    affinity::bind(&share.cpus).map_err(refused)
}

/// Returns the host's cores and devices.
pub fn topology(environment: &Environment) -> Topology {
    Topology::read(&environment.get(ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from))
}

impl<'a> Node<'a> {
    /// Inspects this host, and the CPUs that this thread may use.
    ///
    /// # Errors
    /// Returns an error if the system does not tell which CPUs may be used.
    pub fn here(bind: Bind, environment: &'a Environment) -> Result<Node<'a>, Error> {
        let unknown =
            |cause| bind.error(format!("the CPUs of this process are unknown: {cause}"), UNBOUND);
        let allowed = affinity::allowed().map_err(unknown)?;
        Ok(Node { bind, topology: topology(environment), allowed, environment })
    }

    /// Divides the cores among the workers of this process.
    ///
    /// # Errors
    /// Returns an error if a worker's device, its NUMA node or the cores there are not known or not
    /// enough.
    pub fn among_workers(&self, workers: &[ClusterInfo]) -> Result<Division, Error> {
        if self.bind != Bind::Device {
            return self.divide(workers.len(), &[]);
        }
        // The workers inherit this process's variables, so that its list is theirs.
        let shown = self.shown(0)?;
        let homes: Result<Vec<u32>, Error> =
            workers.iter().map(|worker| self.home(self.device_of(&shown, worker)?)).collect();
        self.divide(workers.len(), &homes?)
    }

    /// Returns the share of this process, which a launcher has started beside the node's other
    /// ranks.
    ///
    /// # Errors
    /// Returns an error if the local rank or size is not known, and those of
    /// [`Node::among_workers`].
    pub fn of_this(&self, info: &ClusterInfo) -> Result<(CoreShare, Option<String>), Error> {
        let place = info.local_rank().zip(info.local_world_size());
        let (rank, size) = place.ok_or_else(|| {
            let reason = "the launcher does not provide the local rank and the number of ranks on \
                          this node";
            self.bind.error(reason.to_owned(), "use the launcher's own option for binding")
        })?;
        let (division, index) = match self.bind {
            Bind::Device => self.of_device(info, rank, size)?,
            _ => (self.divide(size as usize, &[])?, rank as usize),
        };
        let share = division.shares.into_iter().nth(index);
        // ClusterInfo checks that the local rank is less than the local size.
        let share = share.ok_or_else(|| {
            self.bind.error(format!("local rank {rank} of {size} has no share"), UNBOUND)
        })?;
        Ok((share, division.note))
    }

    /// Divides by the devices of all ranks if they are known, and otherwise by those of the node.
    fn of_device(
        &self,
        info: &ClusterInfo,
        rank: u32,
        size: u32,
    ) -> Result<(Division, usize), Error> {
        let shown = self.shown(rank)?;
        let own = self.device_of(&shown, info)?;
        if size == 1 {
            return Ok((self.divide(1, &[self.home(own)?])?, 0));
        }
        // Each rank sees all devices, and uses the one of its local rank.
        let all = shown.get(..size as usize).filter(|_| info.device_index() == Some(rank));
        if let Some(all) = all.filter(|_| shown.len() > 1) {
            let homes: Result<Vec<u32>, Error> =
                all.iter().map(|device| self.home(device)).collect();
            return Ok((self.divide(all.len(), &homes?)?, rank as usize));
        }
        let home = self.home(own)?;
        let devices = self.topology.devices.all.iter();
        let here: Vec<&Device> = devices.filter(|device| device.node == Some(home)).collect();
        let index = here.iter().position(|device| device.address == own.address).unwrap_or(0);
        let homes = vec![home; here.len().max(1)];
        let mut division = self.divide(homes.len(), &homes)?;
        division.note.get_or_insert(format!(
            "the devices of the other ranks are not known, so the cores of NUMA node {home} are \
             divided among its devices ({})",
            here.len().max(1)
        ));
        Ok((division, index))
    }

    fn shown(&self, local_rank: u32) -> Result<Vec<&Device>, Error> {
        let devices = &self.topology.devices;
        if devices.all.is_empty() {
            let nodes = self.topology.nodes();
            let (cores, noun) = (self.topology.cores.len(), counted(nodes.len(), "NUMA node"));
            let reason = format!(
                "this host has no GPU of NVIDIA or AMD on its PCI bus: {} and {noun}",
                counted(cores, "core")
            );
            return Err(self.bind.error(reason, WITHOUT_DEVICE));
        }
        let shown = devices.visible(self.environment, local_rank);
        shown.map_err(|reason| self.bind.error(reason, TELL_DEVICE))
    }

    /// Returns the NUMA node of a device.
    fn home(&self, device: &Device) -> Result<u32, Error> {
        let nodes = self.topology.nodes();
        match (device.node, &nodes[..]) {
            (Some(node), _) => Ok(node),
            // Hosts with one NUMA node often do not tell.
            (None, [only]) => Ok(*only),
            (None, _) => {
                let reason = format!(
                    "the firmware does not tell the NUMA node of the device at {}, and this host \
                     has {}",
                    device.address,
                    counted(nodes.len(), "NUMA node")
                );
                Err(self.bind.error(reason, WITHOUT_DEVICE))
            }
        }
    }

    fn divide(&self, ranks: usize, homes: &[u32]) -> Result<Division, Error> {
        let cores: Vec<Core> = self.topology.cores_of(&self.allowed);
        let too_few = |TooFew { node, cores, ranks }| {
            let reason = format!(
                "{} with a device on NUMA node {node}, of which this process may use {} (allowed \
                 CPUs: {})",
                counted(ranks, "rank"),
                counted(cores, "core"),
                self.allowed
            );
            self.bind.error(reason, WITHOUT_DEVICE)
        };
        let shares = divide(&cores, ranks, self.bind, homes).map_err(too_few)?;
        if shares.iter().any(|share| share.cores == 0) {
            return Err(self.bind.error("this process may use no core".to_owned(), UNBOUND));
        }
        let is_crowded = ranks > cores.len();
        let note = is_crowded
            .then(|| format!("{} share {}", counted(ranks, "rank"), counted(cores.len(), "core")));
        Ok(Division { shares, note })
    }

    /// Returns the device of a rank among those that it sees.
    fn device_of<'d>(&self, shown: &[&'d Device], info: &ClusterInfo) -> Result<&'d Device, Error> {
        let index = info.device_index().and_then(|index| usize::try_from(index).ok());
        let found = index.and_then(|index| shown.get(index).copied());
        found.ok_or_else(|| {
            let shown: Vec<&str> = shown.iter().map(|device| device.address.as_str()).collect();
            let which = match index {
                Some(index) => format!("device {index}"),
                None => format!("a device ({})", info.provenance().device_index),
            };
            let reason = format!(
                "rank {} has no {which}; the visible devices are {}",
                info.rank().index(),
                if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
            );
            self.bind.error(reason, WITHOUT_DEVICE)
        })
    }
}

const UNBOUND: &str = "leave the ranks unbound";
const WITHOUT_DEVICE: &str = "use core or numa instead";
const TELL_DEVICE: &str = "list the devices by number in CUDA_VISIBLE_DEVICES with \
                           CUDA_DEVICE_ORDER=PCI_BUS_ID, or use core or numa instead";

/// Returns NUMA nodes for a message: `NUMA node 0`, `NUMA nodes 0-1,3`.
pub fn numa_nodes(nodes: &[u32]) -> String {
    let noun = if nodes.len() == 1 { "NUMA node" } else { "NUMA nodes" };
    format!("{noun} {}", ranges(nodes))
}

/// Variables that show that a user chose cores. mpirun of Open MPI 4 sets them for its options, and
/// users set them by hand, also for version 5. mpienv sets the last.
const ASKED: &[&str] = &[
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_bind_to_core",
    "OMPI_MCA_hwloc_base_bind_to_socket",
    "OMPI_MCA_hwloc_base_cpu_list",
    "OMPI_MCA_hwloc_base_cpu_set",
    "OMPI_MCA_hwloc_base_slot_list",
    "OMPI_MCA_orte_rankfile",
    "OMPI_MCA_rmaps_base_bycore",
    "OMPI_MCA_rmaps_base_bysocket",
    "OMPI_MCA_rmaps_base_cpus_per_rank",
    "OMPI_MCA_rmaps_ppr_n_persocket",
    "OMPI_MCA_rmaps_rank_file_path",
    "PRTE_MCA_hwloc_default_binding_policy",
    "PRTE_MCA_hwloc_default_cpu_list",
    BOUND_BY,
];

/// Policies for placing ranks by nodes or slots, which do not request cores, or by parts of a node,
/// which do.
const MAPPING: &[&str] =
    &["OMPI_MCA_rmaps_base_mapping_policy", "PRTE_MCA_rmaps_default_mapping_policy"];

/// The parts of a node to which Open MPI binds the ranks that it places by them.
const PARTS: &[&str] = &[
    "hwthread", "core", "l1cache", "l2cache", "l3cache", "numa", "socket", "package", "board",
    "rankfile",
];

/// Lets this thread, and the programs that it becomes or starts, use all cores of the mpirun that
/// bound it to fewer.
///
/// By default, Open MPI binds each of one or two ranks to one core. A program with several threads
/// is then slower than under torchrun, which binds nothing. The binding stays if mpirun was asked
/// for cores (which version 5 does not show), if it leaves the rank its share of the node's cores,
/// under other launchers, and if an `mpienv exec` before this one had the option to keep it.
pub fn widen_default_binding(info: &ClusterInfo, environment: &Environment) {
    if cores::count().is_some_and(|cores| is_widened(info, environment, cores)) {
        affinity::release();
    }
}

/// Returns whether [`widen_default_binding`] changes a binding to so many of so many cores.
pub fn is_widened(info: &ClusterInfo, environment: &Environment, cores: (usize, usize)) -> bool {
    let local_size = info.local_world_size().map_or(1, |size| size as usize);
    // With more ranks, Open MPI binds each to a NUMA node or a socket.
    let (allowed, all) = cores;
    let is_too_narrow = allowed < all && (info.world_size() <= 2 || allowed < all / local_size);
    let is_default = info.launcher() == Launcher::OpenMpi && !is_asked(environment);
    is_default && !info.keeps_binding() && is_too_narrow
}

/// Lets this thread use all cores of its mpirun if Open MPI bound it without being asked, for a
/// process that then chooses its cores itself.
pub fn release_default_binding(info: &ClusterInfo, environment: &Environment) {
    if info.launcher() == Launcher::OpenMpi && !is_asked(environment) {
        affinity::release();
    }
}

/// Returns whether a variable shows that a user chose cores.
fn is_asked(environment: &Environment) -> bool {
    let mut policies = MAPPING.iter().filter_map(|name| environment.get(name)?.to_str());
    ASKED.iter().any(|name| environment.is_set(name)) || policies.any(names_cores)
}

/// Returns whether a policy such as `ppr:2:socket` or `slot:PE=2` names parts of a node or the
/// cores for each rank.
fn names_cores(policy: &str) -> bool {
    let policy = policy.to_ascii_lowercase();
    policy
        .split([':', ','])
        .any(|word| PARTS.contains(&word.trim()) || word.trim().starts_with("pe="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_by_parts_of_a_node_asks_for_cores_and_one_by_nodes_does_not() {
        for policy in
            ["core", "Core:PE=1", "slot:PE=1", "ppr:2:socket", "node:span,pe=2", "hwthread"]
        {
            assert!(names_cores(policy), "{policy}");
        }
        for policy in ["", "node", "slot", "ppr:1:node", "slot:OVERSUBSCRIBE", "seq"] {
            assert!(!names_cores(policy), "{policy}");
        }
        for name in ["OMPI_MCA_rmaps_base_mapping_policy", "PRTE_MCA_rmaps_default_mapping_policy"]
        {
            assert!(is_asked(&Environment::from_vars([(name, "core")])), "{name}");
        }
    }
}
