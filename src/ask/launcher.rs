//! Asks the launcher what its variables do not say: rank 0's host, and the nodes.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mpienv_core::seam::{ASK, MpiFamily, PMIX_RANK, Server, refused};
use mpienv_core::{
    ClusterInfo, ClusterInfoBuilder, Environment, Error, Launcher, Reason, host_name,
};

use crate::pmi::{self, Link, Question};
use crate::pmix;

pub use crate::pmix::precludes_mpi;

/// How long the other ranks may take to ask too, unless `MPIENV_ASK` says otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads this process's place, and asks the launcher for rank 0's host and the nodes if no variable
/// names the master.
///
/// The launchers of MPICH, Intel MPI, MVAPICH and Flux answer over PMI, those of Open MPI 5 and
/// PRRTE over PMIx, for which a libpmix is loaded. All ranks must ask, because over PMI they wait
/// for each other: 60 seconds, or as many as the variable `MPIENV_ASK` says; 0 does not ask. Where
/// no launcher can be asked, and under Open MPI 4, which would refuse a later `MPI_Init`, the place
/// is as the builder reads it.
///
/// A process that has asked over PMI, and the programs that it starts, can no longer call
/// `MPI_Init`, except under Flux: it takes its leave of the launcher at once, because the launcher
/// would otherwise take its exit for a failure and kill the other ranks. `mpienv exec` asks without
/// this limit. Over PMIx, the connection stays open until the process exits. If it replaces itself
/// by another program, `MPI_Init` of that program may hang.
///
/// Only this process's own environment is asked about, not the builder's
/// [`vars`](ClusterInfoBuilder::vars).
///
/// ```no_run
/// use mpienv::{ClusterInfo, ask};
///
/// let info = ask::read(&ClusterInfo::builder())?;
/// println!("rank 0 runs on {}", info.master_addr()?);
/// # Ok::<(), mpienv::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the variables contradict each other or are incomplete, if the launcher does
/// not answer, or if not all ranks ask.
pub fn read(builder: &ClusterInfoBuilder) -> Result<ClusterInfo, Error> {
    ask_if_needed(builder.read(), builder, None)
}

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

/// Keeps a connection open that must outlive this process.
pub type Keep<'a> = &'a dyn Fn(Connection) -> io::Result<()>;

/// Asks the launcher for rank 0's host if nothing names it, and returns the place with the answer.
///
/// Calls `keep` with the connection that must outlive this process: over PMI, before this rank's
/// first question. Without it, this process takes its leave of the launcher after the last one.
///
/// # Errors
/// Returns an error if the launcher does not answer, or if not all ranks ask.
pub fn ask_if_needed(
    read: Result<ClusterInfo, Error>,
    builder: &ClusterInfoBuilder,
    keep: Option<Keep<'_>>,
) -> Result<ClusterInfo, Error> {
    if let Some(info) = ask_pmix(builder, &read)? {
        keep.map_or(Ok(()), |keep| keep_pmix(&info, keep))?;
        return Ok(info);
    }
    let info = read?;
    let Some((mut link, patience)) = link(&info)? else { return Ok(info) };
    let (rank, size) = (info.rank().index(), info.world_size());
    let question = Question { rank, size, host: host_name(), patience };
    let process = process_of_rank(&info, link.server());
    let ask = || {
        let _turn = match process {
            Some(process) => Turn::wait(process, patience)?,
            None => None,
        };
        // From the first word on, the launcher takes this process for an MPI program.
        if let Some(keep) = keep.filter(|_| needs_goodbye(&info, &link)) {
            let kept = connection(&info, &link).and_then(keep).and_then(|()| link.mark_kept());
            let why = "the launcher would take this process's exit for a failure, and no process can prevent that";
            kept.map_err(|error| format!("{why}: {error}"))?;
        }
        let answer = question.ask(&mut link)?;
        if needs_goodbye(&info, &link) {
            HAS_LEFT.store(true, Ordering::Relaxed);
            link.finalize()?;
        }
        Ok(answer)
    };
    let answer = ask().map_err(|why| no_answer(&info, why))?;
    builder.clone().answer(answer).read()
}

