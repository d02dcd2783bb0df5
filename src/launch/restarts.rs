//! The settings for restarts, and what changes from attempt to attempt.

use std::borrow::Cow;
use std::time::Duration;

use crate::cluster::info::ClusterInfo;
use crate::launch::attempts::Link;
#[cfg(feature = "rendezvous")]
use crate::launch::attempts::{Meeting, meet};
use crate::launch::error::LaunchError;
use crate::launch::output::Place;
use crate::launch::{Launch, port};
use crate::value::port_range::PortRange;
use mpienv_core::seam::{Attempt, InfoSeam as _};

/// How long a node may be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// How long the launches of all nodes may take to arrive.
#[cfg(feature = "rendezvous")]
const ARRIVAL: Duration = Duration::from_secs(600);

/// Whether workers are started again, and how.
#[derive(Debug)]
pub(super) struct Restarts {
    pub(super) most: u32,
    pub(super) silence: Duration,
    /// This process, for a job that has a launch on every node.
    pub(super) node: Option<ClusterInfo>,
    /// The range in which each attempt finds a free port, for a job on this machine alone.
    pub(super) range: Option<PortRange>,
}

impl Default for Restarts {
    fn default() -> Restarts {
        Restarts { most: 0, silence: SILENCE, node: None, range: None }
    }
}

impl Launch {
    /// Starts all workers again after a failure, at most `most` times. The default is 0.
    ///
    /// When a worker fails, the workers of all nodes are stopped, and start again after a pause of
    /// 0.5 s, which doubles from restart to restart up to 30 s. Each attempt has its own keys, and
    /// its own master port unless a port was set. Workers read the number of restarts from
    /// `MPIENV_RESTART_COUNT` and `TORCHELASTIC_RESTART_COUNT`. It is the same on all ranks. Files
    /// of [`Output::LogDir`](crate::Output::LogDir) are in `attempt_N`.
    ///
    /// Nothing restarts after exit codes 2, 126 and 127, nor after SIGINT, SIGTERM, SIGHUP or
    /// SIGUSR1.
    ///
    /// On several nodes, this needs the feature `rendezvous` and the same call on every node. The
    /// nodes stay the same: if one is lost, the job ends. See `mpienv::guide::launch`.
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
    #[must_use]
    pub fn max_restarts(mut self, most: u32) -> Launch {
        self.restarts.most = most;
        self
    }

    /// Sets how long a node may be silent before the job ends, with [`Launch::max_restarts`] on
    /// several nodes.
    ///
    /// The default is 30 s. A node that closes its connection is noticed at once. The first node's
    /// timeout counts.
    #[must_use]
    pub fn node_timeout(mut self, silence: Duration) -> Launch {
        self.restarts.silence = silence.max(Duration::from_millis(100));
        self
    }

    /// Returns the places of the workers in the first attempt.
    pub(crate) fn workers(&self) -> Vec<ClusterInfo> {
        let base = self.own_base();
        self.workers
            .iter()
            .map(|worker| self.in_attempt(worker, Attempt { base, again: 0 }).into_owned())
            .collect()
    }

    /// Returns the link to the other nodes, and how often the platform had restarted the job.
    pub(super) fn link(&self) -> Result<(Link, u32), LaunchError> {
        let (base, most) = (self.own_base(), self.restarts.most);
        let node = self.restarts.node.as_ref();
        let number = node.map_or(0, ClusterInfo::rank);
        let several = node.filter(|info| most > 0 && info.world_size() > 1);
        #[cfg(feature = "rendezvous")]
        if let Some(info) = several {
            return meet(Meeting {
                info,
                base,
                most,
                arrival: ARRIVAL,
                silence: self.restarts.silence,
            });
        }
        #[cfg(not(feature = "rendezvous"))]
        if several.is_some() {
            let error = std::io::Error::other(
                "restarts on several nodes need the feature rendezvous of mpienv",
            );
            return Err(LaunchError::Nodes(error));
        }
        Ok((Link::alone(number, most), base))
    }

    /// Returns the workers of an attempt.
    pub(super) fn workers_in(&self, attempt: Attempt) -> Result<Vec<ClusterInfo>, LaunchError> {
        let free = match self.restarts.range.filter(|_| attempt.again > 0) {
            Some(range) => {
                Some(port::free_port(range, attempt.again).map_err(LaunchError::NoPort)?)
            }
            None => None,
        };
        let place = |worker: &ClusterInfo| {
            let worker = self.in_attempt(worker, attempt);
            match free {
                Some(port) => worker.with_own_port(port, "free when the workers were started"),
                None => worker.into_owned(),
            }
        };
        Ok(self.workers.iter().map(place).collect())
    }

    /// Returns where the workers' output goes in an attempt.
    pub(super) fn output_of(&self, attempt: Attempt) -> Place {
        let folder = (self.restarts.most > 0).then(|| format!("attempt_{}", attempt.number()));
        Place { output: self.output.clone(), attempt: folder }
    }

    fn own_base(&self) -> u32 {
        self.workers.first().and_then(ClusterInfo::restart_count).unwrap_or(0)
    }

    fn in_attempt<'a>(&self, worker: &'a ClusterInfo, attempt: Attempt) -> Cow<'a, ClusterInfo> {
        if self.restarts.most == 0 {
            Cow::Borrowed(worker)
        } else {
            Cow::Owned(worker.in_attempt(attempt))
        }
    }
}
