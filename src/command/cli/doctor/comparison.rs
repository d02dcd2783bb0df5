//! What each rank of a job reports to rank 0: how the others differ from it, and which share cores
//! while other cores of their host are idle.

use std::collections::BTreeMap;

use crate::command::check::{CheckError, SAME_COMMAND, SAME_VERSION, grouped};
use crate::command::doctor::Machine;
use crate::{Finding, Severity, host_name, printable};
use mpienv_core::seam::ranges;
use mpienv_launch::seam::Cpus;
use serde::{Deserialize, Serialize};

/// Values that belong to a single rank and are therefore not compared.
const OWN: [&str; 4] = ["rank", "local rank", "node rank", "device index"];

/// What a rank sends to rank 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The names and values of the table's rows.
    values: Vec<(String, String)>,
    findings: Vec<Remark>,
    pub(super) cores: Cores,
    /// The only device that the rank sees.
    device: Option<String>,
}

/// A finding in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remark {
    what: String,
    /// The remedy may depend on the rank even if the finding does not.
    remedy: String,
    is_note: bool,
}

impl Remark {
    fn line(&self) -> String {
        format!("{}; {}", self.what, self.remedy)
    }
}

impl Summary {
    pub(super) fn new(
        rows: &[[String; 3]],
        findings: &[Finding],
        cores: Cores,
        device: Option<String>,
    ) -> Summary {
        let line = |finding: &Finding| {
            let Finding { severity, code, what, remedy, .. } = finding;
            let what = format!("{severity} [{code}]: {what}");
            Remark { what, remedy: remedy.clone(), is_note: *severity == Severity::Note }
        };
        let values = rows.iter().map(|[name, value, _]| (name.clone(), value.clone())).collect();
        Summary { values, findings: findings.iter().map(line).collect(), cores, device }
    }

    /// Returns a substitute for a report that cannot be read.
    pub(super) fn unreadable(error: &CheckError) -> Summary {
        let (what, remedy) = match error {
            CheckError::OtherCommand { its, own, .. } => {
                (format!("runs `mpienv {its}`, and rank 0 runs `mpienv {own}`"), SAME_COMMAND)
            }
            _ => ("cannot read its report".to_owned(), SAME_VERSION),
        };
        let findings = vec![Remark { what, remedy: remedy.to_owned(), is_note: false }];
        Summary { findings, ..Summary::default() }
    }

    /// Returns whether there is a finding other than a note.
    pub(super) fn is_suspicious(&self) -> bool {
        self.findings.iter().any(|line| !line.is_note)
    }

    /// Returns the findings other than notes, one on each line.
    pub(super) fn problems(&self) -> String {
        let problems = self.findings.iter().filter(|finding| !finding.is_note);
        problems.map(|finding| format!("  {}\n", finding.line())).collect()
    }

    /// Returns what this rank has and rank 0 does not, as lines that are safe to print.
    fn differences(&self, first: &Summary) -> Vec<String> {
        let on_rank_0 = |name: &str| {
            let mut values = first.values.iter();
            values.find(|(other, _)| other == name).map_or("-", |(_, value)| value)
        };
        let values = self.values.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        let values = values.map(|(name, value)| (name, value, on_rank_0(name)));
        let values = values.filter(|(_, value, other)| value != other);
        let values =
            values.map(|(name, value, other)| format!("{name}: {value}, but {other} on rank 0"));
        let is_new = |line: &&Remark| !first.findings.iter().any(|other| other.what == line.what);
        let findings = self.findings.iter().filter(is_new).map(Remark::line);
        values.chain(findings).map(|line| printable(line.as_bytes())).collect()
    }
}

/// Groups the other ranks by how they differ from rank 0, in the order of each group's first rank.
pub(super) fn differences(reports: &[Summary]) -> Vec<(Vec<String>, Vec<u32>)> {
    let Some((first, others)) = reports.split_first() else { return Vec::new() };
    grouped((1..).zip(others.iter().map(|report| report.differences(first))))
}

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
            let whole = |cpu: u32| {
                let mut all = machine.topology.cores.iter();
                let core = all.find(|core| core.cpus.contains(&cpu));
                core.and_then(|core| core.cpus.first().copied()).unwrap_or(cpu)
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
pub(super) fn shared_cores<'a>(ranks: impl Iterator<Item = &'a Cores>) -> Vec<Finding> {
    let mut hosts: BTreeMap<&str, Vec<(u32, &Cores)>> = BTreeMap::new();
    for (rank, cores) in (0..).zip(ranks) {
        if !cores.host.is_empty() {
            hosts.entry(&cores.host).or_default().push((rank, cores));
        }
    }
    hosts.into_iter().filter_map(|(host, ranks)| shared_on(host, &ranks)).collect()
}

