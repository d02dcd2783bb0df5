//! Ranks joined by MPI, whose library is loaded at run time.
//!
//! Where every rank has a core to itself a sum is one call, which spins: nothing is faster. Elsewhere, and for all else,
//! calls are started and asked for, and yield in between: ranks that spin would take the core from the one they wait
//! for. Either way a thread that watches over the ranks ends the wait when one is lost.
//!
//! MPI does not promise that a sum has the same bits on all ranks, only recommends it. It has them where every rank adds
//! in the same order, or one adds and hands out, as Open MPI and MPICH do between equal machines. [`crate::replicas`]
//! finds out where it does not hold.

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

/// How long an error of MPI waits for the watch to name a rank that is lost; on one machine it takes milliseconds.
const WATCH_FIRST: Duration = Duration::from_secs(1);

/// Ranks joined by MPI: all of a job, or a group split from them.
#[derive(Debug)]
pub struct Mpi {
    // Before the ranks, as they go out of scope in this order: a rank that has said that it ends is not missed.
    watch: Arc<Watch>,
    ranks: Ranks,
    timeout: Duration,
    /// Whether every rank has a core to itself; the same on all.
    spins: bool,
    /// What MPI sums up in where no rank spins; grows to what the largest sum needs, and stays.
    sum: Vec<f32>,
}

/// Who sums and gathers together.
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
    /// The ranks of `world`, which all call this; `timeout` bounds every wait for them.
    pub fn new(world: World, timeout: Duration) -> Result<Mpi, CollectiveError> {
        let rank = world.communicator().rank();
        let socket = if rank.is_first() { Socket::open() } else { None };
        let own = HostInfo::own(socket.as_ref().and_then(Socket::listener_info));
        let own = serde_json::to_vec(&own).unwrap_or_default();
        let infos = world.communicator().all_gather_within(&own, timeout)?;
        // The same program wrote them: what cannot be read is a rank of which nothing is known.
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
            // MPI may see a loss before the watch does, which knows the rank by name and ends this process.
            thread::sleep(WATCH_FIRST);
        }
        Ok(result?)
    }

    /// Starts a call and asks for it.
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
        // A group is ended by whoever has the world.
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
        // All are through: a rank that has said so is not missed, though a launcher that received a stop signal may kill it
        // before MPI lets it go.
        watch.end();
        Ok(world.finalize_within(limit)?)
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        // MPI's own split waits without a limit: first all ranks are known to be there.
        self.barrier()?;
        let group = self.call(|ranks| ranks.split(color, key))?;
        let Mpi { timeout, spins, .. } = *self;
        let watch = Arc::clone(&self.watch);
        Ok(Box::new(Mpi { watch, ranks: Ranks::Group(group), timeout, spins, sum: Vec::new() }))
    }
}
