//! What a program may set of a launch: each setter of [`Launch`].

use std::time::Duration;

use crate::bind::Bind;
use crate::output::Output;
use crate::share::Threads;
use crate::stop::{Grace, LONGEST};
use crate::{Launch, Variables};
use mpienv_core::Target;
use mpienv_core::seam::{PlanOptions, Reader};

/// The shortest silence that counts as a stall.
const SHORTEST_STALL: Duration = Duration::from_millis(100);

impl Launch {
    /// Sets how long workers may take to exit. Workers that remain after this time are killed.
    ///
    /// The time begins when a worker fails (5 s by default; the others first
    /// get SIGTERM) or when this process passes SIGINT or SIGTERM on (30 s by default). A
    /// second SIGINT or SIGTERM ends it at once. A year is the most.
    pub fn grace(self, grace: Duration) -> Launch {
        let grace = grace.min(LONGEST);
        Launch { grace: Grace { after_failure: grace, after_signal: grace }, ..self }
    }

    /// Sets whether the workers stay on the cores to which this process is bound.
    ///
    /// By default they do not: they may use the cores of the programs that started this one, up to
    /// the mpirun that bound it, or to the shell in which taskset did. They never leave the cores
    /// that a batch system, such as Slurm, gave this process.
    pub fn keep_binding(self, keep_binding: bool) -> Launch {
        Launch { keep_binding, ..self }
    }

    /// Sets how many threads each worker's libraries start, by `OMP_NUM_THREADS` and
    /// `RAYON_NUM_THREADS`.
    ///
    /// By default, each of the two variables that is not set gets the worker's share of the node's
    /// cores, as [`Threads::Share`]: the cores that the workers may use, and that the cgroup's
    /// `cpu.max` grants, divided by the number of workers on this node, at least 1. Hardware
    /// threads of one core count as one. Simulated jobs keep the variables of their launchers.
    ///
    /// The cores are those of the workers' affinity mask.
    pub fn threads(self, threads: Threads) -> Launch {
        Launch { threads: Some(threads), ..self }
    }

    /// Sets which cores each worker is bound to. The default is none: workers may use all cores of
    /// the job.
    ///
    /// The cores are divided among the workers of this node, by what Linux tells in `/sys` about
    /// its cores, NUMA nodes and PCI devices. If there are more workers than cores, workers share
    /// cores, which is reported on stderr. With [`Launch::keep_binding`], only the cores to which
    /// this process is bound are divided. Memory is not bound: Linux takes it from the NUMA node of
    /// the core that first writes to it.
    ///
    /// [`Launch::run`] fails if [`Bind::Device`] is asked for and a worker's GPU or its NUMA node is
    /// not known.
    ///
    /// ```no_run
    /// use std::process::Command;
    /// use mpienv::{Bind, ClusterInfo, Launch};
    ///
    /// let info = ClusterInfo::from_env()?;
    /// Launch::new(&info, 2)?.bind(Bind::Core).run(|_worker| Command::new("./simulate"))?;
    /// # Ok::<(), mpienv::LaunchError>(())
    /// ```
    pub fn bind(self, bind: Bind) -> Launch {
        Launch { bind, ..self }
    }

    /// Sets whether this process adopts the orphaned descendants of workers
    /// (`PR_SET_CHILD_SUBREAPER`).
    ///
    /// It applies while the workers run. This process then
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
    /// Launch::new(&info, 1)?.subreaper(true).run(|_worker| {
    ///     let mut command = Command::new("sh");
    ///     // It loses its parent, and is killed with the worker.
    ///     command.args(["-c", "(sleep 1 &)"]);
    ///     command
    /// })?;
    /// # Ok::<(), mpienv::LaunchError>(())
    /// ```
    pub fn subreaper(self, subreaper: bool) -> Launch {
        Launch { subreaper, ..self }
    }

    /// Sets where the workers' stdout and stderr go. The default is this process's own.
    pub fn output(self, output: Output) -> Launch {
        Launch { output, ..self }
    }

