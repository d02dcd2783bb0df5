//! Asks the launcher what its variables do not say: rank 0's host, and the nodes.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::{ASK, Overrides};
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::context::Server;
use crate::launcher::placement::Placement;
use crate::launcher::spec::MpiFamily;
use crate::launcher::starter::{Starter, ancestors};
use crate::pmi::{self, Link, PmiError, Question};
use crate::pmix;
use crate::value::host_name::host_name;
use crate::value::sourced::{Sourced, by};

pub use crate::pmi::Answer;

/// How long the other ranks may take to ask too, unless `MPIENV_ASK` says otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that must stay open until a process exits.
#[derive(Debug)]
pub struct Connection {
    /// What it leads to. A connection to PMI must say goodbye at the end.
    pub server: Server,
    /// A copy of the connection.
    pub socket: OwnedFd,
    /// The process that the launcher has started as this rank: this one, or a parent such as a
    /// shell.
    pub process: u32,
}

/// Calls `keep` with the connection to the launcher's PMIx server, if reading this has asked it.
///
/// # Errors
/// Returns an error if the connection cannot be kept.
pub fn keep_pmix(
    info: &ClusterInfo,
    keep: impl FnOnce(Connection) -> io::Result<()>,
) -> Result<(), Error> {
    let Some(connection) = pmix::take_connection() else { return Ok(()) };
    let process = info.process_of_rank(None).unwrap_or_else(std::process::id);
    let connection = Connection { server: Server::Pmix, socket: connection.into(), process };
    keep(connection).map_err(|error| {
        let give = info.launcher().spec().advice.give_master;
        let text = format!("cannot keep the connection to its server open: {error}");
        let remedy = format!("do not ask PMIx, and give rank 0's host to all ranks: {give}");
        Error::new(Reason::Pmix(text), remedy).by(info.launcher())
    })
}

/// Asks the launcher for rank 0's host if nothing names it, and returns the place with the answer.
///
/// Calls `keep` with the connection that must outlive this process.
///
/// # Errors
/// Returns an error if the launcher does not answer, or if not all ranks ask.
pub fn asked(
    read: Result<ClusterInfo, Error>,
    overrides: Overrides,
    environment: &Environment,
    keep: impl FnOnce(Connection) -> io::Result<()>,
) -> Result<ClusterInfo, Error> {
    let mut asking = ClusterInfo::builder();
    asking.overrides = overrides;
    if let Some(info) = asking.ask_pmix(environment, &read)? {
        keep_pmix(&info, keep)?;
        return Ok(info);
    }
    let info = read?;
    match info.ask(keep)? {
        None => Ok(info),
        answer => {
            asking.overrides.answer = answer;
            asking.environment(environment).read()
        }
    }
}

/// Returns whether [`asked`] would ask the launcher.
pub fn would_ask(info: &ClusterInfo) -> bool {
    let environment: &Environment = &info.inherited;
    let is_wanted = patience(environment).is_ok_and(|patience| !patience.is_zero());
    let has_pmi =
        environment.is_set(pmi::FD) || environment.is_set(pmi::PORT) && environment.is_set(pmi::ID);
    is_wanted && (info.is_served_pmi() && has_pmi || info.is_served_pmix(environment))
}

impl ClusterInfo {
    /// Asks the launcher's PMI server if nothing names the master. `None` if there is nothing to
    /// ask, or if a user does not want that.
    ///
    /// Before this rank's first question, calls `keep` with the connection.
    fn ask(
        &self,
        keep: impl FnOnce(Connection) -> io::Result<()>,
    ) -> Result<Option<Answer>, Error> {
        let Some((mut link, patience)) = self.link()? else { return Ok(None) };
        // From the first word on, the launcher takes this process for an MPI program.
        if self.needs_goodbye(&link) {
            let kept = self.connection(&link).and_then(keep).and_then(|()| link.mark_kept());
            kept.map_err(|error| self.no_answer(&PmiError::NotKept(error)))?;
        }
        self.ask_over(&mut link, patience).map(Some)
    }

    /// Like [`ClusterInfo::ask`], for a process that needs the server only once.
    pub(crate) fn ask_once(&self) -> Result<Option<Answer>, Error> {
        let Some((mut link, patience)) = self.link()? else { return Ok(None) };
        let answer = self.ask_over(&mut link, patience)?;
        if self.needs_goodbye(&link) {
            link.finalize().map_err(|error| self.no_answer(&error))?;
        }
        Ok(Some(answer))
    }

    /// Returns whether the launcher takes this process's exit for a failure unless a process says
    /// goodbye, and no other process will. Flux does not care.
    fn needs_goodbye(&self, link: &Link) -> bool {
        self.launcher().spec().mpi == MpiFamily::Mpich && !link.is_kept()
    }

    fn ask_over(&self, link: &mut Link, patience: Duration) -> Result<Answer, Error> {
        let question = Question {
            rank: self.rank().index(),
            size: self.world_size(),
            host: host_name(),
            patience,
        };
        question.ask(link).map_err(|error| self.no_answer(&error))
    }

