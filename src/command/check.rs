//! Lets all ranks meet at the master and compare what they know. The result is a map of the job, or
//! the problems found.

mod at_master;
mod compute;
mod crew;
mod mesh;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::command::doctor::port::another;
use crate::command::open_files::OpenFiles;
use crate::command::protection::Protection;
use crate::rendezvous::{self, Gathered, Meeting, Member, Rendezvous};
use crate::{ClusterInfo, Environment, Error, ErrorKind, Finding, Host, Port, Severity, printable};
pub(crate) use mpienv_core::seam::SIMULATED;
use mpienv_core::seam::{InfoSeam as _, finding, ranges};
use mpienv_rendezvous::seam::{uses_munge, why_no_munge};

use self::at_master::Look;
use self::compute::Speed;
pub(crate) use self::compute::{ComputeReport, RankSpeed};
use self::crew::{Crew, Order};
use self::mesh::Mesh;
pub(crate) use self::mesh::{MeshReport, PairReport, figure};

/// Lets all ranks of this process's job meet at the master. Rank 0 listens on its host's address
/// `bind`, or on every address for `0.0.0.0` or `::`.
///
/// Rank 0 gets the map. The others get `None` once all ranks have arrived.
///
/// # Errors
/// - If ranks are missing, arrive twice or disagree on the world size, every rank that arrived gets
///   the same error.
/// - Rank 0 also learns if the master's address is not its own, or if the name has no address.
/// - A rank that did not reach the master gets an error that describes what it found there.
/// - If all ranks arrive but do not fit together, rank 0 finds the reason in the map, and the
///   others get an error.
pub(crate) fn check(
    info: &ClusterInfo,
    host: String,
    timeout: Duration,
    bind: Option<IpAddr>,
    measures: Measures,
) -> Result<Option<JobMap>, CheckError> {
    let master = info.master_addr()?.clone();
    let is_unspecified = master.address().is_some_and(|address| address.is_unspecified());
    let report = RankReport {
        host,
        address: None,
        local_rank: info.local_rank(),
        local_size: info.local_world_size(),
        master: master.with_port(info.meeting_port()),
    };
    let own = Said { report, measures };
    let simulated = Environment::current().get(SIMULATED).is_some();
    let rendezvous = rendezvous(info, master, timeout);
    let rendezvous = bind.into_iter().fold(rendezvous, Rendezvous::bind);
    let begun = Instant::now();
    // This may have to wait for munged.
    let protection = Protection::of(info, uses_munge(&rendezvous));
    let no_munge = why_no_munge(&rendezvous);
    let rendezvous = rendezvous.timeout(timeout.saturating_sub(begun.elapsed()));
    let _files = OpenFiles::for_meeting(info);
    let map = |meeting: &Meeting| -> Result<JobMap, CheckError> {
        let said = meeting.members().iter().map(said).collect::<Result<Vec<_>, _>>();
        let said = said.map_err(CheckError::Report)?.into_iter();
        let (ranks, measures): (Vec<_>, _) = said.map(|said| (said.report, said.measures)).unzip();
        let master = if is_unspecified { as_others_call_it(&ranks) } else { None };
        let (master, seconds) =
            (master.unwrap_or(&own.report.master).to_owned(), begun.elapsed().as_secs_f64());
        let (rejected, listened) = (meeting.rejected(), meeting.listened().to_vec());
        Ok(JobMap {
            master,
            seconds,
            protection,
            no_munge: no_munge.clone(),
            rejected,
            listened,
            simulated,
            ranks,
            measures,
            mesh: None,
            compute: None,
        })
    };
    let look = Look::begin(info);
    let own_bytes = serde_json::to_vec(&own).map_err(CheckError::Report)?;
    let gathered = rendezvous.gather_with_reply(own_bytes, |meeting| {
        let report =
            map(meeting).map_or_else(|error| Some(error.to_string()), |map| map.first_error());
        report.unwrap_or_default().into_bytes()
    });
    let gathered = gathered.map_err(|error| match look.and_then(|look| look.end(info)) {
        Some(seen) => CheckError::Master { seen, error },
        None if matches!(error, rendezvous::RendezvousError::PortInUse { .. }) => {
            match another(info) {
                Some((how, own)) => CheckError::PortInUse { error, how, own },
                None => CheckError::Rendezvous(error),
            }
        }
        None => CheckError::Rendezvous(error),
    })?;
    match gathered {
        Gathered::All(meeting) => Ok(Some(map(&meeting)?)),
        Gathered::Reply(report) if report.is_empty() => Ok(None),
        Gathered::Reply(report) => Err(CheckError::Inconsistent { report: printable(&report) }),
    }
}