/// Whether this process has taken its leave of the launcher's PMI server.
static HAS_LEFT: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has taken its leave of the launcher's PMI server, without which
/// `MPI_Init` aborts it.
#[must_use]
pub fn has_left() -> bool {
    HAS_LEFT.load(Ordering::Relaxed)
}

/// Returns whether [`ask_if_needed`] would ask the launcher.
#[must_use]
pub fn would_ask(info: &ClusterInfo) -> bool {
    let environment = info.environment();
    let is_wanted = patience(environment).is_ok_and(|patience| !patience.is_zero());
    let has_pmi =
        environment.is_set(pmi::FD) || environment.is_set(pmi::PORT) && environment.is_set(pmi::ID);
    is_wanted && (is_served_pmi(info) && has_pmi || is_served_pmix(info))
}

/// Asks the launcher's PMIx server, even if a variable names the master and a program that is
/// started later can no longer call `MPI_Init`.
///
/// # Errors
/// Returns an error if the variables cannot be read, if the server does not answer, or if it speaks
/// of another process.
pub fn read_with_pmix(builder: &ClusterInfoBuilder) -> Result<ClusterInfo, Error> {
    let launcher = match builder.read() {
        Ok(info) => info.launcher(),
        // `prterun` sets no size, so that its variables alone place no process.
        Err(_) if builder.snapshot().get(PMIX_RANK).is_some() => Launcher::OpenMpi,
        Err(error) => return Err(error),
    };
    complete_by_pmix(builder, launcher)
}

/// Asks the PMIx server of a launcher, and reads again with its answer.
fn complete_by_pmix(
    builder: &ClusterInfoBuilder,
    launcher: Launcher,
) -> Result<ClusterInfo, Error> {
    let answer = pmix::ask(&builder.snapshot());
    let answer = answer.map_err(|error| refused(launcher, error))?;
    builder.clone().answer(answer).read()
}

/// Calls `keep` with the connection to the launcher's PMIx server, if this process has asked it.
///
/// # Errors
/// Returns an error if the connection cannot be kept.
pub fn keep_pmix(info: &ClusterInfo, keep: Keep<'_>) -> Result<(), Error> {
    let Some(connection) = pmix::take_connection() else { return Ok(()) };
    let process = process_of_rank(info, None).unwrap_or_else(std::process::id);
    let connection = Connection { server: Server::Pmix, socket: connection.into(), process };
    keep(connection).map_err(|error| {
        let give = info.launcher().spec().give_master;
        let text = format!("cannot keep the connection to its server open: {error}");
        let remedy = format!("do not ask PMIx, and give rank 0's host to all ranks: {give}");
        Error::new(Reason::Pmix(text), remedy).by(info.launcher())
    })
}

/// Asks the launcher's PMIx server if nothing names the master, and a program that is started later
/// can still call `MPI_Init`. `None` if there is nothing to ask.
fn ask_pmix(
    builder: &ClusterInfoBuilder,
    read: &Result<ClusterInfo, Error>,
) -> Result<Option<ClusterInfo>, Error> {
    let environment = builder.snapshot();
    let is_open = match read {
        Ok(info) => is_served_pmix(info),
        // `prterun` sets no size.
        Err(error) => error.variable() == Some(PMIX_RANK) && pmix::is_harmless(&environment),
    };
    if !is_open || environment.number(ASK)? == Some(0) {
        return Ok(None);
    }
    complete_by_pmix(builder, Launcher::OpenMpi).map(Some)
}

/// Returns whether nothing names the master of this process, and its launcher serves PMIx without
/// harm to a later `MPI_Init`.
fn is_served_pmix(info: &ClusterInfo) -> bool {
    // Other launchers name the master, or their own server is PMI's.
    let is_open = info.launcher() == Launcher::OpenMpi && info.master_addr().is_err();
    is_open && pmix::is_harmless(info.environment())
}

/// Returns whether nothing names the master of this process, and its launcher serves PMI-1.
fn is_served_pmi(info: &ClusterInfo) -> bool {
    // `srun --mpi=pmi2` serves PMI-2 at the same descriptor, and Slurm's variables name its master.
    let is_served = matches!(info.launcher().spec().mpi, MpiFamily::Mpich | MpiFamily::Pmi);
    // The descriptors of another process are not known here.
    info.master_addr().is_err() && is_served && info.environment().is_current()
}

