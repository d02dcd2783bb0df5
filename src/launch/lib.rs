//! Starts the workers of this node, and stops all of them when one fails.
//!
//! This is for what happens between the start of a node's processes and the exit of the last one:
//! their variables, output, signals, restarts and errors. It does not find out the node's place,
//! and it carries none of the workers' data. Programs use it as `mpienv::Launch`. It runs on Linux
//! only.

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(not(target_os = "linux"))]
compile_error!("mpienv starts ranks on Linux only: leave out its features launch and cli");

#[macro_use]
extern crate mpienv_core;

mod affinity;
mod bind;
mod core_share;
mod cores;
mod error;
mod job;
mod log_file;
mod options;
mod output;
mod port;
mod process;
mod report;
mod restart;
mod running;
#[doc(hidden)]
pub mod seam;
mod share;
mod stall;
mod start_error;
mod stop;
mod supervisor;
mod target_file;
mod topology;

pub use bind::Bind;
pub use error::LaunchError;
pub use output::Output;
pub use process::end_with_parent;
pub use report::LaunchReport;
pub use share::Threads;
pub use stall::heartbeat;
pub use start_error::StartError;
pub use supervisor::serve_as_watchdog;

use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use mpienv_core::seam::{Attempt, PlanOptions};
use mpienv_core::{ClusterInfo, Host, LaunchStyle, PortRange, simulate};

use self::stop::Grace;

/// The most simulated ranks that run together. Each rank's variables name the hosts of all ranks.
const MOST_SIMULATED: u32 = 4096;
/// How long workers may take to exit after one has failed, or after a signal. As in torchrun, Slurm
/// and Kubernetes, a signal leaves time for a checkpoint.
const GRACE: Grace =
    Grace { after_failure: Duration::from_secs(5), after_signal: Duration::from_secs(30) };
/// How long a node may be silent.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);

/// The workers of this node, ready to be started.
///
/// Under a launcher with one process on each node, they are this node's part of the job. Without a
/// launcher, they are a whole job on this machine.
///
/// It takes care of the following:
/// - Each worker has its own process group, and no process of the group outlives the job. If the
///   program calls `serve_as_watchdog`, this also holds if this process is killed.
/// - No other descendant of a worker outlives the job either, with few exceptions (see
///   `mpienv::guide::launch` and [`Launch::subreaper`]). Other children of this process are left
///   alone.
/// - A worker that is stopped, for example because it reads the terminal, is reported on stderr.
/// - SIGINT, SIGTERM and SIGHUP are passed on to every worker's process group, SIGUSR1 and SIGUSR2
///   to the workers only. Signals that this process ignores (`nohup`) are not passed on. Workers
///   that ignore SIGINT or SIGTERM are killed: see [`Launch::grace`].
/// - Workers may use every core of the job, even if mpirun bound this process to one; see
///   [`Launch::keep_binding`].
/// - `OMP_NUM_THREADS` and `RAYON_NUM_THREADS`, each if it is not set, are set to the worker's
///   share of these cores, so that the workers together start as many threads as there are cores;
///   see
///   [`Launch::threads`].
///
/// ```
/// use std::process::Command;
/// use std::time::Duration;
/// use mpienv::{ClusterInfo, Launch, Output};
///
/// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
/// let workers = Launch::new(&info, 2)?.output(Output::Prefixed).keep_binding(true);
/// let workers = workers.grace(Duration::from_secs(1));
/// workers.run(|_worker| {
///     let mut command = Command::new("sh");
///     command.args(["-c", "test $WORLD_SIZE = 2"]);
///     command
/// })?;
/// # Ok::<(), mpienv::LaunchError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Launch {
    workers: Vec<ClusterInfo>,
    grace: Grace,
    keep_binding: bool,
    threads: Option<Threads>,
    bind: Bind,
    subreaper: bool,
    /// Whether this process exits once it has reported how the launch ended.
    is_whole_process: bool,
    output: Output,
    variables: Variables,
    /// How often the workers may be started again.
    max_restarts: u32,
    /// How long the job may be silent, if that is limited.
    stall_timeout: Option<Duration>,
    /// How long a node may be silent.
    node_timeout: Duration,
    /// How long the launches of all nodes may take to meet, if they have met before.
    arrival: Option<Duration>,
    /// This process, for a job that has a launch on every node.
    node: Option<ClusterInfo>,
    /// The range in which each attempt finds a free port, for a job on this machine alone, and the
    /// number that selects the first attempt's.
    range: Option<(PortRange, u64)>,
}

