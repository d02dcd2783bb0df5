//! Ranks connected by MPI, whose library is loaded at run time.
//!
//! If every rank has its own core, a sum or an all-to-all is a blocking call that spins, which is
//! fastest. Otherwise, and for all other calls, this module starts the call, polls it, and yields
//! between polls: a spinning rank would take the core from the rank that it waits for. In both
//! cases, a watch thread exits the process when a rank is lost.
//!
//! MPI recommends but does not guarantee that a sum has the same bits on all ranks. It does if
//! every rank adds in the same order, or if one rank adds and distributes the result, as Open MPI
//! and MPICH do between identical machines.
//!
//! MPI does not compare the calls of different ranks: calls that differ may hang, or return what no
//! rank has sent. So every call begins with the same small sum, over which the ranks compare what
//! they are about to do.

mod init;
mod lost;
mod watch;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use self::watch::{Socket, Watch};
use super::call::Call;
use super::element::{Numbers, Reduction};
use super::error::{CollectiveError, Result, UNREADABLE};
use super::host_info::{self, HostInfo};
use super::split;
use super::transport::Transport;
use crate::value::rank::Rank;
use mpienv_mpi::{Communicator, Element, MpiError, Request, World};

pub(super) use init::{Initialize, init};
pub(super) use lost::OnLost;

/// How long to hold back an MPI error so that the watch can name the lost rank. On one machine, it
/// takes milliseconds.
const WATCH_FIRST: Duration = Duration::from_secs(1);

/// The most bytes that one MPI call broadcasts; MPI's own limit is below 2^31.
const LONGEST: usize = 1 << 30;

/// Ranks connected by MPI: all ranks of a job, or a group split from them.
#[derive(Debug)]
pub(super) struct Mpi {
    // Dropped before `ranks`, to announce this rank's exit: it must not be reported as lost.
    watch: Arc<Watch>,
    ranks: Ranks,
    /// The number in the job of each rank of the group.
    numbers: Vec<u32>,
    timeout: Duration,
    /// Whether every rank has its own core. The same on all ranks.
    spins: bool,
    /// Buffers for sums that do not spin. They grow to the largest sum.
    sum: Sum,
    /// The library's name and version.
    library: String,
}

/// The buffers that MPI uses during a sum, one for each type. Most programs use only one.
#[derive(Debug, Default)]
struct Sum {
    singles: Vec<f32>,
    doubles: Vec<f64>,
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
    /// Connects the ranks of `world`, which must all call this. `timeout` limits every wait for a
    /// rank.
    ///
    /// # Errors
    /// If the ranks cannot exchange their host information, or the watch cannot start.
    pub(super) fn new(world: World, timeout: Duration, on_lost: OnLost) -> Result<Mpi> {
        let rank = world.communicator().rank();
        let socket = if rank.is_first() { Socket::open() } else { None };
        let own = HostInfo::own(socket.as_ref().and_then(Socket::listener_info));
        let infos = world.communicator().all_gather_within(&own.encode(), timeout)?;
        let infos = HostInfo::decode_all(&infos).map_err(|rank| unreadable(rank as u32))?;
        let spins = host_info::have_a_core_each(&infos);
        let watch =
            Watch::begin(rank, socket, &infos, timeout, on_lost).map_err(CollectiveError::Watch)?;
        let library = format!("{}, {}", world.library().display(), world.version());
        let (watch, ranks) = (Arc::new(watch), Ranks::World(world));
        let numbers = (0..rank.size()).collect();
        Ok(Mpi { watch, ranks, numbers, timeout, spins, sum: Sum::default(), library })
    }

    /// Makes a call under the watch.
    fn call<T>(&self, call: impl FnOnce(&Communicator) -> Result<T, MpiError>) -> Result<T> {
        let result = self.watch.over(|| call(self.ranks.communicator()));
        if let Err(MpiError::Call { .. }) = result {
            // MPI may notice a loss first. Wait for the watch, which names the rank and exits this
            // process.
            thread::sleep(WATCH_FIRST);
        }
        Ok(result?)
    }