/// What the ranks measure once they have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Measures {
    /// The most bytes that each host sends to another one, if the network is to be measured.
    pub mesh: Option<u64>,
    /// Whether the ranks measure their cores.
    pub compute: bool,
}

/// Measures the network between the hosts, or the cores of the ranks. All ranks have met, and rank
/// 0 has their map, in which it notes the results.
///
/// # Errors
/// A rank does not arrive, or is lost.
pub(crate) fn measure(
    info: &ClusterInfo,
    timeout: Duration,
    bind: Option<IpAddr>,
    measures: Measures,
    map: Option<&mut JobMap>,
    progress: &dyn Fn(usize, usize),
) -> Result<(), CheckError> {
    let _files = OpenFiles::for_meeting(info);
    // A rank that is alone has a map, and meets no other rank.
    let simulated = Environment::current().get(SIMULATED).is_some();
    let meet = |most| Mesh::meet(info, timeout, bind, most, simulated);
    let mesh = measures.mesh.map(meet).transpose()?;
    let mut crew = Crew::meet(info, timeout, bind)?;
    if let Some(map) = map {
        map.mesh = mesh.map(|mesh| mesh.lead(&mut crew, progress)).transpose()?;
        if measures.compute {
            map.compute = Some(compute::lead(&mut crew, map)?);
        }
        return crew.end();
    }
    loop {
        match (crew.next()?, &mesh) {
            (Order::Measure { pairs, attempt }, Some(mesh)) => {
                mesh.answer(&mut crew, &pairs, attempt)?;
            }
            (Order::Compute, _) => crew.say(&Speed::measure())?,
            (Order::Measure { .. }, None) | (Order::End, _) => return Ok(()),
        }
    }
}

/// Returns the rendezvous of all ranks of this process's job, in this attempt.
pub(crate) fn rendezvous(info: &ClusterInfo, master: Host, timeout: Duration) -> Rendezvous {
    Rendezvous::of(info, master, info.meeting_port())
        .default_port(info.default_master_port())
        .timeout(timeout)
}

/// Exchanges the ranks' endpoints, and returns them in rank order.
pub(crate) fn exchange_endpoints(
    info: &ClusterInfo,
    own: &str,
    timeout: Duration,
) -> Result<Vec<String>, CheckError> {
    let _files = OpenFiles::for_meeting(info);
    let meeting = rendezvous(info, info.master_addr()?.clone(), timeout).all_gather(own)?;
    let endpoint = |member: &Member| {
        let text = printable(member.blob());
        let is_endpoint = text.parse::<SocketAddr>().is_ok();
        let report =
            || format!("{text:?} is not an address; start the same version of mpienv on all hosts");
        if is_endpoint { Ok(text) } else { Err(CheckError::Inconsistent { report: report() }) }
    };
    meeting.members().iter().map(endpoint).collect()
}

/// Lets all ranks meet, and returns a random secret that only they know then.
pub(crate) fn exchange_secret(info: &ClusterInfo, timeout: Duration) -> Result<String, CheckError> {
    let _files = OpenFiles::for_meeting(info);
    let meeting = rendezvous(info, info.master_addr()?.clone(), timeout).all_gather("")?;
    let key = meeting.derive_key("secret of a command");
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the master as the other ranks name it, for a rank 0 that listens everywhere, as AWS
/// Batch's main node does.
fn as_others_call_it(ranks: &[RankReport]) -> Option<&str> {
    ranks.get(1).map(|report| report.master.as_str())
}

/// What a rank brings to the meeting.
#[derive(Serialize, Deserialize)]
struct Said {
    #[serde(flatten)]
    report: RankReport,
    #[serde(default)]
    measures: Measures,
}

fn said(member: &Member) -> Result<Said, serde_json::Error> {
    let Said { report, measures } = serde_json::from_slice(member.blob())?;
    let report = RankReport {
        host: printable(report.host.as_bytes()),
        address: Some(member.address()),
        master: printable(report.master.as_bytes()),
        ..report
    };
    Ok(Said { report, measures })
}

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
    /// What each of them was started to measure.
    #[serde(skip)]
    pub measures: Vec<Measures>,
    /// The network between the hosts, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshReport>,
    /// The cores of the ranks, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeReport>,
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
    /// Where the rank met the others, as this rank names it.
    pub master: String,
}