    fn connection(&self, link: &Link) -> io::Result<Connection> {
        let unknown = || io::Error::other("/proc does not show which process it has started");
        let process = self.process_of_rank(link.server()).ok_or_else(unknown)?;
        Ok(Connection { server: Server::Pmi, socket: link.copy()?, process })
    }

    /// Returns the connection to the launcher's server, and how long the other ranks may take.
    fn link(&self) -> Result<Option<(Link, Duration)>, Error> {
        let environment: &Environment = &self.inherited;
        if !self.is_served_pmi() {
            return Ok(None);
        }
        let patience = patience(environment)?;
        let refuse =
            |reason: Reason, name, value: &str| self.launcher().refuse(reason, name, value);
        let link = if let Some(text) = environment.text(pmi::FD) {
            let number = text.parse().map_err(|_| refuse(Reason::NotANumber, pmi::FD, text))?;
            (!patience.is_zero()).then(|| Link::of_number(number))
        } else if let Some((port, id)) = environment.text(pmi::PORT).zip(environment.text(pmi::ID))
        {
            let id = id.parse().map_err(|_| refuse(Reason::NotANumber, pmi::ID, id))?;
            let (host, number) = port
                .rsplit_once(':')
                .and_then(|(host, port)| Some((host, port.parse().ok()?)))
                .ok_or_else(|| {
                    refuse(Reason::Malformed("not of the form host:port".into()), pmi::PORT, port)
                })?;
            (!patience.is_zero()).then(|| Link::of_port(host, number, id))
        } else {
            None
        };
        let link = link.transpose().map_err(|error| self.no_answer(&error))?;
        Ok(link.map(|link| (link, patience)))
    }

    /// Returns whether nothing names the master of this process, and its launcher serves PMI-1.
    fn is_served_pmi(&self) -> bool {
        // `srun --mpi=pmi2` serves PMI-2 at the same descriptor, and Slurm's variables name its
        // master.
        let is_served = matches!(self.launcher().spec().mpi, MpiFamily::Mpich | MpiFamily::Pmi);
        // The descriptors of another process are not known here.
        self.master_addr().is_err() && is_served && self.inherited.is_current()
    }

    /// Returns the process that the launcher has started as this rank, given the one that serves
    /// PMI on this machine.
    fn process_of_rank(&self, server: Option<u32>) -> Option<u32> {
        let starter = || Starter::of(self.launcher(), &self.inherited).map(|starter| starter.id());
        let below = |above: u32| {
            let tracer = tracer();
            let (mut child, mut traced) = (std::process::id(), None);
            for parent in ancestors(&self.inherited) {
                if parent.id == above {
                    return Some(traced.unwrap_or(child));
                }
                // `strace -f` waits for whatever it traces, so nothing traced may wait for it, or
                // for a shell that does.
                if Some(parent.id) == tracer {
                    traced = Some(child);
                }
                child = parent.id;
            }
            None
        };
        server.and_then(below).or_else(|| below(starter()?))
    }

    fn no_answer(&self, error: &PmiError) -> Error {
        let environment: &Environment = &self.inherited;
        let name = if environment.is_set(pmi::FD) { pmi::FD } else { pmi::PORT };
        let give = self.launcher().spec().advice.give_master;
        let remedy = format!("or give rank 0's host to all ranks: {give}; {ASK}=0 does not ask");
        let error = Error::new(Reason::Pmi(error.to_string()), remedy).by(self.launcher());
        error.of(name).found(environment.text(name).unwrap_or_default())
    }
}

/// Returns the process that traces this one.
fn tracer() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok()
}

/// Returns how long the other ranks may take. Zero if a user does not want to ask.
fn patience(environment: &Environment) -> Result<Duration, Error> {
    let seconds = environment.setting::<u32>(ASK)?;
    Ok(seconds.map_or(PATIENCE, |seconds| Duration::from_secs(seconds.value.into())))
}

/// Returns the job's secret, if the launcher has passed it on.
pub(crate) fn secret(answer: &Answer) -> Option<&str> {
    answer.secret.as_deref()
}

/// Adds what the launcher has answered to what its variables say.
pub(crate) fn complete(placement: Placement, answer: &Answer) -> Result<Placement, Error> {
    let Some(nodes) = &answer.nodes else { return Ok(with_master(placement, answer)) };
    let known = |number| by(Server::Pmi.source(), Some(number));
    let local_rank = placement.local_rank.clone().or_else(|| known(nodes.local_rank));
    let local_size = placement.local_size.clone().or_else(|| known(nodes.local_size));
    let node_rank = placement.node_rank.clone().or_else(|| known(nodes.rank));
    let node_count = placement.node_count.clone().or_else(|| known(nodes.count));
    let placement = placement.with_local(local_rank, local_size)?;
    Ok(with_master(placement.with_nodes(node_rank, node_count), answer))
}

fn with_master(mut placement: Placement, answer: &Answer) -> Placement {
    if let Some(host) = &answer.host {
        placement.master_addr = Some(Sourced::new(host.clone(), Server::Pmi.master()));
    }
    placement
}
