//! Settings for connecting a group.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use super::connecting::Connecting;
use super::error::CollectiveError;
use super::group::Group;
use super::hosts;
use super::tcp::{MeetingPoint, Tcp};
use super::transport::{Alone, Transport};
use crate::cluster::info::ClusterInfo;
use crate::rendezvous::{LONGEST_TIMEOUT, Rendezvous, name_the_late};
use crate::value::host::Host;
use crate::value::port::Port;
use mpienv_ask::seam::would_ask;
use mpienv_core::Error;

#[cfg(feature = "mpi")]
use super::mpi;

/// Without the feature, no rank is connected by MPI.
#[cfg(not(feature = "mpi"))]
mod mpi {
    use super::{ClusterInfo, CollectiveError, OnLost, OverMpi, Timeouts};

    pub(super) type Hints = ();

    pub(super) fn connect(
        _info: &ClusterInfo,
        _timeouts: Timeouts,
        required: bool,
        _on_lost: OnLost,
        _hints: &(),
    ) -> OverMpi {
        if required { Err(CollectiveError::NoMpi) } else { Ok(Err("built without MPI")) }
    }

    /// So that [`Group::describe`](crate::Group::describe) says why that library is not used.
    pub(super) fn is_named() -> bool {
        mpienv_core::Environment::current().is_set("MPIENV_MPI_LIB")
    }
}

/// The longest waits for another rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// While the ranks connect.
    pub(super) connecting: Duration,
    /// In every later call.
    pub(super) calls: Duration,
}

/// What connects the ranks.
///
/// ```
/// use mpienv::collective::Backend;
///
/// assert_eq!(Backend::default(), Backend::Auto);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// [`Backend::SharedMemory`], which is faster on one host, if the launcher says that all ranks
    /// are on this host and `MPIENV_MPI_LIB` is not set. Otherwise MPI, if this program has the
    /// feature `mpi`, the launcher starts MPI programs, and its library can be loaded. Otherwise
    /// [`Backend::SharedMemory`]. If a library that was loaded fails, connecting fails.
    #[default]
    Auto,
    /// The launcher's MPI library, or the one that `MPIENV_MPI_LIB` names. Connecting several ranks
    /// fails if it cannot be used.
    Mpi,
    /// Shared memory on each host and TCP between hosts, even if the launcher starts MPI programs.
    SharedMemory,
    /// TCP between all ranks.
    Tcp,
}

/// What runs before this process exits because a rank is lost over MPI. It returns the exit code.
#[derive(Clone)]
pub(super) struct OnLost(pub Arc<dyn Fn(&CollectiveError) -> u8 + Send + Sync>);

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnLost").field(&Arc::as_ptr(&self.0)).finish()
    }
}

/// Connects a group: see [`Group::builder`].
///
/// ```no_run
/// use std::time::Duration;
/// use mpienv::ClusterInfo;
/// use mpienv::collective::{Backend, Group, GroupBuilder};
///
/// let info = ClusterInfo::from_env()?;
/// let builder: GroupBuilder = Group::builder(&info);
/// let builder = builder.timeout(Duration::from_secs(300)).backend(Backend::Tcp);
/// let host = mpienv::host_name().unwrap_or_default();
/// let group = builder
///     .on_lost(move |error| {
///         eprintln!("solver on {host}: {error}");
///         error.kind().exit_code()
///     })
///     .connect()?;
/// println!("{}", group.describe());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct GroupBuilder<'a> {
    info: &'a ClusterInfo,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    backend: Backend,
    quiet: bool,
    meets_at: Option<(Host, Port)>,
    listener: Option<Arc<TcpListener>>,
    on_lost: OnLost,
    /// What Open MPI learns of the job.
    hints: mpi::Hints,
}

