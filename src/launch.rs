//! Starts the workers of this node, and stops all of them when one fails.

mod attempts;
#[cfg(feature = "launch")]
pub(crate) mod binding;
#[cfg(feature = "launch")]
pub(crate) mod cores;
mod ending;
mod error;
#[cfg(unix)]
pub(crate) mod exec;
mod log_file;
mod output;
#[cfg(all(feature = "launch", target_os = "linux"))]
mod parent;
mod port;
mod report;
mod restarts;
mod role;
mod running;
pub(crate) mod start_error;
mod stop;
mod stopped;
mod supervisor;
#[cfg(all(feature = "launch", unix))]
mod thread;

pub use error::LaunchError;
pub use output::Output;
#[cfg(all(feature = "launch", target_os = "linux"))]
pub use parent::end_with_parent;
pub use report::LaunchReport;
#[cfg(all(feature = "launch", unix))]
pub use supervisor::serve_as_watchdog;

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::attempt::Attempt;
use crate::cluster::info::ClusterInfo;
use crate::export::Target;
#[cfg(any(feature = "cli", feature = "testing"))]
use crate::simulate::Job;
#[cfg(any(feature = "cli", feature = "testing"))]
use crate::value::host::Host;
use crate::value::placement::LaunchStyle;
#[cfg(any(feature = "cli", feature = "testing"))]
use crate::value::port_range::PortRange;

use self::restarts::Restarts;
use self::role::Role;
use self::running::Running;
use self::stop::{Grace, LONGEST};
use self::supervisor::{Signals, Unbound};

/// The most simulated ranks that run together. Each rank's variables name the hosts of all ranks.
#[cfg(any(feature = "cli", feature = "testing"))]
const MOST_SIMULATED: u32 = 4096;
/// How long workers may take to exit after one has failed, or after a signal. As in torchrun, Slurm
/// and Kubernetes, a signal leaves time for a checkpoint.
const GRACE: Grace =
    Grace { after_failure: Duration::from_secs(5), after_signal: Duration::from_secs(30) };

/// The workers of this node, ready to be started.
///
/// Under a launcher with one process on each node, they are this node's part of the job. Without a
/// launcher, they are a whole job on this machine.
///
/// With the feature `launch`, on Unix:
/// - Each worker has its own process group, and no process of the group outlives the job, even if a
///   worker fails. If the program calls `serve_as_watchdog`, this also holds if this process is
///   killed.
/// - On Linux, no other descendant of a worker outlives the job either, in any group or session.
///   Exceptions are processes of another user, and processes that have lost their parents and
///   cleared, overwritten or hidden their environment (see [`Launch::subreaper`]). If /proc is
///   empty or belongs to another PID namespace, only the groups are stopped. Other children of this
///   process are left alone. [The guide](crate::guide::launch) has the details.
/// - A worker that is stopped, for example because it reads the terminal, is reported on stderr.
/// - SIGINT, SIGTERM and SIGHUP are passed on to every worker's process group, SIGUSR1 and SIGUSR2
///   to the workers only. Signals that this process ignores (`nohup`) are not passed on. Workers
///   that ignore SIGINT or SIGTERM are killed: see [`Launch::grace`].
/// - On Linux, workers may use every core that the cgroup allows, even if the launcher bound this
///   process to one; see [`Launch::keep_binding`].
///
/// ```
/// use std::process::Command;
/// use std::time::Duration;
/// use mpienv::{ClusterInfo, Launch, Output};
///
/// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
/// let workers = Launch::new(&info, 2)?.output(Output::Prefixed).grace(Duration::from_secs(1)).keep_binding();
/// workers.run(|_worker| {
///     let mut command = Command::new("sh");
///     command.args(["-c", "test $WORLD_SIZE = 2"]);
///     command
/// })?;
/// # Ok::<(), mpienv::LaunchError>(())
/// ```
#[derive(Debug)]
pub struct Launch {
    workers: Vec<ClusterInfo>,
    grace: Grace,
    keep_binding: bool,
    subreaper: bool,
    /// Whether this process exits once it has reported how the launch ended.
    is_whole_process: bool,
    output: Output,
    variables: Variables,
    restarts: Restarts,
}

/// Where the workers' variables come from.
#[derive(Debug)]
enum Variables {
    /// From the workers' places.
    Exports(Target),
    /// From the simulated launcher.
    #[cfg(any(feature = "cli", feature = "testing"))]
    Simulated(Box<Job>),
}

