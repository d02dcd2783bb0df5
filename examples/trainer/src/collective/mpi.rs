//! Ranks joined by MPI, whose library is loaded at run time.
//!
//! Calls are started and waited for within a limit: MPI's own waits would last for ever where a rank is lost.
//!
//! MPI does not promise that a sum has the same bits on all ranks, only recommends it. It has them where every rank adds
//! in the same order, or one adds and hands out, as Open MPI and MPICH do between equal machines. [`crate::replicas`]
//! finds out where it does not hold.

use std::mem;
use std::time::Duration;

use mpienv::Rank;
use mpienv::mpi::{Communicator, Error, Request, World};

use super::{Collective, CollectiveError};

/// Ranks joined by MPI: all of a job, or a group split from them.
#[derive(Debug)]
pub struct Mpi {
    ranks: Ranks,
    timeout: Duration,
    /// What MPI sums up in; grows to what the largest sum needs, and stays.
    sum: Vec<f32>,
}

/// Who sums and gathers together.
#[derive(Debug)]
enum Ranks {
    World(World),
    Group(Communicator),
}

impl Mpi {
    /// The ranks of `world`; `timeout` bounds every wait for them.
    #[must_use]
    pub fn new(world: World, timeout: Duration) -> Mpi {
        Mpi { ranks: Ranks::World(world), timeout, sum: Vec::new() }
    }

    fn communicator(&self) -> &Communicator {
        match &self.ranks {
            Ranks::World(world) => world,
            Ranks::Group(group) => group,
        }
    }

    fn wait<B: Default>(&self, request: Result<Request<B>, Error>) -> Result<B, CollectiveError> {
        Ok(request?.wait_within(self.timeout)?)
    }
}

impl From<Error> for CollectiveError {
    fn from(error: Error) -> CollectiveError {
        match error {
            Error::TimedOut { limit, .. } => CollectiveError::SomeTimedOut { seconds: limit.as_secs_f64() },
            error => CollectiveError::Mpi(error),
        }
    }
}

impl Collective for Mpi {
    fn rank(&self) -> Rank {
        self.communicator().rank()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let mut sum = mem::take(&mut self.sum);
        sum.clear();
        sum.extend_from_slice(values);
        self.sum = self.wait(self.communicator().start_all_reduce_sum(sum))?;
        values.copy_from_slice(&self.sum);
        Ok(())
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(self.communicator().all_gather_within(bytes, self.timeout)?)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        let length = (bytes.len() as u64).to_le_bytes().to_vec();
        let length = self.wait(self.communicator().start_broadcast(length, root))?;
        let length = length.as_slice().try_into().map_or(0, u64::from_le_bytes);
        // Only the root's bytes and length count.
        bytes.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
        *bytes = self.wait(self.communicator().start_broadcast(mem::take(bytes), root))?;
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.wait(self.communicator().start_barrier())
    }

    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        // A group is ended by whoever has the world.
        if let Ranks::World(world) = &self.ranks {
            last_words();
            world.abort(code.into())
        }
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        // MPI's own split waits without a limit: first all ranks are known to be there.
        self.barrier()?;
        let group = self.communicator().split(color, key)?;
        Ok(Box::new(Mpi { ranks: Ranks::Group(group), timeout: self.timeout, sum: Vec::new() }))
    }
}