/// Where the workers' variables come from.
#[derive(Debug)]
enum Variables {
    /// From the workers' places, by a plan for each.
    Planned(Box<PlanOptions>),
    /// From the simulated launcher.
    Simulated(Box<simulate::Job>),
}

/// Says something on stderr. If stderr is closed, it cannot be said.
fn tell(text: &str) {
    // A single write keeps the line apart from those of the workers.
    let _ = io::stderr().write_all(format!("mpienv: {text}\n").as_bytes());
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
        if info.launch_style() == LaunchStyle::Alone
            && let Some(range) = info.default_port_range()
        {
            // Leaves room for the number of an attempt.
            let (mut own, first) = (info.clone(), process::random() >> 32);
            own.set_own_port(port::free_port(range, first)?, port::WHY);
            let workers = own.workers(per_node)?;
            return Ok(Launch { range: Some((range, first)), ..Launch::with_workers(workers) });
        }
        Ok(Launch { node: Some(info.clone()), ..Launch::with_workers(info.workers(per_node)?) })
    }

    /// Prepares a single worker, with the place of this process.
    ///
    /// Use it for programs that need a scheduler in addition to rank 0's worker: see
    /// [`Launch::variables`]. The binding and the variables of threads stay as they are.
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
    pub fn with_scheduler(info: &ClusterInfo) -> Launch {
        let threads = Some(Threads::Keep);
        Launch { keep_binding: true, threads, ..Launch::with_workers(vec![info.marked()]) }
    }

    fn with_workers(workers: Vec<ClusterInfo>) -> Launch {
        Launch {
            workers,
            grace: GRACE,
            keep_binding: false,
            threads: None,
            bind: Bind::None,
            subreaper: false,
            is_whole_process: false,
            output: Output::default(),
            variables: Variables::Planned(Box::default()),
            max_restarts: 0,
            stall_timeout: None,
            node_timeout: NODE_TIMEOUT,
            arrival: None,
            node: None,
            range: None,
        }
    }

    /// Prepares all ranks of a simulated job on this machine.
    ///
    /// Each rank gets the variables that its launcher would set, and no variables of a real
    /// launcher. `MASTER_ADDR` is 127.0.0.1 and `MASTER_PORT` is a port that is free now, so that
    /// the ranks can meet.
    ///
    /// ```
    /// use std::process::Command;
    /// use mpienv::Launch;
    /// use mpienv::simulate::Job;
    ///
    /// let job = Job::slurm().nodes(2).build()?;
    /// Launch::simulated(&job)?.run(|_rank| {
    ///     let mut command = Command::new("sh");
    ///     command.args(["-c", "test $SLURM_NTASKS = 2 && test $MASTER_ADDR = 127.0.0.1"]);
    ///     command
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the job has more than 4096 ranks, or if no port is free.
    pub fn simulated(job: &simulate::Job) -> Result<Launch, LaunchError> {
        let port = port::free_port(PortRange::default(), process::random())?;
        Launch::simulated_with_master(job.clone().with_master(Host::LOOPBACK, port))
    }

    /// Like [`Launch::simulated`], but the ranks get the job's own master, such as `node0`.
    ///
    /// ```
    /// use std::process::Command;
    /// use mpienv::Launch;
    /// use mpienv::simulate::Job;
    ///
    /// Launch::simulated_with_master(Job::slurm().nodes(2).build()?)?.run(|_rank| {
    ///     let mut command = Command::new("sh");
    ///     command.args(["-c", "test $SLURM_NTASKS = 2 && test -z \"$MASTER_ADDR\""]);
    ///     command
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the job has more than 4096 ranks.
    pub fn simulated_with_master(job: simulate::Job) -> Result<Launch, LaunchError> {
        let (ranks, most) = (job.world_size(), MOST_SIMULATED);
        if ranks > most {
            return Err(LaunchError::TooManyRanks { ranks, most });
        }
        let workers: Result<Vec<ClusterInfo>, _> =
            job.environments().map(ClusterInfo::from_vars).collect();
        let launch = Launch::with_workers(workers?);
        Ok(Launch { keep_binding: true, variables: Variables::Simulated(Box::new(job)), ..launch })
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
        seam::try_run(self, |worker| Ok(command(worker)))
    }

    /// Changes the workers' places to those of an attempt.
    fn enter(&mut self, attempt: Attempt) {
        if self.max_restarts > 0 {
            self.workers.iter_mut().for_each(|worker| worker.enter(attempt));
        }
    }

    /// Returns how often the platform had restarted the job, as this node knows it.
    fn base(&self) -> u32 {
        self.workers.first().and_then(ClusterInfo::restart_count).unwrap_or(0)
    }
}