impl Launch {
    /// Prepares `per_node` workers on this node.
    ///
    /// If there is no launcher and no master port is set, the job gets a port that is free now.
    /// Several jobs can then run on one machine.
    ///
    /// # Errors
    /// Returns the errors of [`ClusterInfo::workers`], or an error if no port is free.
    pub fn new(info: &ClusterInfo, per_node: u32) -> Result<Launch, LaunchError> {
        if info.launch_style() == LaunchStyle::Alone && info.port_is_default {
            let port = port::free_port(info.port_range, 0).map_err(LaunchError::NoPort)?;
            let own = info.with_own_port(port, "free when the workers were started");
            let restarts = Restarts { range: Some(info.port_range), ..Restarts::default() };
            return Ok(Launch { restarts, ..Launch::of(own.workers(per_node)?) });
        }
        let restarts = Restarts { node: Some(info.clone()), ..Restarts::default() };
        Ok(Launch { restarts, ..Launch::of(info.workers(per_node)?) })
    }

    /// Prepares a single worker, with the place of this process.
    ///
    /// Use it for programs that need a scheduler in addition to rank 0's worker: see
    /// [`Launch::variables`].
    ///
    /// ```
    /// use std::process::Command;
    /// use mpienv::{ClusterInfo, Launch, Target};
    ///
    /// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
    /// // `sh` is started twice: as the worker, and as the scheduler.
    /// Launch::with_scheduler(&info).variables(Target::MindSpore).run(|_worker| {
    ///     let mut command = Command::new("sh");
    ///     command.args(["-c", "test -n \"$MS_ROLE\""]);
    ///     command
    /// })?;
    /// # Ok::<(), mpienv::LaunchError>(())
    /// ```
    #[must_use]
    pub fn with_scheduler(info: &ClusterInfo) -> Launch {
        Launch { keep_binding: true, ..Launch::of(vec![info.marked()]) }
    }

    fn of(workers: Vec<ClusterInfo>) -> Launch {
        Launch {
            workers,
            grace: GRACE,
            keep_binding: false,
            subreaper: false,
            is_whole_process: false,
            output: Output::default(),
            variables: Variables::Exports(Target::default()),
            restarts: Restarts::default(),
        }
    }

    /// Prepares all ranks of a simulated job on this machine.
    ///
    /// Each rank gets the variables that its launcher would set, and no variables of a real
    /// launcher. `MASTER_ADDR` is 127.0.0.1 and `MASTER_PORT` is a port that is free now, so that
    /// the ranks can meet. With `keep_master`, the ranks get the launcher's own master instead,
    /// such as `node0`.
    ///
    /// ```
    /// use std::process::Command;
    /// use mpienv::Launch;
    /// use mpienv::simulate::Job;
    ///
    /// let job = Job::slurm().nodes(2).build()?;
    /// Launch::simulated(&job, false)?.run(|_rank| {
    ///     let mut command = Command::new("sh");
    ///     command.args(["-c", "test $SLURM_NTASKS = 2 && test $MASTER_ADDR = 127.0.0.1"]);
    ///     command
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the job has more than 4096 ranks, or if no port is free.
    #[cfg(any(feature = "cli", feature = "testing"))]
    pub fn simulated(job: &Job, keep_master: bool) -> Result<Launch, LaunchError> {
        let (ranks, most) = (job.world_size(), MOST_SIMULATED);
        if ranks > most {
            return Err(LaunchError::TooManyRanks { ranks, most });
        }
        let mut job = job.clone();
        if !keep_master {
            job = job.with_master(
                Host::LOOPBACK,
                port::free_port(PortRange::default(), 0).map_err(LaunchError::NoPort)?,
            );
        }
        let workers: Result<Vec<ClusterInfo>, _> =
            job.environments().map(ClusterInfo::from_vars).collect();
        let launch = Launch::of(workers?);
        Ok(Launch { keep_binding: true, variables: Variables::Simulated(Box::new(job)), ..launch })
    }