impl<'a> GroupBuilder<'a> {
    pub(super) fn new(info: &'a ClusterInfo) -> GroupBuilder<'a> {
        let own = info.rank();
        GroupBuilder {
            info,
            timeout: Duration::from_secs(60),
            connect_timeout: None,
            backend: Backend::Auto,
            quiet: false,
            meets_at: None,
            listener: None,
            on_lost: OnLost(Arc::new(move |error| {
                // In one piece: a launcher merges what several ranks write at this time. The process
                // must end even if stderr cannot be written.
                let line = format!("mpienv: rank {own}: {error}\n");
                let _ = io::stderr().write_all(line.as_bytes());
                error.kind().exit_code()
            })),
            hints: mpi::Hints::default(),
        }
    }

    /// Sets how long every call waits for another rank: 60 s by default, at most ten years. With 0,
    /// connecting fails. Connecting waits as long, unless
    /// [`connect_timeout`](GroupBuilder::connect_timeout) is set.
    ///
    /// It should be the same on all ranks: a call ends on all of them once one has waited too long.
    ///
    /// If several ranks time out, finding out which one is late takes them up to half as long
    /// again, at most 5 s, and telling the others up to 2 s.
    pub fn timeout(self, timeout: Duration) -> GroupBuilder<'a> {
        GroupBuilder { timeout: timeout.min(LONGEST_TIMEOUT), ..self }
    }

