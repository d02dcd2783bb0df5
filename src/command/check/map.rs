//! The map of a job whose ranks have met, and what does not fit together in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::CheckError;
use super::Measures;
use super::measurement::{Measurement, grouped, named};
use crate::command::protection::Protection;
use crate::{Finding, Severity, printable};
use mpienv_launch::seam::{NodeOptions, SAME_OPTIONS, nodes_differ, tell_if_on_one_host};

/// The place of every rank of a job, as they reported it when they met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct JobMap {
    /// Where the ranks met, as rank 0 names it: `host:port`.
    pub master: String,
    /// How long rank 0 waited for all ranks, in seconds.
    pub seconds: f64,
    /// What kept other programs out.
    pub protection: Protection,
    /// Why rank 0 did not use MUNGE although it was asked for.
    #[serde(skip)]
    pub no_munge: Option<String>,
    /// How many connections did not come from ranks of this job.
    #[serde(rename = "strangers")]
    pub rejected: u64,
    /// The addresses of rank 0's host on which it listened; `::` stands for every address.
    pub listened: Vec<IpAddr>,
    /// Whether the job is simulated. If so, hosts and local ranks are not compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The ranks, in order.
    pub ranks: Vec<RankReport>,
    /// What does not fit together although all ranks met, and what is wrong with a rank that is
    /// alone. In JSON, also what was measured.
    pub findings: Vec<Finding>,
    /// What each of them was started to measure.
    #[serde(skip)]
    pub measures: Vec<Measures>,
    /// What Slurm calls each rank's node.
    #[serde(skip)]
    pub slurm_nodes: Vec<Option<String>>,
    /// The network between the hosts, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Measurement>,
    /// The cores of the ranks, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<Measurement>,
    /// The ranks' GPUs, if they were tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Measurement>,
}

/// Where one rank is, as it reports it at the meeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankReport {
    pub host: String,
    /// The rank's address, as rank 0 sees it.
    #[serde(default)]
    pub address: Option<IpAddr>,
    pub local_rank: Option<u32>,
    pub local_size: Option<u32>,
    /// The options that must be the same on every node, if it is the launch of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<NodeOptions>,
    /// Where the rank met the others, as this rank names it.
    pub master: String,
    /// Why the rank is probably in a job of its own beside others: what was seen, why that matters,
    /// and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<[String; 3]>,
}

impl JobMap {
    /// Returns the hosts in the order of their first rank, each with its ranks.
    pub(crate) fn hosts(&self) -> Vec<(&str, Vec<(u32, &RankReport)>)> {
        let ranks = (0..).zip(&self.ranks);
        grouped(ranks.map(|(rank, report)| ((rank, report), report.host.as_str())))
    }

    /// Adds the host to the loss of a rank.
    pub(super) fn named(&self, error: CheckError) -> CheckError {
        let CheckError::LostRank { rank, reason, .. } = error else { return error };
        let report = self.ranks.get(rank as usize);
        let host = report.map(|report| report.host.clone()).unwrap_or_default();
        CheckError::LostRank { rank, host, reason }
    }

    /// Returns the map with what does not fit together although all ranks met.
    pub(super) fn compared(mut self) -> JobMap {
        let mut findings = Vec::new();
        let hosts = if self.simulated { Vec::new() } else { self.hosts() };
        findings.extend(self.launches_differ());
        findings.extend(self.doubt());
        // Each rank may be the launch of a node, which starts that node's workers.
        let are_nodes = self.ranks.iter().all(|report| report.launch.is_some());
        for (host, ranks) in hosts.iter().filter(|_| !are_nodes) {
            findings.extend(same_local_rank(host, ranks));
            findings.extend(other_local_size(host, ranks));
        }
        findings.extend(self.options_differ("--mesh", |measures| measures.mesh.is_some()));
        findings.extend(self.options_differ("--compute", |measures| measures.compute));
        findings.extend(self.options_differ("--gpu", |measures| measures.gpu.is_some()));
        findings.extend(self.masters_differ());
        findings.extend(self.rejected_connections());
        self.findings = findings;
        self
    }

    /// Says on stderr that two nodes are on one host.
    pub(crate) fn tell_if_on_one_host(&self) {
        tell_if_on_one_host(self.ranks.iter().map(|report| &*report.host));
    }

    /// Reports nodes whose launches have different options.
    fn launches_differ(&self) -> Option<Finding> {
        let reports = self.ranks.iter();
        let nodes = reports.map_while(|report| Some((&*report.host, report.launch.as_ref()?)));
        Some(Finding::error(
            "launches-differ",
            nodes_differ(nodes)?,
            "each node computes the ranks of its workers, and whether it waits for the other nodes, \
             from its own options",
            SAME_OPTIONS,
        ))
    }

    /// Reports that the ranks that have met are perhaps only some of the job.
    fn doubt(&self) -> Option<Finding> {
        let mut doubts =
            (0..).zip(&self.ranks).filter_map(|(rank, own)| Some((rank, own.doubt.as_ref()?)));
        let (rank, doubt): (u32, _) = doubts.next()?;
        let [what, why, remedy] = doubt.each_ref().map(|text| printable(text.as_bytes()));
        let what = format!("rank {rank}: {what}");
        Some(Finding::error("launchers-disagree", what, why, remedy))
    }

    /// Returns what was measured.
    pub(crate) fn measurements(&self) -> impl Iterator<Item = &Measurement> {
        [&self.mesh, &self.compute, &self.gpu].into_iter().flatten()
    }

    /// Returns what stands out in the measurements.
    pub(crate) fn measured_findings(&self) -> impl Iterator<Item = &Finding> {
        self.measurements().flat_map(|measured| &measured.findings)
    }