    /// Compares this call with those of all other ranks, because MPI does not. Returns once all
    /// ranks have made it.
    ///
    /// Every call begins with this one MPI call, so that MPI itself never sees calls that differ.
    fn agree(&self, call: Call) -> Result<()> {
        let mut prints = call.fingerprints();
        if self.spins {
            self.call(|ranks| ranks.all_reduce_sum(&mut prints))?;
        } else {
            let sum = self.wait(|ranks| ranks.start_all_reduce_sum(prints.to_vec()))?;
            prints.copy_from_slice(&sum);
        }
        // If any two ranks differ, no rank's fingerprints are the mean of all, so that all ranks go
        // on here. The exception are three or more calls whose fingerprints happen to have this
        // mean, one case in 2^64.
        let size = f64::from(self.rank().size());
        if prints == call.fingerprints().map(|print| size * print) {
            Ok(())
        } else {
            self.name_difference(call)
        }
    }

    /// Exchanges whole calls, which tell who has made another one.
    fn name_difference(&self, call: Call) -> Result<()> {
        let own = self.numbers[self.rank().index() as usize];
        let all = self.wait(|ranks| ranks.start_all_gather(&call.described()))?;
        let all = all.as_chunks().0.iter().map(|described| Call::from_described(*described));
        match self.numbers.iter().zip(all).find(|(_, found)| *found != Some(call)) {
            Some((&rank, Some(found))) => {
                Err(CollectiveError::different_calls(rank, found, own, call))
            }
            Some((&rank, None)) => Err(unreadable(rank)),
            None => Ok(()),
        }
    }

    /// Starts a call and polls it until it is done.
    fn wait<B: Default>(
        &self,
        start: impl FnOnce(&Communicator) -> Result<Request<B>, MpiError>,
    ) -> Result<B> {
        self.call(|ranks| start(ranks)?.wait_within(watch::limit(self.timeout)))
    }
}

impl From<MpiError> for CollectiveError {
    fn from(error: MpiError) -> CollectiveError {
        match error {
            MpiError::TimedOut { limit, .. } => {
                CollectiveError::SomeTimedOut { seconds: limit.as_secs_f64() }
            }
            MpiError::Forked { initialized, .. } => {
                CollectiveError::Forked { connected: initialized }
            }
            error => CollectiveError::Mpi(error),
        }
    }
}

/// The error for a rank whose bytes no rank of this version sends.
fn unreadable(rank: u32) -> CollectiveError {
    CollectiveError::Lost { rank, host: "its host".to_owned(), reason: UNREADABLE.to_owned() }
}

/// Sums `values` over all ranks, in place. Returns the buffer for the next sum.
fn sum<T: Element>(mpi: &Mpi, values: &mut [T], mut buffer: Vec<T>) -> Result<Vec<T>> {
    if mpi.spins {
        mpi.call(|ranks| ranks.all_reduce_sum(values))?;
        return Ok(buffer);
    }
    buffer.clear();
    buffer.extend_from_slice(values);
    let sum = mpi.wait(|ranks| ranks.start_all_reduce_sum(buffer))?;
    values.copy_from_slice(&sum);
    Ok(sum)
}

/// Replaces this rank's part of `values` with its sum over all ranks.
fn sum_part<T: Element>(mpi: &Mpi, values: &mut [T]) -> Result<()> {
    let rank = mpi.rank();
    let length = values.len() / rank.size() as usize;
    let start = length * rank.index() as usize;
    if mpi.spins {
        mpi.call(|ranks| ranks.reduce_scatter_sum(values))?;
        values.copy_within(..length, start);
        return Ok(());
    }
    let sum = mpi.wait(|ranks| ranks.start_reduce_scatter_sum(values.to_vec()))?;
    values[start..start + length].copy_from_slice(&sum[..length]);
    Ok(())
}

impl Mpi {
    /// Every rank gets the bytes of every rank, as part of a call on which all ranks agree.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.call(|ranks| ranks.all_gather_within(bytes, watch::limit(self.timeout)))
    }

    /// Reduces the numbers of all ranks, which have agreed on the call.
    fn reduce(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        if by == Reduction::Sum {
            if let Some(values) = numbers.as_mut::<f32>() {
                let buffer = std::mem::take(&mut self.sum.singles);
                self.sum.singles = sum(self, values, buffer)?;
                return Ok(());
            }
            if let Some(values) = numbers.as_mut::<f64>() {
                let buffer = std::mem::take(&mut self.sum.doubles);
                self.sum.doubles = sum(self, values, buffer)?;
                return Ok(());
            }
        }
        // MPI does not define what the smallest number is if one is NaN, nor that integers wrap
        // around. So every rank gets all numbers and reduces them itself.
        let all = self.gather(numbers.bytes())?;
        numbers.reduce(by, all.iter().map(Vec::as_slice));
        Ok(())
    }
}