    /// Sets how long workers may take to exit. Workers that remain after this time are killed.
    ///
    /// The time begins when a worker fails (5 s by default; with the feature `launch`, the others
    /// first get SIGTERM) or when this process passes SIGINT or SIGTERM on (30 s by default). A
    /// second SIGINT or SIGTERM ends it at once. A year is the most.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Launch {
        let grace = grace.min(LONGEST);
        self.grace = Grace { after_failure: grace, after_signal: grace };
        self
    }

    /// Keeps the workers on the cores to which this process is bound.
    #[must_use]
    pub fn keep_binding(mut self) -> Launch {
        self.keep_binding = true;
        self
    }

    /// Makes this process adopt the orphaned descendants of workers (`PR_SET_CHILD_SUBREAPER`).
    ///
    /// It applies on Linux with the feature `launch`, while the workers run. This process then
    /// finds every descendant of a worker, even one that cleared its environment, unless this
    /// process is killed. It also reaps adopted processes that have exited. If this process already
    /// has children, nothing changes.
    ///
    /// Use it only in programs that start no other processes while the workers run. Other processes
    /// would be mistaken for descendants of a worker.
    ///
    /// ```
    /// use std::process::Command;
    /// use mpienv::{ClusterInfo, Launch};
    ///
    /// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
    /// Launch::new(&info, 1)?.subreaper().run(|_worker| {
    ///     let mut command = Command::new("sh");
    ///     // It loses its parent, and is killed with the worker.
    ///     command.args(["-c", "(sleep 1 &)"]);
    ///     command
    /// })?;
    /// # Ok::<(), mpienv::LaunchError>(())
    /// ```
    #[must_use]
    pub fn subreaper(mut self) -> Launch {
        self.subreaper = true;
        self
    }

    /// Declares that this process exits once it has reported how the launch ended. A signal leaves
    /// it time to do so.
    #[cfg(feature = "cli")]
    #[must_use]
    pub(crate) fn whole_process(mut self) -> Launch {
        self.is_whole_process = true;
        self
    }

    /// Sets where the workers' stdout and stderr go. The default is this process's own.
    #[must_use]
    pub fn output(mut self, output: Output) -> Launch {
        self.output = output;
        self
    }

    /// Sets which variables the workers get: see [`ClusterInfo::exports_for`]. The default is
    /// PyTorch's.
    ///
    /// If the programs need a scheduler, rank 0's command is started a second time as the
    /// scheduler. After all workers have exited, the scheduler may take up to [`Launch::grace`] to
    /// exit by itself.
    #[must_use]
    pub fn variables(mut self, set: Target) -> Launch {
        self.variables = Variables::Exports(set);
        self
    }

    /// Starts the command that `command` returns for each worker, with the worker's variables, and
    /// waits for all workers.
    ///
    /// The node's first worker inherits stdin, unless stdin is a terminal. The stdin of the other
    /// workers is empty.
    ///
    /// # Errors
    /// Returns an error if a worker cannot be started or fails. The error describes the first
    /// failure. By then all other workers have exited.
    pub fn run(self, mut command: impl FnMut(&ClusterInfo) -> Command) -> Result<(), LaunchError> {
        self.try_run(|worker| Ok(command(worker)))
    }

    /// Like [`Launch::run`], but `command` may fail. Workers that have already started are then
    /// killed.
    pub(crate) fn try_run<E: From<LaunchError> + Display>(
        self,
        mut command: impl FnMut(&ClusterInfo) -> Result<Command, E>,
    ) -> Result<(), E> {
        let (link, base) = self.link()?;
        let signals = Arc::new(Signals::new().map_err(LaunchError::Signals)?);
        let prepare =
            |attempt| Running::new(self.output_of(attempt), self.grace, self.subreaper, &signals);
        let start = |running: &mut Running, attempt| self.start(running, attempt, &mut command);
        let outcome = attempts::run(&link, base, &signals, prepare, start);
        if self.is_whole_process && outcome.is_err() {
            signals.outlive();
        }
        outcome
    }

    fn start<E: From<LaunchError>>(
        &self,
        running: &mut Running,
        attempt: Attempt,
        command: &mut impl FnMut(&ClusterInfo) -> Result<Command, E>,
    ) -> Result<(), E> {
        // Stays in effect until all workers have been started.
        let _unbound = (!self.keep_binding).then(Unbound::of_this_thread);
        for (index, worker) in self.workers_in(attempt)?.iter().enumerate() {
            let mut started = command(worker)?;
            match &self.variables {
                #[cfg(any(feature = "cli", feature = "testing"))]
                Variables::Simulated(job) => job.apply_to(worker.rank(), &mut started),
                Variables::Exports(set) => {
                    let exports = worker.exports_for(*set).map_err(LaunchError::from)?;
                    if let Some(variables) = set.scheduler().filter(|_| worker.world().is_first()) {
                        let mut scheduler = command(worker)?;
                        exports.apply_to(&mut scheduler);
                        for (name, value) in variables {
                            match value {
                                Some(value) => scheduler.env(name, value),
                                None => scheduler.env_remove(name),
                            };
                        }
                        running.start(
                            Role::Scheduler,
                            worker.rank(),
                            scheduler.stdin(Stdio::null()),
                        )?;
                    }
                    exports.apply_to(&mut started);
                }
            }
            // A terminal stops a background process that reads it.
            if index > 0 || io::stdin().is_terminal() {
                started.stdin(Stdio::null());
            }
            running.start(Role::Rank(worker.rank()), worker.rank(), &mut started)?;
        }
        Ok(())
    }
}