impl JobMap {
    /// Returns the hosts in the order of their first rank, each with its ranks.
    pub(crate) fn hosts(&self) -> Vec<(&str, Vec<(u32, &RankReport)>)> {
        let mut hosts: Vec<(&str, Vec<(u32, &RankReport)>)> = Vec::new();
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        for (rank, report) in (0..).zip(&self.ranks) {
            let at = *index.entry(&report.host).or_insert(hosts.len());
            if at == hosts.len() {
                hosts.push((&report.host, Vec::new()));
            }
            hosts[at].1.push((rank, report));
        }
        hosts
    }

    /// Returns what does not fit together although all ranks met.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let hosts = if self.simulated { Vec::new() } else { self.hosts() };
        for (host, ranks) in hosts {
            findings.extend(same_local_rank(host, &ranks));
            findings.extend(other_local_size(host, &ranks));
        }
        findings.extend(self.options_differ("--mesh", |measures| measures.mesh.is_some()));
        findings.extend(self.options_differ("--compute", |measures| measures.compute));
        findings.extend(self.masters_differ());
        findings.extend(self.rejected_connections());
        findings
    }

    /// Returns what stands out in the measurements.
    pub(crate) fn measured_findings(&self) -> impl Iterator<Item = &Finding> {
        let mesh = self.mesh.iter().flat_map(|mesh| &mesh.findings);
        mesh.chain(self.compute.iter().flat_map(|compute| &compute.findings))
    }

    /// Returns those findings that are errors.
    pub(crate) fn errors(&self) -> Vec<Finding> {
        let errors = self.findings().into_iter();
        errors.filter(|finding| finding.severity == Severity::Error).collect()
    }

    /// Returns the first error, for the ranks that have no map.
    fn first_error(&self) -> Option<String> {
        let errors = self.errors().into_iter();
        errors.map(|Finding { what, why, remedy, .. }| format!("{what}: {why}; {remedy}")).next()
    }

    /// Reports an option that only some ranks have.
    fn options_differ(&self, option: &str, has: impl Fn(&Measures) -> bool) -> Option<Finding> {
        let ranks = (0..).zip(&self.measures);
        let (with, without): (Vec<_>, Vec<_>) = ranks.partition(|(_, measures)| has(measures));
        if with.is_empty() || without.is_empty() {
            return None;
        }
        let named = |ranks: Vec<(u32, &Measures)>| {
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            let numbers: Vec<_> = ranks.into_iter().map(|(rank, _)| rank).collect();
            format!("{noun} {}", ranges(&numbers))
        };
        Some(finding(
            Severity::Error,
            "options-differ",
            format!(
                "{} started check with {option}, and {} without it",
                named(with),
                named(without)
            ),
            "all ranks measure together, so those with it would wait for the others".into(),
            format!("start all ranks with {option}, or none"),
        ))
    }

    fn masters_differ(&self) -> Option<Finding> {
        let (rank, other) = (0..)
            .zip(&self.ranks)
            .skip(1)
            .find(|(_, report): &(u32, _)| report.master != self.master)?;
        Some(finding(
            Severity::Note,
            "master-names-differ",
            format!(
                "rank 0 names the master {}, and rank {rank} names it {}",
                self.master, other.master
            ),
            "both names lead to the same place now, but that may change".into(),
            "give all ranks the same MASTER_ADDR".into(),
        ))
    }

    fn rejected_connections(&self) -> Option<Finding> {
        (self.rejected > 0).then(|| {
            finding(
                Severity::Note,
                "strangers",
                match self.rejected {
                    1 => "1 connection to the master's port was not a rank of this job".to_owned(),
                    count => {
                        format!(
                            "{count} connections to the master's port were not ranks of this job"
                        )
                    }
                },
                "a port scanner, a health check, or another job with the same port".into(),
                "if it is another job, give each job a different MASTER_PORT".into(),
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
    Some(finding(
        Severity::Error,
        "local-rank-twice",
        format!("ranks {first} and {second} are both local rank {local} on {host}"),
        "both would use the same device".into(),
        "give each rank of a host a different LOCAL_RANK; take it from the launcher".into(),
    ))
}

fn other_local_size(host: &str, ranks: &[(u32, &RankReport)]) -> Option<Finding> {
    let count = ranks.len();
    let (wrong, size) = ranks.iter().find_map(|(rank, report)| {
        Some((rank, report.local_size.filter(|&size| size as usize != count)?))
    })?;
    Some(finding(
        Severity::Warning,
        "local-size-differs",
        format!("rank {wrong} has a local size of {size}, but {count} ranks are on {host}"),
        "two hosts have the same name, containers have their own names, or variables are left \
         from another job"
            .into(),
        "give every host a different name, and start all ranks with one launcher".into(),
    ))
}

/// Why the ranks did not meet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    /// The environment does not say where to meet.
    #[error(transparent)]
    Environment(#[from] Error),
    /// The ranks did not meet, or they do not fit together.
    #[error(transparent)]
    Rendezvous(#[from] rendezvous::RendezvousError),
    /// The ranks did not meet, and rank 0 found the cause at the master's address.
    #[error("{seen}\n  {error}")]
    Master { seen: String, error: rendezvous::RendezvousError },
    /// Another program listens on the port that a user chose, and the job has a port of its own.
    #[error("{error}; or {how}, and the job meets at its own port, {own}")]
    PortInUse { error: rendezvous::RendezvousError, how: String, own: Port },
    /// All ranks met, and rank 0 found that they do not fit together.
    #[error("all ranks met, but they do not fit together: {report}")]
    Inconsistent { report: String },
    #[error("cannot read the report of a rank: {0}; start the same version of mpienv on all hosts")]
    Report(serde_json::Error),
    /// A rank left while something was measured.
    #[error(
        "rank {rank} was lost while the ranks measured: {reason}; look for an error that rank {rank} printed, or for what killed it (memory, the launcher)"
    )]
    Lost { rank: u32, reason: String },
    /// This rank cannot listen or wait.
    #[error("cannot open a socket to measure with: {0}; look at the limits of this process")]
    Socket(io::Error),
}

impl CheckError {
    /// Returns whether rank 0 has found the reason, has reported it to the other ranks, and fails
    /// too.
    pub(crate) fn is_of_rank_0(&self) -> bool {
        use rendezvous::RendezvousError::{Lost, Mismatch, Missing};
        matches!(
            self,
            CheckError::Rendezvous(Mismatch { .. } | Missing { .. } | Lost { .. })
                | CheckError::Inconsistent { .. }
        )
    }

    /// Returns what the error means for the exit code.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            CheckError::Environment(_) => ErrorKind::Environment,
            CheckError::Rendezvous(error)
            | CheckError::Master { error, .. }
            | CheckError::PortInUse { error, .. } => error.kind(),
            CheckError::Lost { .. } => ErrorKind::Lost,
            CheckError::Inconsistent { .. } | CheckError::Report(_) | CheckError::Socket(_) => {
                ErrorKind::Refused
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_0_that_listens_everywhere_is_called_as_the_others_call_it() {
        let rank = |host: &str, master: &str| RankReport {
            host: host.to_owned(),
            address: None,
            local_rank: Some(0),
            local_size: Some(1),
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
            measures: Vec::new(),
            mesh: None,
            compute: None,
        };
        let ranks = vec![rank("main", "0.0.0.0:6105"), rank("node", "10.0.0.9:6105")];
        assert_eq!(as_others_call_it(&ranks), Some("10.0.0.9:6105"));
        assert_eq!(map("10.0.0.9:6105", ranks).findings(), []);
        let elsewhere = vec![rank("main", "a:6105"), rank("node", "b:6105")];
        assert_eq!(map("a:6105", elsewhere).findings()[0].code, "master-names-differ");
    }
}
