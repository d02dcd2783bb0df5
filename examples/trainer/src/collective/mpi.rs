//! Ranks joined by MPI, whose library is loaded at run time.
//!
//! If every rank has its own core, a sum is one blocking call that spins, which is fastest. Otherwise, and for all other
//! calls, a call is started and polled, and yields in between: a spinning rank would take the core from the rank that it
//! waits for. In both cases a watch thread ends the wait when a rank is lost.
//!
//! MPI recommends but does not promise that a sum has the same bits on all ranks. It has if every rank adds in the same
//! order, or one rank adds and distributes, as Open MPI and MPICH do between equal machines. [`crate::replicas`] detects
//! differences.

mod host_info;
mod watch;

use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mpienv::Rank;
use mpienv::mpi::{Communicator, MpiError, Request, World};

use self::host_info::HostInfo;
use self::watch::{Socket, Watch};
use super::{Collective, CollectiveError};

/// How long an MPI error waits for the watch to name the lost rank. On one machine that takes milliseconds.
const WATCH_FIRST: Duration = Duration::from_secs(1);

/// Ranks joined by MPI: all of a job, or a group split from them.
#[derive(Debug)]
pub struct Mpi {
    // Dropped before the ranks: a rank that has announced its exit is not reported as lost.
    watch: Arc<Watch>,
    ranks: Ranks,
    timeout: Duration,
    /// Whether every rank has its own core; the same on all ranks.
    spins: bool,
    /// Buffer for sums that do not spin. It grows to the largest sum.
    sum: Vec<f32>,
}

#[derive(Debug)]
enum Ranks {
    World(World),
    Group(Communicator),
}

impl Ranks {
    fn communicator(&self) -> &Communicator {
        match self {
            Ranks::World(world) => world.communicator(),
            Ranks::Group(group) => group,
        }
    }
}

impl Mpi {
    /// Joins the ranks of `world`, which all call this. `timeout` limits every wait for them.
    ///
    /// # Errors
    /// If the ranks cannot exchange their hosts, or the watch cannot start.
    pub fn new(world: World, timeout: Duration) -> Result<Mpi, CollectiveError> {
        let rank = world.communicator().rank();
        let socket = if rank.is_first() { Socket::open() } else { None };
        let own = HostInfo::own(socket.as_ref().and_then(Socket::listener_info));
        let own = serde_json::to_vec(&own).unwrap_or_default();
        let infos = world.communicator().all_gather_within(&own, timeout)?;
        // The same program wrote them. If one cannot be parsed, nothing is known about that rank.
        let infos: Vec<HostInfo> =
            infos.iter().map(|host_info| serde_json::from_slice(host_info).unwrap_or_default()).collect();
        let spins = host_info::have_a_core_each(&infos);
        let watch = Watch::begin(rank, socket, &infos, timeout).map_err(CollectiveError::Watch)?;
        Ok(Mpi { watch: Arc::new(watch), ranks: Ranks::World(world), timeout, spins, sum: Vec::new() })
    }

    /// Makes a call under the watch.
    fn call<T>(&self, call: impl FnOnce(&Communicator) -> Result<T, MpiError>) -> Result<T, CollectiveError> {
        let result = self.watch.over(|| call(self.ranks.communicator()));
        if let Err(MpiError::Call { .. }) = result {
            // MPI may notice a loss before the watch, which knows the rank and exits this process.
            thread::sleep(WATCH_FIRST);
        }
        Ok(result?)
    }

    /// Starts a call and polls it.
    fn wait<B: Default>(
        &self,
        start: impl FnOnce(&Communicator) -> Result<Request<B>, MpiError>,
    ) -> Result<B, CollectiveError> {
        self.call(|ranks| start(ranks)?.wait_within(watch::limit(self.timeout)))
    }
}

impl From<MpiError> for CollectiveError {
    fn from(error: MpiError) -> CollectiveError {
        match error {
            MpiError::TimedOut { limit, .. } => CollectiveError::SomeTimedOut { seconds: limit.as_secs_f64() },
            error => CollectiveError::Mpi(error),
        }
    }
}

impl Collective for Mpi {
    fn rank(&self) -> Rank {
        self.ranks.communicator().rank()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        if self.spins {
            return self.call(|ranks| ranks.all_reduce_sum(values));
        }
        let mut sum = mem::take(&mut self.sum);
        sum.clear();
        sum.extend_from_slice(values);
        self.sum = self.wait(|ranks| ranks.start_all_reduce_sum(sum))?;
        values.copy_from_slice(&self.sum);
        Ok(())
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.call(|ranks| ranks.all_gather_within(bytes, watch::limit(self.timeout)))
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        let length = (bytes.len() as u64).to_le_bytes().to_vec();
        let length = self.wait(|ranks| ranks.start_broadcast(length, root))?;
        let length = length.as_slice().try_into().map_or(0, u64::from_le_bytes);
        // Only the root's bytes and length count.
        bytes.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
        *bytes = self.wait(|ranks| ranks.start_broadcast(mem::take(bytes), root))?;
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.wait(Communicator::start_barrier)
    }

    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        // Only the world can abort the job.
        if let Ranks::World(world) = &self.ranks {
            self.watch.end();
            last_words();
            world.abort(code.into())
        }
    }

    fn end(self: Box<Self>) -> Result<(), CollectiveError> {
        let Mpi { watch, ranks, timeout, .. } = *self;
        // A group ends with the world.
        let Ranks::World(world) = ranks else { return Ok(()) };
        let limit = watch::limit(timeout);
        watch.over(|| world.communicator().start_barrier()?.wait_within(limit))?;
        // All ranks are done and say so: a launcher that received a stop signal may kill one before MPI finalizes it.
        watch.end();
        Ok(world.finalize_within(limit)?)
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        // MPI's own split waits without a limit, so wait for all ranks first.
        self.barrier()?;
        let group = self.call(|ranks| ranks.split(color, key))?;
        let Mpi { timeout, spins, .. } = *self;
        let watch = Arc::clone(&self.watch);
        Ok(Box::new(Mpi { watch, ranks: Ranks::Group(group), timeout, spins, sum: Vec::new() }))
    }
}
