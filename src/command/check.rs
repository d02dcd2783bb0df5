//! Lets all ranks meet at the master and compare what they know. The result is a map of the job, or
//! the problems found.

mod compute;
mod connections;
#[cfg(feature = "gpu")]
mod gpu;
mod map;
pub(crate) mod measurement;
mod mesh;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::command::doctor::{self, port::another};
use crate::command::open_files::OpenFiles;
use crate::command::protection::Protection;
use crate::rendezvous::{Gathered, Meeting, Member, Rendezvous, RendezvousError};
use crate::simulate::Job;
use crate::{ClusterInfo, Error, ErrorKind, Finding, Host, Launcher, Port, host_name, printable};
pub(crate) use mpienv_core::seam::SIMULATED;
use mpienv_launch::seam::NodeOptions;
use mpienv_rendezvous::seam::{name_the_late, uses_munge, why_no_munge};

use self::connections::{Connections, Order};
pub(crate) use self::map::JobMap;
use self::map::{RankReport, as_others_call_it};
pub(crate) use self::measurement::{Measurement, grouped, named};
use self::mesh::Mesh;

/// A test of the GPUs of all ranks, which have met. It takes at most so long to connect them, and
/// sums up to so many bytes.
pub(crate) type GpuTest =
    Box<dyn FnOnce(&ClusterInfo, Duration, u64) -> Result<Measurement, CheckError>>;

/// Prepares the test of the GPUs. `None` in a build without the feature `gpu`.
///
/// # Safety
/// This process has no other thread yet, and has not loaded NCCL.
#[cfg(feature = "gpu")]
pub(crate) const GPU_TEST: Option<unsafe fn() -> GpuTest> = Some(gpu::prepare);
#[cfg(not(feature = "gpu"))]
pub(crate) const GPU_TEST: Option<unsafe fn() -> GpuTest> = None;