    /// Returns the map with all findings in one list.
    pub(crate) fn with_all_findings(mut self) -> JobMap {
        let measured: Vec<_> = self.measured_findings().cloned().collect();
        self.findings.extend(measured);
        self
    }

    /// Returns the hosts that the measurements blame, each once, as `srun --exclude` knows them.
    pub(crate) fn bad_hosts(&self) -> Vec<&str> {
        let blamed: BTreeSet<_> = self.measurements().flat_map(|own| &own.bad_hosts).collect();
        let hosts = self.hosts().into_iter();
        let bad = hosts.filter(|(host, _)| blamed.iter().any(|bad| bad == host));
        let name = |(host, ranks): (_, Vec<(u32, _)>)| {
            let first = ranks.first().and_then(|&(rank, _)| self.slurm_nodes.get(rank as usize));
            first.and_then(Option::as_deref).unwrap_or(host)
        };
        bad.map(name).collect()
    }

    /// Returns those findings that are errors.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }

    /// Returns the first error, for the ranks that have no map.
    pub(super) fn first_error(&self) -> Option<String> {
        let Finding { what, why, remedy, .. } = self.errors().next()?;
        Some(format!("{what}: {why}; {remedy}"))
    }

    /// Reports an option that only some ranks have.
    fn options_differ(&self, option: &str, has: impl Fn(&Measures) -> bool) -> Option<Finding> {
        let (with, without): (Vec<u32>, Vec<u32>) =
            (0..).take(self.measures.len()).partition(|rank| has(&self.measures[*rank as usize]));
        if with.is_empty() || without.is_empty() {
            return None;
        }
        let (with, without) = (named(&with), named(&without));
        Some(Finding::error(
            "options-differ",
            format!("{with} started check with {option}, and {without} without it"),
            "all ranks measure together, so those with it would wait for the others",
            format!("start all ranks with {option}, or none"),
        ))
    }

    fn masters_differ(&self) -> Option<Finding> {
        let own = &self.master;
        let mut names = self.ranks.iter().map(|report| &report.master).enumerate().skip(1);
        let (rank, other) = names.find(|(_, name)| *name != own)?;
        Some(Finding::note(
            "master-names-differ",
            format!("rank 0 names the master {own}, and rank {rank} names it {other}"),
            "both names lead to the same place now, but that may change",
            "give all ranks the same MASTER_ADDR",
        ))
    }

    fn rejected_connections(&self) -> Option<Finding> {
        let what = match self.rejected {
            1 => "1 connection to the master's port was not a rank of this job".to_owned(),
            count => format!("{count} connections to the master's port were not ranks of this job"),
        };
        (self.rejected > 0).then(|| {
            Finding::note(
                "strangers",
                what,
                "a port scanner, a health check, or another job with the same port",
                "if it is another job, give each job a different MASTER_PORT",
            )
        })
    }
}

fn same_local_rank(host: &str, ranks: &[(u32, &RankReport)]) -> Option<Finding> {
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    let (first, second, local) = ranks.iter().find_map(|&(rank, report)| {
        let local = report.local_rank?;
        Some((seen.insert(local, rank)?, rank, local))
    })?;
    Some(Finding::error(
        "local-rank-twice",
        format!("ranks {first} and {second} are both local rank {local} on {host}"),
        "both would use the same device",
        "give each rank of a host a different LOCAL_RANK; take it from the launcher",
    ))
}

fn other_local_size(host: &str, ranks: &[(u32, &RankReport)]) -> Option<Finding> {
    let count = ranks.len();
    let (wrong, size) = ranks.iter().find_map(|(rank, report)| {
        Some((rank, report.local_size.filter(|&size| size as usize != count)?))
    })?;
    let here = if count == 1 { "1 rank is".to_owned() } else { format!("{count} ranks are") };
    Some(Finding::warning(
        "local-size-differs",
        format!("rank {wrong} has a local size of {size}, but {here} on {host}"),
        "two hosts have the same name, containers have their own names, or variables are left \
         from another job",
        "give every host a different name, and start all ranks with one launcher",
    ))
}

/// Returns the master as the other ranks name it, for a rank 0 that listens everywhere, as AWS
/// Batch's main node does.
pub(super) fn as_others_call_it(ranks: &[RankReport]) -> Option<&str> {
    ranks.get(1).map(|report| report.master.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_0_that_listens_everywhere_is_called_as_the_others_call_it() {
        let rank = |host: &str, master: &str| RankReport {
            doubt: None,
            host: host.to_owned(),
            address: None,
            local_rank: Some(0),
            local_size: Some(1),
            launch: None,
            master: master.to_owned(),
        };
        let map = |master: &str, ranks| JobMap {
            master: master.to_owned(),
            seconds: 0.0,
            protection: Protection::None,
            no_munge: None,
            rejected: 0,
            listened: Vec::new(),
            simulated: false,
            ranks,
            findings: Vec::new(),
            measures: Vec::new(),
            slurm_nodes: Vec::new(),
            mesh: None,
            compute: None,
            gpu: None,
        };
        let ranks = vec![rank("main", "0.0.0.0:6105"), rank("node", "10.0.0.9:6105")];
        assert_eq!(as_others_call_it(&ranks), Some("10.0.0.9:6105"));
        assert_eq!(map("10.0.0.9:6105", ranks).compared().findings, []);
        let one = vec![RankReport { local_size: Some(2), ..rank("c0", "a:6105") }];
        let what = "rank 0 has a local size of 2, but 1 rank is on c0";
        assert_eq!(map("a:6105", one).compared().findings[0].what, what);
        let elsewhere = vec![rank("main", "a:6105"), rank("node", "b:6105")];
        assert_eq!(map("a:6105", elsewhere).compared().findings[0].code, "master-names-differ");
    }
}