/// Returns a finding for each device that is the only one of several ranks.
pub(super) fn shared_devices(reports: &[Summary]) -> Vec<Finding> {
    let mut users: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for (rank, report) in (0..).zip(reports) {
        if let Some(device) = &report.device {
            users.entry((&report.cores.host, device)).or_default().push(rank);
        }
    }
    let shared = users.into_iter().filter(|(_, ranks)| ranks.len() > 1);
    let finding = |((host, device), ranks): ((&str, &str), Vec<u32>)| {
        let (ranks, device) = (ranges(&ranks), printable(device.as_bytes()));
        Finding::warning(
            "device-shared",
            format!("on {host}, ranks {ranks} see only the same device, {device}"),
            "they share its memory and its time, and NCCL refuses two ranks on one device",
            "start as many ranks as the node has devices, and show each rank another one, or all",
        )
    };
    shared.map(finding).collect()
}

fn shared_on(host: &str, ranks: &[(u32, &Cores)]) -> Option<Finding> {
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
    (!idle.is_empty() && !sharing.is_empty()).then(|| Finding::warning(
        "cores-shared",
        format!("on {host}, the ranks {sharing} share cores, and no rank uses the cores of CPUs {idle}"),
        "ranks that share a core wait for each other",
        "start them unbound, or with `mpienv exec --bind core` or `mpienv launch --bind core`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(port: &str, rank: &str, findings: &[&str]) -> Summary {
        let values = [("rank", rank), ("master port", port)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let line = |what: &&str| {
            let remedy = format!("remedy of rank {rank}");
            Remark { what: (*what).to_owned(), remedy, is_note: what.starts_with("note") }
        };
        let findings = findings.iter().map(line).collect();
        Summary { values: values.to_vec(), findings, cores: Cores::default(), device: None }
    }

    #[test]
    fn ranks_with_the_same_differences_are_reported_together() {
        let reports = [
            report("1", "0", &["note [a]: b"]),
            report("1", "1", &[]),
            report("2", "2", &[]),
            report("1", "3", &["note [a]: b"]),
            report("2", "4", &[]),
            report("1", "5", &["warning [c]: d"]),
        ];
        let port = vec!["master port: 2, but 1 on rank 0".to_owned()];
        let finding = vec!["warning [c]: d; remedy of rank 5".to_owned()];
        assert_eq!(
            differences(&reports),
            [(vec![], vec![1, 3]), (port, vec![2, 4]), (finding, vec![5])]
        );
        assert_eq!(
            reports.each_ref().map(Summary::is_suspicious),
            [false, false, false, false, false, true]
        );
    }

    #[test]
    fn what_another_rank_says_does_not_reach_a_terminal_as_it_is() {
        let reports = [report("1", "0", &[]), report("\u{1b}[2J2", "1", &[])];
        assert_eq!(
            differences(&reports),
            [(vec!["master port: \u{fffd}[2J2, but 1 on rank 0".to_owned()], vec![1])]
        );
    }

    fn cores(host: &str, own: &str) -> Cores {
        Cores { host: host.to_owned(), own: own.to_owned(), usable: "0-3".to_owned() }
    }

    #[test]
    fn ranks_that_share_cores_are_found_only_where_others_are_idle() {
        let shared = [cores("a", "0"), cores("b", "0-3"), cores("a", "0-1"), cores("b", "0-3")];
        let found = shared_cores(shared.iter());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].code, "cores-shared");
        assert_eq!(
            found[0].what,
            "on a, the ranks 0,2 share cores, and no rank uses the cores of CPUs 2-3"
        );
        let apart = [cores("a", "0"), cores("a", "1"), cores("b", "0"), Cores::default()];
        assert_eq!(shared_cores(apart.iter()), []);
    }
}