/// Returns whether the launcher takes this process's exit for a failure unless a process says
/// goodbye, and no other process will. Flux does not care.
fn needs_goodbye(info: &ClusterInfo, link: &Link) -> bool {
    info.launcher().spec().mpi == MpiFamily::Mpich && !link.is_kept()
}

/// The right to ask, which one process of a rank has at a time: they share its connection, and would
/// get each other's answers.
struct Turn(File);

impl Turn {
    /// Waits for it. `None` if the system cannot tell.
    fn wait(process: u32, patience: Duration) -> Result<Option<Turn>, String> {
        const PAUSE: Duration = Duration::from_millis(5);
        let until = Instant::now() + patience;
        // Another user cannot open this file, and so cannot hold up the job.
        let Ok(file) = File::open(format!("/proc/{process}/environ")) else { return Ok(None) };
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Turn(file))),
                Err(TryLockError::Error(_)) => return Ok(None),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let waited = patience.as_secs_f64();
                    return Err(format!("another process of this rank has asked for {waited} s"));
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the file, too.
        let _ = self.0.unlock();
    }
}

fn connection(info: &ClusterInfo, link: &Link) -> io::Result<Connection> {
    let unknown = || io::Error::other("/proc does not show which process it has started");
    let process = process_of_rank(info, link.server()).ok_or_else(unknown)?;
    Ok(Connection { server: Server::Pmi, socket: link.copy()?, process })
}

/// Returns the connection to the launcher's server, and how long the other ranks may take. `None`
/// if there is nothing to ask, or if a user does not want that.
fn link(info: &ClusterInfo) -> Result<Option<(Link, Duration)>, Error> {
    let environment = info.environment();
    if !is_served_pmi(info) {
        return Ok(None);
    }
    let patience = patience(environment)?;
    let refuse = |reason, name, value: &str| info.launcher().refuse(reason, name, value);
    let link = if let Some(text) = environment.text(pmi::FD) {
        let number = text.parse().map_err(|_| refuse(Reason::NotANumber, pmi::FD, text))?;
        (!patience.is_zero()).then(|| Link::of_number(number))
    } else if let Some((place, id)) = environment.text(pmi::PORT).zip(environment.text(pmi::ID)) {
        let id = id.parse().map_err(|_| refuse(Reason::NotANumber, pmi::ID, id))?;
        let parsed =
            place.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let form = || Reason::Malformed("not of the form host:port".into());
        let (host, port) = parsed.ok_or_else(|| refuse(form(), pmi::PORT, place))?;
        (!patience.is_zero()).then(|| Link::of_port(host, port, id))
    } else {
        None
    };
    let link = link.transpose().map_err(|error| no_answer(info, error))?;
    Ok(link.map(|link| (link, patience)))
}

/// Returns the process that the launcher has started as this rank, given the one that serves PMI on
/// this machine.
fn process_of_rank(info: &ClusterInfo, server: Option<u32>) -> Option<u32> {
    let below = |above: u32| {
        let tracer = tracer();
        let (mut child, mut traced) = (std::process::id(), None);
        for parent in info.parents() {
            if parent == above {
                return Some(traced.unwrap_or(child));
            }
            // `strace -f` waits for whatever it traces, so nothing traced may wait for it, or for a
            // shell that does.
            if Some(parent) == tracer {
                traced = Some(child);
            }
            child = parent;
        }
        None
    };
    server.and_then(below).or_else(|| below(info.starter()?))
}

fn no_answer(info: &ClusterInfo, why: String) -> Error {
    let environment = info.environment();
    let name = if environment.is_set(pmi::FD) { pmi::FD } else { pmi::PORT };
    let give = info.launcher().spec().give_master;
    let remedy = format!("or give rank 0's host to all ranks: {give}; {ASK}=0 does not ask");
    let error = Error::new(Reason::Pmi(why), remedy).by(info.launcher());
    error.of(name).found(environment.text(name).unwrap_or_default())
}

/// Returns the process that traces this one.
fn tracer() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}

/// Returns how long the other ranks may take. Zero if a user does not want to ask.
fn patience(environment: &Environment) -> Result<Duration, Error> {
    let seconds = environment.number(ASK)?;
    Ok(seconds.map_or(PATIENCE, |seconds| Duration::from_secs(seconds.into())))
}