    /// Sets which variables the workers get: see
    /// [`ClusterInfo::exports_for`](mpienv_core::ClusterInfo::exports_for). The default is
    /// PyTorch's.
    ///
    /// If the programs need a scheduler, rank 0's command is started a second time as the
    /// scheduler. After all workers have exited, the scheduler may take up to [`Launch::grace`] to
    /// exit by itself.
    pub fn variables(self, set: Target) -> Launch {
        let reader = Reader::Program(set);
        let options = match self.variables {
            Variables::Planned(options) => PlanOptions { reader, ..*options },
            Variables::Simulated(_) => PlanOptions { reader, ..PlanOptions::default() },
        };
        Launch { variables: Variables::Planned(Box::new(options)), ..self }
    }

    /// Starts all workers again after a failure, at most `max_restarts` times. The default is 0.
    ///
    /// When a worker fails, the workers of all nodes are stopped, and start again after a pause of
    /// 0.5 s, which doubles from restart to restart up to 30 s. Each attempt has its own keys, and
    /// its own master port unless a port was set. Workers read the number of restarts from
    /// `MPIENV_RESTART_COUNT` and `TORCHELASTIC_RESTART_COUNT`. It is the same on all ranks. Files
    /// of [`Output::LogDir`] are in `attempt_N`.
    ///
    /// `mpienv::guide::launch` lists the exit codes and signals after which nothing restarts.
    ///
    /// On several nodes, this needs the same call on every node. The nodes stay the same: if one is
    /// lost, the job ends.
    ///
    /// ```
    /// use std::process::Command;
    /// use std::time::Duration;
    /// use mpienv::{ClusterInfo, Launch};
    ///
    /// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
    /// Launch::new(&info, 2)?.max_restarts(3).node_timeout(Duration::from_secs(60)).run(|_worker| {
    ///     let mut command = Command::new("sh");
    ///     // Fails in the first attempt.
    ///     command.args(["-c", "test $MPIENV_RESTART_COUNT = 1"]);
    ///     command
    /// })?;
    /// # Ok::<(), mpienv::LaunchError>(())
    /// ```
    pub fn max_restarts(self, max_restarts: u32) -> Launch {
        Launch { max_restarts, ..self }
    }

    /// Ends a job that hangs: one none of whose ranks has been active for this time.
    ///
    /// A rank is active when it writes to stdout or stderr, when it touches the file that
    /// `MPIENV_HEARTBEAT_FILE` names in its environment (see [`heartbeat`](crate::heartbeat())),
    /// and when it starts or exits. Of [`Output::Inherited`] nothing is seen: then only the file
    /// counts.
    ///
    /// Before anything is stopped, the first node reports on stderr what every rank is doing, and
    /// names those that differ from the others. With [`Output::LogDir`],
    /// the file `stall.json` in the folder has the same. The job then fails with
    /// [`LaunchError::Stalled`](crate::LaunchError::Stalled); [`Launch::max_restarts`] applies.
    /// `mpienv::guide::launch` describes the report.
    ///
    /// On several nodes, this needs the same call on every node.
    ///
    /// ```
    /// use std::process::Command;
    /// use std::time::Duration;
    /// use mpienv::{ClusterInfo, ErrorKind, Launch, LaunchError, Output};
    ///
    /// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
    /// let launch = Launch::new(&info, 1)?.output(Output::Prefixed);
    /// let error = launch.stall_timeout(Duration::from_millis(200)).run(|_worker| {
    ///     let mut command = Command::new("sleep");
    ///     command.arg("600");
    ///     command
    /// });
    /// assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    /// # Ok::<(), LaunchError>(())
    /// ```
    pub fn stall_timeout(self, timeout: Duration) -> Launch {
        Launch { stall_timeout: Some(timeout.max(SHORTEST_STALL)), ..self }
    }

    /// Sets how long a node may be silent before the job ends, with [`Launch::max_restarts`] on
    /// several nodes.
    ///
    /// The default is 30 s. A node that closes its connection is noticed at once. All nodes need
    /// the same timeout.
    pub fn node_timeout(self, node_timeout: Duration) -> Launch {
        Launch { node_timeout: node_timeout.max(Duration::from_millis(100)), ..self }
    }
}
