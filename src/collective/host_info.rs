//! What each rank sends to all others before the first call.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A rank's host and cores. In an MPI job, rank 0 adds where its watch listens.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostInfo {
    pub host: String,
    /// The machine's ID: the same for all ranks that share cores, even in containers with other
    /// host names.
    pub machine: String,
    /// The rank's network namespace, which usually differs between containers of one machine.
    pub network: String,
    /// The numbers of the cores that this rank may run on; empty if unknown.
    pub cores: BTreeSet<usize>,
    /// The CPU quota in cores, if it is below the number of cores.
    pub quota: Option<usize>,
    /// On rank 0 only.
    pub listens: Option<Listener>,
}

/// Where rank 0 accepts connections, and the key that only ranks of this job have.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listener {
    pub port: u16,
    pub addresses: Vec<IpAddr>,
    pub key: [u8; 32],
}

impl HostInfo {
    pub(super) fn own(listens: Option<Listener>) -> HostInfo {
        let cores = cores();
        let parallel = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        let quota = (parallel < cores.len()).then_some(parallel);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // A machine's containers share its boot ID.
        let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_else(|_| host.clone());
        let network = std::fs::read_link("/proc/self/ns/net")
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        HostInfo { host, machine, network, cores, quota, listens }
    }

    /// The bytes that this rank sends; none, which no rank can read, if there is no JSON for it.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What the ranks sent, in rank order.
    ///
    /// # Errors
    /// The rank whose bytes cannot be read.
    pub(super) fn decode_all(all: &[Vec<u8>]) -> Result<Vec<HostInfo>, usize> {
        let decode = |(rank, info): (usize, &Vec<u8>)| serde_json::from_slice(info).or(Err(rank));
        all.iter().enumerate().map(decode).collect()
    }

    /// Returns whether the other rank is on the same machine and in the same network namespace.
    pub(super) fn is_with(&self, other: &HostInfo) -> bool {
        (&self.machine, &self.network) == (&other.machine, &other.network)
    }
}

/// Returns whether every rank has its own core, as far as is known. All ranks get the same answer
/// from the same data.
pub(super) fn have_a_core_each(infos: &[HostInfo]) -> bool {
    let mut machines = BTreeMap::<&str, (usize, BTreeSet<usize>, usize)>::new();
    for host_info in infos {
        let (ranks, cores, quota) =
            machines.entry(&host_info.machine).or_insert((0, BTreeSet::new(), usize::MAX));
        *ranks += 1;
        cores.extend(&host_info.cores);
        *quota = (*quota).min(host_info.quota.unwrap_or(usize::MAX));
    }
    machines.into_values().all(|(ranks, cores, quota)| ranks <= cores.len().min(quota))
}

#[cfg(target_os = "linux")]
fn cores() -> BTreeSet<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Ok(set) = sched_getaffinity(None) else { return BTreeSet::new() };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

#[cfg(not(target_os = "linux"))]
fn cores() -> BTreeSet<usize> {
    BTreeSet::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_info(machine: &str, cores: &[usize], quota: Option<usize>) -> HostInfo {
        HostInfo {
            machine: machine.to_owned(),
            cores: cores.iter().copied().collect(),
            quota,
            ..HostInfo::default()
        }
    }

    #[test]
    fn ranks_have_a_core_each_where_their_machines_cores_are_as_many() {
        // Each rank bound to its own core, or not bound.
        assert!(have_a_core_each(&[host_info("a", &[0], None), host_info("a", &[1], None)]));
        assert!(have_a_core_each(&[host_info("a", &[0, 1], None), host_info("a", &[0, 1], None)]));
        assert!(have_a_core_each(&[host_info("a", &[0], None), host_info("b", &[0], None)]));
        // Two ranks bound to the same core, perhaps on only one of the machines.
        assert!(!have_a_core_each(&[host_info("a", &[0], None), host_info("a", &[0], None)]));
        assert!(!have_a_core_each(&[
            host_info("b", &[0], None),
            host_info("a", &[0], None),
            host_info("a", &[0], None)
        ]));
        // A container that sees three cores and has a CPU quota of one.
        assert!(!have_a_core_each(&[
            host_info("a", &[0, 1, 2], Some(1)),
            host_info("a", &[0, 1, 2], Some(1))
        ]));
        // A system that does not report its cores.
        assert!(!have_a_core_each(&[host_info("a", &[], None)]));
    }

    #[test]
    fn this_process_has_a_core() {
        let own = HostInfo::own(None);
        let sent = [own.encode(), b"{}".to_vec()];
        assert!(HostInfo::decode_all(&sent[..1]) == Ok(vec![own.clone()]));
        assert_eq!(HostInfo::decode_all(&sent).err(), Some(1));
        assert!(have_a_core_each(std::slice::from_ref(&own)), "{:?}", own.cores);
        assert!(!own.host.is_empty());
        assert!(!own.machine.is_empty());
    }
}