/// Lets all ranks of this process's job meet at the master. Rank 0 listens on its host's address
/// `bind`, or on every address for `0.0.0.0` or `::`.
///
/// If each rank is the `launch` of a node, they compare its options. `command`: what the ranks run.
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
pub(crate) fn meet(
    info: &ClusterInfo,
    timeout: Duration,
    bind: Option<IpAddr>,
    measures: Measures,
    launch: Option<NodeOptions>,
    command: &str,
) -> Result<Option<JobMap>, CheckError> {
    let is_unspecified = info.master_addr()?.address().is_some_and(|own| own.is_unspecified());
    let of_nodes = if launch.is_some() { OF_NODES } else { "" };
    let (slurm_node, report) = (slurm_node(info), own_report(info, launch)?);
    let own = Contribution { report, measures, slurm_node };
    let simulated = info.environment().get(SIMULATED).is_some();
    let rendezvous = name_the_late(rendezvous(info, timeout, bind)?, info, of_nodes);
    let begun = Instant::now();
    // This may have to wait for munged.
    let protection = Protection::of(info, uses_munge(&rendezvous));
    let no_munge = why_no_munge(&rendezvous);
    let rendezvous = rendezvous.timeout(timeout.saturating_sub(begun.elapsed()));
    let _files = OpenFiles::for_meeting(info);
    let map = |meeting: &Meeting| -> Result<JobMap, CheckError> {
        let brought = (0..).zip(meeting.members());
        let brought = brought.map(|(rank, member)| contribution(rank, member, command));
        let brought = brought.collect::<Result<_, _>>()?;
        let (ranks, measures, slurm_nodes): (Vec<_>, Vec<_>, Vec<_>) = brought;
        let master = if is_unspecified { as_others_call_it(&ranks) } else { None };
        let map = JobMap {
            master: master.unwrap_or(&own.report.master).to_owned(),
            seconds: begun.elapsed().as_secs_f64(),
            protection,
            no_munge: no_munge.clone(),
            rejected: meeting.rejected(),
            listened: meeting.listened().to_vec(),
            simulated,
            ranks,
            findings: Vec::new(),
            measures,
            slurm_nodes,
            mesh: None,
            compute: None,
            gpu: None,
        };
        Ok(map.compared())
    };
    let found = inspect_master(info);
    let own_bytes = bring(command, &own)?;
    let gathered = rendezvous.gather_with_reply(own_bytes, |meeting| {
        let report =
            map(meeting).map_or_else(|error| Some(error.to_string()), |map| map.first_error());
        report.unwrap_or_default().into_bytes()
    });
    match gathered.map_err(|error| not_met(info, error, found))? {
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
    /// The most bytes that NCCL sums, if the GPUs are to be tested.
    #[serde(default)]
    pub gpu: Option<u64>,
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
) -> Result<(), CheckError> {
    let _files = OpenFiles::for_meeting(info);
    let rendezvous = rendezvous(info, timeout, bind)?;
    // A rank that is alone has a map, and meets no other rank.
    let mesh = measures.mesh.map(|most| Mesh::meet(info, &rendezvous, most)).transpose()?;
    let mut others = Connections::meet(&rendezvous)?;
    if let Some(map) = map {
        let outcome = lead(map, mesh, measures, &mut others);
        let outcome = outcome.map_err(|error| map.named(error));
        let order = match &outcome {
            Ok(()) => Order::End,
            // Otherwise, the others would report that rank 0 was lost.
            Err(CheckError::LostRank { rank, host, reason }) => {
                Order::Lost { rank: *rank, host: host.clone(), reason: reason.clone() }
            }
            Err(_) => return outcome,
        };
        let ended = others.end(&order);
        return outcome.and(ended);
    }
    loop {
        match (others.next()?, &mesh) {
            (Order::Measure { pairs, attempt }, Some(mesh)) => {
                if let Some(answer) = mesh.take_part(&pairs, attempt) {
                    others.say(&answer)?;
                }
            }
            (Order::Compute, _) => others.say(&compute::speed())?,
            (Order::Lost { rank, host, reason }, _) => {
                return Err(CheckError::LostRank { rank, host, reason });
            }
            (Order::Measure { .. }, None) | (Order::End, _) => return Ok(()),
        }
    }
}

/// Lets the ranks measure, on rank 0.
fn lead(
    map: &mut JobMap,
    mesh: Option<Mesh>,
    measures: Measures,
    others: &mut Connections,
) -> Result<(), CheckError> {
    map.mesh = mesh.map(|mesh| mesh.lead(others)).transpose()?;
    if measures.compute {
        map.compute = Some(compute::lead(others, map)?);
    }
    Ok(())
}

/// Returns the rendezvous of all ranks of this process's job, in this attempt. Rank 0 listens on its
/// host's address `bind`, if there is one.
///
/// # Errors
/// Nothing names the master.
pub(crate) fn rendezvous(
    info: &ClusterInfo,
    timeout: Duration,
    bind: Option<IpAddr>,
) -> Result<Rendezvous, CheckError> {
    let own = Rendezvous::of(info, info.master_addr()?.clone(), info.meeting_port())
        .default_port(info.default_master_port())
        .timeout(timeout);
    Ok(bind.into_iter().fold(own, Rendezvous::bind))
}

/// Exchanges the ranks' endpoints, and returns them in rank order.
pub(crate) fn exchange_endpoints(
    info: &ClusterInfo,
    own: &str,
    timeout: Duration,
) -> Result<Vec<String>, CheckError> {
    let _files = OpenFiles::for_meeting(info);
    let meeting = rendezvous(info, timeout, None)?.all_gather(own)?;
    let endpoint = |member: &Member| {
        let text = printable(member.blob());
        if text.parse::<SocketAddr>().is_ok() {
            return Ok(text);
        }
        let report = format!("{text:?} is not an address; {SAME_VERSION}");
        Err(CheckError::Inconsistent { report })
    };
    meeting.members().iter().map(endpoint).collect()
}

/// Lets all ranks meet, and returns a random secret that only they know then.
pub(crate) fn exchange_secret(info: &ClusterInfo, timeout: Duration) -> Result<String, CheckError> {
    let _files = OpenFiles::for_meeting(info);
    let meeting = rendezvous(info, timeout, None)?.all_gather("")?;
    let key = meeting.derive_key("secret of a command");
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What a rank brings to the meeting.
#[derive(Serialize, Deserialize)]
struct Contribution {
    #[serde(flatten)]
    report: RankReport,
    #[serde(default)]
    measures: Measures,
    #[serde(default)]
    slurm_node: Option<String>,
}

fn own_report(info: &ClusterInfo, launch: Option<NodeOptions>) -> Result<RankReport, Error> {
    // The launches of nodes meet unasked, too.
    let doubt = info.one_of_several().filter(|_| launch.is_none());
    Ok(RankReport {
        doubt: doubt.map(|own| [own.what.clone(), own.why.clone(), own.remedy.clone()]),
        host: host_name().unwrap_or_default(),
        address: None,
        local_rank: info.local_rank(),
        local_size: info.local_world_size(),
        launch,
        master: info.master_addr()?.with_port(info.meeting_port()),
    })
}

/// Returns Slurm's name of this node, which need not be that of the host. Launchers other than srun
/// may hand the variable of the first node to all ranks.
fn slurm_node(info: &ClusterInfo) -> Option<String> {
    let name = info.environment().get_str("SLURMD_NODENAME").ok()??.to_owned();
    let is_of_host = || host_name().is_some_and(|host| host.split('.').next() == Some(&*name));
    (info.launcher() == Launcher::Slurm || is_of_host()).then_some(name)
}

/// A report, and which command brings it.
#[derive(Serialize, Deserialize)]
struct Brought<T> {
    command: String,
    #[serde(flatten)]
    report: T,
}

/// Encodes what a rank that runs `command` brings to a meeting.
pub(crate) fn bring(command: &str, report: &impl Serialize) -> Result<Vec<u8>, CheckError> {
    let brought = Brought { command: command.to_owned(), report };
    serde_json::to_vec(&brought).map_err(CheckError::Report)
}

/// Decodes what a rank has brought to rank 0, which runs `command`.
///
/// # Errors
/// The rank runs a command that brings something else, or another version.
pub(crate) fn brought<T: DeserializeOwned>(
    rank: u32,
    member: &Member,
    command: &str,
) -> Result<T, CheckError> {
    serde_json::from_slice(member.blob()).map_err(|error| {
        match serde_json::from_slice::<Brought<IgnoredAny>>(member.blob()) {
            Ok(other) if other.command != command => CheckError::OtherCommand {
                rank,
                its: printable(other.command.as_bytes()),
                own: command.to_owned(),
            },
            _ => CheckError::Report(error),
        }
    })
}

fn contribution(
    rank: u32,
    member: &Member,
    command: &str,
) -> Result<(RankReport, Measures, Option<String>), CheckError> {
    let Contribution { mut report, measures, slurm_node } = brought(rank, member, command)?;
    report.host = printable(report.host.as_bytes());
    report.address = Some(member.address());
    report.master = printable(report.master.as_bytes());
    Ok((report, measures, slurm_node.map(|name| printable(name.as_bytes()))))
}

/// Ends a text about ranks where they are the launches of nodes.
pub(crate) const OF_NODES: &str = "; each of these ranks is the mpienv of a node: rank 1 is node 1";
/// What to do if ranks of one job run different commands.
pub(crate) const SAME_COMMAND: &str = "run the same command on all ranks";
/// What to do if a rank brings what this version cannot read.
pub(crate) const SAME_VERSION: &str = "start the same version of mpienv on all hosts";
/// How long a name may take to resolve. The ranks meet in the meantime.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long rank 0 looks after the meeting has failed. Launchers kill it soon after the other ranks
/// exit.
const PROBE: Duration = Duration::from_millis(200);

/// What rank 0 finds at the master's address while it waits.
type Found = Receiver<Option<(Finding, Vec<SocketAddr>)>>;

/// Starts the inspection of the master's address. Returns `None` on other ranks, which learn the
/// cause from rank 0.
fn inspect_master(info: &ClusterInfo) -> Option<Found> {
    let info = Some(info.clone()).filter(|info| info.rank().is_first() && info.world_size() > 1)?;
    let (sender, found) = mpsc::channel();
    let probe = move || {
        let elsewhere = doctor::master_elsewhere(&info, PATIENCE);
        let port = info.meeting_port().get();
        let found = elsewhere.map(|(finding, found)| {
            (finding, found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
        });
        // The receiver may be gone.
        let _ = sender.send(found);
    };
    thread::Builder::new().name("probe".to_owned()).spawn(probe).ok()?;
    Some(found)
}

/// Returns why the ranks did not meet. `found`: what rank 0 finds at the master's address.
fn not_met(info: &ClusterInfo, error: RendezvousError, found: Option<Found>) -> CheckError {
    let is_in_use = matches!(error, RendezvousError::PortInUse { .. });
    let cause = found.and_then(|found| cause_at_master(&found, info));
    match (cause, another(info).filter(|_| is_in_use)) {
        (Some((code, seen)), _) => CheckError::Master { code, seen, error },
        (None, Some((how, own))) => CheckError::PortInUse { error, how, own },
        (None, None) => CheckError::Rendezvous(error),
    }
}

/// Returns the finding that says why the ranks did not meet, if the master's address shows the
/// cause: its code and its text.
fn cause_at_master(found: &Found, info: &ClusterInfo) -> Option<(&'static str, String)> {
    let (Finding { code, what, why, remedy, .. }, addresses) =
        found.recv_timeout(PROBE).ok().flatten()?;
    let answers =
        addresses.iter().any(|address| TcpStream::connect_timeout(address, PROBE).is_ok());
    let answers = match answers {
        true => format!("; another program answers there, on port {}", info.meeting_port()),
        false => String::new(),
    };
    Some((code, format!("{what}{answers}\n  why: {why}\n  remedy: {remedy}")))
}

/// Why the ranks did not meet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    /// The environment does not say where to meet.
    #[error(transparent)]
    Environment(#[from] Error),
    /// The ranks did not meet, or they do not fit together.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The ranks did not meet, and rank 0 found the cause at the master's address.
    #[error("{seen}\n  {error}")]
    Master { code: &'static str, seen: String, error: RendezvousError },
    /// Another program listens on the port that a user chose, and the job has a port of its own.
    #[error("{error}; or {how}, and the job meets at its own port, {own}")]
    PortInUse { error: RendezvousError, how: String, own: Port },
    /// All ranks met, and rank 0 found that they do not fit together.
    #[error("all ranks met, but they do not fit together: {report}")]
    Inconsistent { report: String },
    #[error("cannot read the report of a rank: {0}; {SAME_VERSION}")]
    Report(serde_json::Error),
    /// All ranks met, and a rank runs a command that meets for another purpose.
    #[error("rank {rank} runs `mpienv {its}`, and rank 0 runs `mpienv {own}`; {SAME_COMMAND}")]
    OtherCommand { rank: u32, its: String, own: String },
    /// The GPUs could not be measured.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only GPUs fail so"))]
    #[error("{text}")]
    Measurement { kind: ErrorKind, text: String },
    /// A rank left while something was measured. The host is empty if only its rank is known.
    #[error(
        "rank {rank}{} was lost while the ranks measured: {reason}; look for an error that rank {rank} printed, or for what killed it (memory, the launcher)",
        if .host.is_empty() { String::new() } else { format!(" on {host}") }
    )]
    LostRank { rank: u32, host: String, reason: String },
    /// This rank cannot listen or wait.
    #[error("cannot open a socket to measure with: {0}; look at the limits of this process")]
    Socket(io::Error),
}

impl CheckError {
    /// Returns whether rank 0 has found the reason, has reported it to the other ranks, and fails
    /// too.
    pub(crate) fn is_of_rank_0(&self) -> bool {
        use RendezvousError::{Lost, Mismatch, Missing};
        matches!(
            self,
            CheckError::Rendezvous(Mismatch { .. } | Missing { .. } | Lost { .. })
                | CheckError::Inconsistent { .. }
                | CheckError::LostRank { rank: 1.., .. }
        )
    }

    /// Returns the ranks that did not arrive, as rank 0 knows them. `None` if the ranks did not meet
    /// for another reason, or if they are more than any job has.
    pub(crate) fn missing(&self) -> Option<Vec<u32>> {
        let (CheckError::Rendezvous(error) | CheckError::Master { error, .. }) = self else {
            return None;
        };
        let RendezvousError::Missing { missing, .. } = error else { return None };
        let most = Job::MOST_RANKS as usize;
        let ranks: Vec<u32> = missing.iter().cloned().flatten().take(most + 1).collect();
        (ranks.len() <= most).then_some(ranks)
    }

    /// Returns the hosts of which no rank arrived, if the launcher says which ranks each has.
    pub(crate) fn absent_hosts(&self, info: &ClusterInfo) -> Vec<String> {
        if let CheckError::LostRank { host, .. } = self {
            return vec![host.clone()];
        }
        // With a wrong address of the master, none could arrive.
        let missing = self.missing().filter(|_| matches!(self, CheckError::Rendezvous(_)));
        let (missing, hosts) = (missing.unwrap_or_default(), info.ranks_per_host());
        let (mut first, hosts) = (0, hosts.unwrap_or_default());
        let is_absent = |&&(_, ranks): &&(Host, u32)| {
            let mut own = first..first + ranks;
            first = own.end;
            own.all(|rank| missing.binary_search(&rank).is_ok())
        };
        let absent: Vec<_> =
            hosts.iter().filter(is_absent).map(|(host, _)| host.to_string()).collect();
        // If all others are absent, rank 0's own host may be to blame.
        if absent.len() + 1 == hosts.len() { Vec::new() } else { absent }
    }

    /// Returns what the error means for the exit code.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            CheckError::Environment(_) => ErrorKind::Environment,
            CheckError::Rendezvous(error)
            | CheckError::Master { error, .. }
            | CheckError::PortInUse { error, .. } => error.kind(),
            CheckError::Measurement { kind, .. } => *kind,
            CheckError::LostRank { .. } => ErrorKind::Lost,
            CheckError::Inconsistent { .. }
            | CheckError::Report(_)
            | CheckError::OtherCommand { .. }
            | CheckError::Socket(_) => ErrorKind::Refused,
        }
    }
}