impl Transport for Mpi {
    fn rank(&self) -> Rank {
        self.ranks.communicator().rank()
    }

    fn describe(&self) -> String {
        format!("MPI ({})", self.library)
    }

    fn all_reduce(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.agree(Call::all_reduce(&numbers, by))?;
        self.reduce(numbers, by)
    }

    fn reduce_scatter(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.agree(Call::reduce_scatter(&numbers, by))?;
        let is_even = numbers.count().is_multiple_of(self.rank().size() as usize);
        if by == Reduction::Sum && is_even {
            if let Some(values) = numbers.as_mut::<f32>() {
                return sum_part(self, values);
            }
            if let Some(values) = numbers.as_mut::<f64>() {
                return sum_part(self, values);
            }
        }
        self.reduce(numbers, by)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let length = parts[self.rank().index() as usize].len();
        self.agree(Call::all_to_all(length))?;
        let mut bytes = parts.concat();
        if self.spins {
            self.call(|ranks| ranks.all_to_all(&mut bytes))?;
        } else {
            bytes = self.wait(|ranks| ranks.start_all_to_all(bytes))?;
        }
        Ok((0..parts.len())
            .map(|rank| bytes[rank * length..(rank + 1) * length].to_vec())
            .collect())
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.agree(Call::ALL_GATHER)?;
        self.gather(bytes)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()> {
        self.agree(Call::broadcast(root))?;
        let length = (bytes.len() as u64).to_le_bytes().to_vec();
        let length = self.wait(|ranks| ranks.start_broadcast(length, root))?;
        let Some(length) = length.first_chunk().copied().map(u64::from_le_bytes) else {
            return Err(unreadable(self.numbers[root as usize]));
        };
        // Only the root's bytes and length matter.
        let fits =
            |length: &usize| bytes.try_reserve_exact(length.saturating_sub(bytes.len())).is_ok();
        let Some(room) = usize::try_from(length).ok().filter(fits) else {
            let (rank, host) = (self.numbers[root as usize], "its host".to_owned());
            let reason = format!("it announced {length} bytes, more than this rank can allocate");
            return Err(CollectiveError::Lost { rank, host, reason });
        };
        bytes.resize(room, 0);
        if bytes.len() <= LONGEST {
            *bytes = self.wait(|ranks| ranks.start_broadcast(std::mem::take(bytes), root))?;
            return Ok(());
        }
        for piece in bytes.chunks_mut(LONGEST) {
            let sent = self.wait(|ranks| ranks.start_broadcast(piece.to_vec(), root))?;
            piece.copy_from_slice(&sent);
        }
        Ok(())
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        // Every rank hears from all others.
        self.agree(call)
    }

    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        if self.watch.is_here() {
            self.watch.end();
            last_words();
            self.ranks.communicator().abort(code.into())
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Only the world is finalized.
        if let Ranks::Group(_) = self.ranks {
            return Ok(());
        }
        // Every rank hears from all others.
        self.agree(Call::CLOSE)?;
        let Mpi { watch, ranks, timeout, .. } = *self;
        let Ranks::World(world) = ranks else { return Ok(()) };
        // Announce the exit before finalizing: after a stop signal, a launcher may kill a rank
        // during MPI_Finalize.
        watch.end();
        Ok(world.finalize_within(watch::limit(timeout))?)
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        // MPI_Comm_split has no time limit, so wait for all ranks first.
        self.agree(Call::SPLIT)?;
        let all = self.gather(&split::request(color, key))?;
        let part = split::part(self.rank().index() as usize, &all);
        let part = part.map_err(|rank| unreadable(self.numbers[rank]))?;
        let numbers = part.members.iter().map(|&rank| self.numbers[rank]).collect();
        // MPI's colors and keys are below 2^31, so name the new group by its first rank.
        let first = part.members[0] as u32;
        let group = self.call(|ranks| ranks.split(first, part.rank.index()))?;
        let Mpi { timeout, spins, .. } = *self;
        let (watch, library, ranks) =
            (Arc::clone(&self.watch), self.library.clone(), Ranks::Group(group));
        Ok(Box::new(Mpi { watch, ranks, numbers, timeout, spins, sum: Sum::default(), library }))
    }
}