    /// Sets how long connecting waits for another rank, if that is not the
    /// [`timeout`](GroupBuilder::timeout) of the later calls; at most ten years.
    ///
    /// A rank that was never started is then named soon, although a rank may take long between two
    /// calls, for example to write a checkpoint:
    ///
    /// ```
    /// use std::time::Duration;
    /// use mpienv::ClusterInfo;
    /// use mpienv::collective::Group;
    ///
    /// let mut group = Group::builder(&ClusterInfo::from_env()?)
    ///     .connect_timeout(Duration::from_secs(60))
    ///     .timeout(Duration::from_secs(30 * 60))
    ///     .connect()?;
    /// # group.barrier()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_timeout(self, timeout: Duration) -> GroupBuilder<'a> {
        GroupBuilder { connect_timeout: Some(timeout.min(LONGEST_TIMEOUT)), ..self }
    }

    /// Sets what connects the ranks; must be the same on all of them. [`Backend::Auto`] by default.
    pub fn backend(self, backend: Backend) -> GroupBuilder<'a> {
        GroupBuilder { backend, ..self }
    }

    /// If true, connecting does not call [`ClusterInfo::warn`]. False by default: warnings go to
    /// stderr, once on each node.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    /// use mpienv::collective::Group;
    ///
    /// let short = [("MPIENV_TOKEN", "guessable")];
    /// let group = Group::builder(&ClusterInfo::from_vars(short)?).quiet(true).connect()?;
    /// assert_eq!(group.size(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn quiet(self, quiet: bool) -> GroupBuilder<'a> {
        GroupBuilder { quiet, ..self }
    }

    /// Sets where the ranks meet, instead of the job's master address and port. Over MPI, it is not
    /// used.
    ///
    /// This must be rank 0's address as this rank reaches it, for example what rank 0 has published
    /// of its [`listener`](GroupBuilder::listener).
    pub fn meet_at(self, host: Host, port: Port) -> GroupBuilder<'a> {
        GroupBuilder { meets_at: Some((host, port)), ..self }
    }

    /// Sets a socket that listens already, on which rank 0 meets the others instead of binding the
    /// master's port. The other ranks need its address ([`meet_at`](GroupBuilder::meet_at)), and do
    /// not use a listener of their own. Over MPI, it is not used.
    ///
    /// With it, no port is chosen before it is bound, so that no other program can take it
    /// meanwhile: rank 0 lets the system choose a port, and a file, PyTorch's store or etcd carries
    /// the address to the other ranks.
    ///
    /// ```
    /// use std::net::TcpListener;
    /// use mpienv::collective::Group;
    /// use mpienv::{ClusterInfo, Host, Port};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// // What rank 0 publishes:
    /// let port = Port::new(listener.local_addr()?.port()).expect("the system has chosen one");
    ///
    /// // Here, two threads stand for the processes of two ranks.
    /// let info = |rank| ClusterInfo::from_vars([("RANK", rank), ("WORLD_SIZE", "2")]);
    /// let (rank_0, rank_1) = (info("0")?, info("1")?);
    /// let other = std::thread::spawn(move || {
    ///     let mut group = Group::builder(&rank_1).meet_at(Host::LOOPBACK, port).connect()?;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(group.barrier()?)
    /// });
    /// Group::builder(&rank_0).listener(listener).connect()?.barrier()?;
    /// other.join().expect("rank 1 does not panic").map_err(|error| error.to_string())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listener(self, listener: TcpListener) -> GroupBuilder<'a> {
        GroupBuilder { listener: Some(Arc::new(listener)), ..self }
    }

    /// Sets the function that runs before this process exits because a rank is lost over MPI, where
    /// a blocked call cannot return an error. It returns the exit code. Over other transports,
    /// calls return errors instead.
    ///
    /// A rank that loses another one between two calls, perhaps while it writes what it has
    /// computed, exits in its next call, or after the timeout. It goes on if its group ends before.
    ///
    /// The function runs in a thread other than the group's. By default, it prints this rank and the
    /// error to stderr and returns [the code of its kind](mpienv_core::ErrorKind::exit_code), as a
    /// program does that gets the error from a call.
    pub fn on_lost(
        self,
        on_lost: impl Fn(&CollectiveError) -> u8 + Send + Sync + 'static,
    ) -> GroupBuilder<'a> {
        GroupBuilder { on_lost: OnLost(Arc::new(on_lost)), ..self }
    }

    /// Gives Open MPI hints about this job, which [`World::init_with`](mpienv_mpi::World::init_with)
    /// explains, if MPI connects the ranks. MPI reads and sets variables of the environment
    /// meanwhile: no other thread may read or change it, except through `std::env`.
    ///
    /// ```no_run
    /// use mpienv::ClusterInfo;
    /// use mpienv::collective::Group;
    /// use mpienv::mpi::Hints;
    ///
    /// let info = ClusterInfo::from_env()?;
    /// let hints = Hints::new().one_machine(info.node_count() == Some(1));
    /// let group = Group::builder(&info).mpi_hints(hints).connect()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "mpi")]
    pub fn mpi_hints(self, hints: mpienv_mpi::Hints) -> GroupBuilder<'a> {
        GroupBuilder { hints, ..self }
    }

    /// Connects all ranks of the job. Every rank must call this, and the ranks of a job that
    /// connects several groups must connect them in the same order, one after the other: two
    /// threads of a rank that connect at the same time get an error. It first prints this rank's
    /// warnings, and rank 0 names the ranks that are late after ten seconds, unless
    /// [`GroupBuilder::quiet`] or the variable `MPIENV_QUIET` silences both.
    ///
    /// # Errors
    /// If a rank does not arrive in time, the ranks cannot be connected, or the backend cannot be
    /// used. Also if this process would be the only rank although it is probably one of several, as
    /// in a batch script without `srun`; with `MPIENV_LAUNCHER=alone`, it is the only one.
    ///
    /// ```
    /// use mpienv::{ClusterInfo, collective::Group};
    ///
    /// let script = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")];
    /// let error = Group::connect(&ClusterInfo::from_vars(script)?).unwrap_err();
    /// assert!(error.to_string().contains("srun did not start this process"));
    ///
    /// let alone = script.into_iter().chain([("MPIENV_LAUNCHER", "alone")]);
    /// assert_eq!(Group::connect(&ClusterInfo::from_vars(alone)?)?.size(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(self) -> Result<Group, CollectiveError> {
        let GroupBuilder { info, backend, quiet, meets_at, listener, on_lost, hints, .. } = self;
        let calls = self.timeout;
        let timeouts = Timeouts { connecting: self.connect_timeout.unwrap_or(calls), calls };
        info.clone().require_place()?;
        if !quiet {
            info.warn();
        }
        for (call, timeout) in
            [("timeout", timeouts.calls), ("connect_timeout", timeouts.connecting)]
        {
            if timeout.is_zero() {
                return Err(CollectiveError::no_time(call));
            }
        }
        if info.world_size() == 1 {
            return Ok(Group::new(Box::new(Alone::default())));
        }
        let listener = listener.filter(|_| info.rank().is_first());
        let place = meeting_point(info, meets_at, listener, backend != Backend::Tcp);
        let telling = |place: MeetingPoint| {
            let rendezvous = name_the_late(place.rendezvous, info, "");
            MeetingPoint { rendezvous, ..place }
        };
        let place = if quiet { place } else { place.map(telling) };
        // Over MPI, the master may be unknown.
        let meets_at = place.as_ref().ok().map(|place| (place.host.clone(), place.port));
        let connecting = Connecting::begin(info, meets_at)?;
        let by_mpi = |required| mpi::connect(info, timeouts, required, on_lost, &hints);
        let group = connect_ranks(info, backend, place, timeouts, by_mpi);
        connecting.end().and(group)
    }
}

