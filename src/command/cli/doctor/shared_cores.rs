//! Finds ranks that have met and share a core while other cores of their host are idle.

use std::collections::BTreeMap;

use crate::command::doctor::{self, Machine};
use crate::{Finding, host_name};
use mpienv_launch::seam::Cpus;
use serde::{Deserialize, Serialize};

/// What a rank sends about its cores. Each core is known by its lowest CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cores {
    host: String,
    /// The cores that the rank may use, as a list.
    own: String,
    /// The cores that it could use without its binding.
    usable: String,
}

impl Cores {
    pub(super) fn new(machine: &Machine) -> Cores {
        let cores = |cpus: &Cpus| {
            let first = |core: &Cpus| core.first();
            let all = machine.topology.cores();
            let whole = |cpu: u32| {
                let core = all.iter().find(|core| core.cpus.contains(cpu));
                core.and_then(|core| first(&core.cpus)).unwrap_or(cpu)
            };
            cpus.iter().map(whole).collect::<Cpus>().to_string()
        };
        Cores {
            host: host_name().unwrap_or_default(),
            own: cores(&machine.cpus),
            usable: cores(&machine.usable),
        }
    }
}

/// Returns a finding for each host on which ranks share a core while another core is idle. `ranks`:
/// what each rank sent, by rank.
pub(super) fn findings(ranks: &[Cores]) -> Vec<Finding> {
    let mut hosts: BTreeMap<&str, Vec<(u32, &Cores)>> = BTreeMap::new();
    for (rank, cores) in (0..).zip(ranks) {
        if !cores.host.is_empty() {
            hosts.entry(&cores.host).or_default().push((rank, cores));
        }
    }
    hosts.into_iter().filter_map(|(host, ranks)| finding(host, &ranks)).collect()
}

fn finding(host: &str, ranks: &[(u32, &Cores)]) -> Option<Finding> {
    let set = |list: &str| list.parse::<Cpus>().unwrap_or_default();
    let mut users: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (rank, cores) in ranks {
        for core in set(&cores.own).iter() {
            users.entry(core).or_default().push(*rank);
        }
    }
    let usable: Cpus =
        ranks.iter().flat_map(|(_, cores)| set(&cores.usable).iter().collect::<Vec<_>>()).collect();
    let idle: Cpus = usable.iter().filter(|core| !users.contains_key(core)).collect();
    let crowded = users.values().filter(|users| users.len() > 1);
    let sharing: Cpus = crowded.flatten().copied().collect();
    if idle.is_empty() || sharing.is_empty() {
        return None;
    }
    doctor::cores_shared(host, &sharing, &idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(host: &str, own: &str) -> Cores {
        Cores { host: host.to_owned(), own: own.to_owned(), usable: "0-3".to_owned() }
    }

    #[test]
    fn ranks_that_share_cores_are_found_only_where_others_are_idle() {
        let shared = [cores("a", "0"), cores("b", "0-3"), cores("a", "0-1"), cores("b", "0-3")];
        let found = findings(&shared);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].code, "cores-shared");
        assert_eq!(
            found[0].what,
            "on a, the ranks 0,2 share cores, and no rank uses the cores of CPUs 2-3"
        );
        let apart = [cores("a", "0"), cores("a", "1"), cores("b", "0"), Cores::default()];
        assert_eq!(findings(&apart), []);
    }
}
