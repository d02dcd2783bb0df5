//! Starts the workers of this node, and ends all of them when one fails.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::info::ClusterInfo;
use crate::placement::LaunchStyle;
use crate::port::Port;

/// How often the workers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The lowest port that a job on this machine alone gets.
const LOWEST_PORT: u32 = 20_000;
/// How many there are from the lowest on.
const PORTS: u32 = 10_000;
/// How long the others may take to end by themselves once one has failed.
const GRACE: Duration = Duration::from_secs(5);

/// The workers of this node, ready to be started.
///
/// Under a launcher with one process on each node these are this node's part of the job; with no
/// launcher they are a whole job on this machine.
///
/// ```
/// use std::process::Command;
/// use mpienv::{ClusterInfo, Launch};
///
/// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
/// Launch::new(&info, 2)?.run(|_worker| {
///     let mut command = Command::new("sh");
///     command.args(["-c", "test $WORLD_SIZE = 2"]);
///     command
/// })?;
/// # Ok::<(), mpienv::LaunchError>(())
/// ```
#[derive(Debug)]
pub struct Launch {
    workers: Vec<ClusterInfo>,
    grace: Duration,
}

impl Launch {
    /// `per_node` workers on this node.
    ///
    /// With no launcher, and where nobody asks for a master port, the job gets a port that is free
    /// now, so that several jobs fit on one machine.
    ///
    /// # Errors
    /// As [`ClusterInfo::workers`]; or when no port is free.
    pub fn new(info: &ClusterInfo, per_node: u32) -> Result<Launch, LaunchError> {
        let mut info = info.clone();
        if info.launch_style == LaunchStyle::Alone && info.port_is_default {
            info.master_port = free_port().map_err(LaunchError::NoPort)?;
            info.provenance.master_port = "free when the workers were started".into();
        }
        Ok(Launch { workers: info.workers(per_node)?, grace: GRACE })
    }

    /// How long the other workers may take to end by themselves once one has failed; 5 s by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Launch {
        self.grace = grace;
        self
    }

    /// Starts each worker as `command` says, with its own variables set, and waits for all.
    ///
    /// # Errors
    /// When a worker cannot be started or fails: the first one's is told, after all others ended.
    pub fn run(self, mut command: impl FnMut(&ClusterInfo) -> Command) -> Result<(), LaunchError> {
        let mut running = Running(Vec::new());
        for worker in &self.workers {
            let rank = worker.rank();
            let mut command = command(worker);
            worker.exports()?.apply_to(&mut command);
            let child = command.spawn().map_err(|error| LaunchError::Start { rank, error })?;
            running.0.push((rank, child));
        }
        while !running.0.is_empty() {
            if let Some((rank, status)) = running.first_failure()? {
                running.end_within(self.grace)?;
                return Err(LaunchError::Failed { rank, status });
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

/// Workers that have not ended; whoever drops them ends them.
struct Running(Vec<(u32, Child)>);

impl Running {
    /// Takes out the workers that have ended, up to the first that failed.
    fn first_failure(&mut self) -> Result<Option<(u32, ExitStatus)>, LaunchError> {
        let mut index = 0;
        while let Some((rank, child)) = self.0.get_mut(index) {
            let rank = *rank;
            match child.try_wait().map_err(|error| LaunchError::Wait { rank, error })? {
                None => index += 1,
                Some(status) => {
                    self.0.remove(index);
                    if !status.success() {
                        return Ok(Some((rank, status)));
                    }
                }
            }
        }
        Ok(None)
    }

    fn end_within(&mut self, grace: Duration) -> Result<(), LaunchError> {
        let deadline = Instant::now() + grace;
        while !self.0.is_empty() && Instant::now() < deadline {
            // A second failure is the first one's consequence.
            self.first_failure()?;
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            // One that has just ended cannot be killed, and need not be.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that nobody listens on now, 20000 to 29999.
///
/// Below the ephemeral ports, so that no outgoing connection takes it before rank 0 listens; from
/// another start in every process, so that jobs started at once do not choose the same.
fn free_port() -> io::Result<Port> {
    let start = std::process::id();
    let numbers = (0..PORTS).map(|step| LOWEST_PORT + start.wrapping_mul(7).wrapping_add(step) % PORTS);
    let mut ports = numbers.filter_map(|number| u16::try_from(number).ok().and_then(Port::new));
    let free = ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port.get())).is_ok());
    free.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}

/// Why workers were not started, or did not all succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The environment has no place for workers.
    #[error(transparent)]
    Environment(#[from] Error),
    /// No port for rank 0 is free on this machine.
    #[error("no port is free for rank 0: {0}; set MASTER_PORT")]
    NoPort(io::Error),
    /// A worker's program could not be started.
    #[error("rank {rank} cannot be started: {error}; see that the program is there and executable on this host")]
    Start {
        /// The worker's rank.
        rank: u32,
        /// What the system says.
        error: io::Error,
    },
    /// A worker could not be waited for.
    #[error("rank {rank} cannot be waited for: {error}; see that nothing else reaps this process's children")]
    Wait {
        /// The worker's rank.
        rank: u32,
        /// What the system says.
        error: io::Error,
    },
    /// A worker failed; it was the first.
    #[error("rank {rank} ended with {status}; what it printed says why")]
    Failed {
        /// The worker's rank.
        rank: u32,
        /// Its exit status.
        status: ExitStatus,
    },
}