/// Connects several ranks. `by_mpi`: connects them by MPI. Its argument is whether MPI is required.
fn connect_ranks(
    info: &ClusterInfo,
    backend: Backend,
    place: Result<MeetingPoint, CollectiveError>,
    timeouts: Timeouts,
    by_mpi: impl FnOnce(bool) -> OverMpi,
) -> Result<Group, CollectiveError> {
    let is_one_host = info.local_world_size() == Some(info.world_size());
    let why = match backend {
        Backend::Auto if is_one_host && !mpi::is_named() => "",
        Backend::Auto | Backend::Mpi => match by_mpi(backend == Backend::Mpi)? {
            Ok(transport) => return Ok(Group::new(transport)),
            Err(why) => why,
        },
        Backend::SharedMemory | Backend::Tcp => "",
    };
    let place = place?;
    let tcp = Tcp::connect(info.rank(), &place, timeouts)?.because(why);
    let mut transport: Box<dyn Transport> =
        if place.shares_memory { hosts::join(tcp)? } else { Box::new(tcp) };
    transport.set_timeout(timeouts.calls);
    Ok(Group::new(transport))
}

/// The ranks connected by MPI, or why MPI is not used although nothing failed.
pub(super) type OverMpi = Result<Result<Box<dyn Transport>, &'static str>, CollectiveError>;

/// Where the ranks meet: where the caller says, else at the caller's listener, else at the master.
fn meeting_point(
    info: &ClusterInfo,
    meets_at: Option<(Host, Port)>,
    listener: Option<Arc<TcpListener>>,
    shares_memory: bool,
) -> Result<MeetingPoint, CollectiveError> {
    let is_master = meets_at.is_none() && listener.is_none();
    let (host, port) = match (meets_at, &listener) {
        (Some(place), _) => place,
        (None, Some(listener)) => {
            let address = listener.local_addr().map_err(CollectiveError::Socket)?;
            let port = Port::new(address.port());
            let no_port = || CollectiveError::Socket(io::ErrorKind::AddrNotAvailable.into());
            (Host::from(address.ip().to_canonical()), port.ok_or_else(no_port)?)
        }
        (None, None) => {
            let master = info.master_addr().map_err(|error| or_ask(error, info))?;
            (master.clone(), info.meeting_port())
        }
    };
    let mut rendezvous = Rendezvous::of(info, host.clone(), port);
    if is_master {
        rendezvous = rendezvous.default_port(info.default_master_port());
    }
    if let Some(listener) = listener {
        let listener = listener.try_clone().map_err(CollectiveError::Socket)?;
        rendezvous = rendezvous.listener(listener);
    }
    Ok(MeetingPoint { host, port, rendezvous, has_secret: info.has_secret(), shares_memory })
}

/// Returns the error for an unknown master, with the other ways if the launcher can be asked.
fn or_ask(error: Error, info: &ClusterInfo) -> Error {
    if !would_ask(info) {
        return error;
    }
    let remedy = format!(
        "{}; or start the program with `mpienv exec --`, read its place with `mpienv::ask::read`, or connect the ranks by \
         MPI (feature `mpi`)",
        error.remedy()
    );
    Error::new(error.reason().clone(), remedy).by(info.launcher()).of("MASTER_ADDR")
}
