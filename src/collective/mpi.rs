//! Ranks connected by MPI, whose library is loaded at run time.
//!
//! If every rank has its own core, a call of all ranks is a blocking call that spins, which is
//! fastest. Otherwise, between two ranks, and for parts of any lengths, this module starts the call,
//! polls it, and yields between polls: a spinning rank would take the core from the rank that it
//! waits for. In both cases, a watch thread exits the process when a rank is lost.
//!
//! MPI recommends but does not guarantee that a sum has the same bits on all ranks. It does if
//! every rank adds in the same order, or if one rank adds and distributes the result, as Open MPI
//! and MPICH do between identical machines.
//!
//! MPI does not compare the calls of different ranks: calls that differ may hang, or return what no
//! rank has sent. So every call begins with the same small sum, over which the ranks compare what
//! they are about to do.

mod agree;
mod init;
mod moving;
mod sum;
mod watch;

use std::io::{self, Write as _};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use self::moving::{MOVED, others};
use self::sum::Sum;
use self::watch::{FIRST_WORD, LAUNCHER_FIRST, Socket, Watch};
use super::builder::Timeouts;
use super::call::{Call, Message, Reduce};
use super::cancel::{Cancel, Canceller};
use super::error::{CollectiveError, PANICKED, Result, UNREADABLE, aborted};
use super::host_info::{self, HostInfo};
use super::numbers::{Numbers, Scratch};
use super::transport::{Part, Received, Sent, Transport};
use crate::builder::OnLost;
use crate::value::rank::Rank;
use mpienv_mpi::{Communicator, MpiError, Request, World};

pub(super) use init::{connect, is_named};
pub(super) use mpienv_mpi::Hints;

/// How long to hold back an MPI error so that the watch can name the lost rank. On one machine, it
/// takes milliseconds, after what the watch waits for the launcher.
const WATCH_FIRST: Duration = LAUNCHER_FIRST.saturating_add(Duration::from_secs(1));

/// The most bytes of a rank that one MPI call moves in blocking calls and sums. A call that takes
/// longer than the timeout ends the job, although its bytes move. MPI's own limit is below 2^31.
const PIECE: usize = 64 << 20;
/// The tag of the values that two ranks pass. [`agree`] and [`moving`] have others.
const PASSED: u16 = 2;

/// Ranks connected by MPI: all ranks of a job, or a group split from them.
#[derive(Debug)]
pub(super) struct Mpi {
    // Dropped before `ranks`, to announce this rank's exit: it must not be reported as lost.
    job: Arc<Job>,
    ranks: Ranks,
    /// The number in the job of each rank of the group.
    numbers: Arc<[u32]>,
    /// Buffers for sums that do not spin. They grow to the largest sum.
    sum: Sum,
    /// Buffers for pieces of other calls.
    rooms: Vec<Vec<u8>>,
}

/// What all groups of a rank share.
#[derive(Debug)]
struct Job {
    watch: Watch,
    timeout: Duration,
    /// Whether every rank has its own core. The same on all ranks.
    spins: bool,
    /// The library's name and version.
    library: String,
    cancel: Arc<Cancel>,
    /// The first difference between the ranks' calls.
    failed: OnceLock<Arc<CollectiveError>>,
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
    /// Connects the ranks of `world`, which must all call this.
    ///
    /// # Errors
    /// If the ranks cannot exchange their host information, or the watch cannot start.
    pub(super) fn new(world: World, timeouts: Timeouts, on_lost: OnLost) -> Result<Mpi> {
        let rank = world.communicator().rank();
        let socket = if rank.is_first() { Socket::open() } else { None };
        let own = HostInfo::own(socket.as_ref().and_then(Socket::listener_info));
        let infos = world.communicator().all_gather_within(&own.encode(), timeouts.connecting)?;
        let infos = HostInfo::decode_all(&infos).map_err(|rank| lost(rank as u32, UNREADABLE))?;
        let spins = host_info::have_a_core_each(&infos);
        let timeout = timeouts.calls;
        let watch =
            Watch::begin(rank, socket, &infos, timeout, on_lost).map_err(CollectiveError::Watch)?;
        let library = format!("{}, {}", world.library().display(), world.version());
        let (cancel, failed) = (Arc::default(), OnceLock::new());
        let job = Arc::new(Job { watch, timeout, spins, library, cancel, failed });
        // Dropping the group ends rank 0's watch, to which another rank may still connect.
        world.communicator().start_barrier()?.wait_within(timeouts.connecting + FIRST_WORD)?;
        Ok(Mpi::of(job, Ranks::World(world), (0..rank.size()).collect()))
    }

    fn of(job: Arc<Job>, ranks: Ranks, numbers: Arc<[u32]>) -> Mpi {
        Mpi { job, ranks, numbers, sum: Sum::default(), rooms: Vec::new() }
    }

    /// This rank's number in the job.
    fn own_number(&self) -> u32 {
        self.numbers[self.rank().index() as usize]
    }

    /// Makes a call under the watch. MPI makes one call at a time: two threads whose calls are in
    /// another order on another rank would wait forever.
    fn call<T>(&self, call: impl FnOnce(&Communicator) -> Result<T, MpiError>) -> Result<T> {
        let failed = || self.job.failed.get().map(Arc::clone).map(CollectiveError::Earlier);
        self.job
            .cancel
            .check()
            .map_err(|canceled| failed().unwrap_or_else(|| self.end(canceled)))?;
        let called = self.job.watch.over(|| {
            let result = call(self.ranks.communicator());
            if let Err(MpiError::Call { .. }) = result {
                // MPI may notice a loss first. Wait for the watch, which names the rank and exits
                // this process.
                thread::sleep(WATCH_FIRST);
            }
            result
        });
        let at_once = || {
            let rank = self.own_number();
            let error = self.fail(|| CollectiveError::CallsAtOnce { rank });
            // The thread that is in a call may wait for a rank whose own thread is refused.
            Canceller(self.cancel()).cancel();
            error
        };
        Ok(called.ok_or_else(at_once)??)
    }

    /// Starts a call and polls it until it is done.
    fn wait<B: Default>(
        &self,
        start: impl FnOnce(&Communicator) -> Result<Request<B>, MpiError>,
    ) -> Result<B> {
        let limit = watch::limit(self.job.timeout);
        let done =
            self.call(|ranks| start(ranks)?.wait_unless(limit, &|| self.job.cancel.is_set()))?;
        done.ok_or_else(|| self.end(CollectiveError::Canceled))
    }

    /// Returns the error, after which dropping the group hardly waits for the other ranks.
    fn end(&self, error: CollectiveError) -> CollectiveError {
        self.ranks.communicator().note_failed(true);
        error
    }
}

impl From<MpiError> for CollectiveError {
    fn from(error: MpiError) -> CollectiveError {
        match error {
            MpiError::TimedOut { call, limit, .. } => CollectiveError::SomeTimedOut {
                seconds: limit.as_secs_f64(),
                own: None,
                call: call.to_owned(),
            },
            MpiError::Forked { initialized, .. } => {
                CollectiveError::Forked { connected: initialized }
            }
            error => CollectiveError::Mpi(error),
        }
    }
}

/// The error for a rank that is lost for this reason.
fn lost(rank: u32, reason: &str) -> CollectiveError {
    CollectiveError::Lost { rank, host: "its host".to_owned(), reason: reason.to_owned() }
}

impl Transport for Mpi {
    fn rank(&self) -> Rank {
        self.ranks.communicator().rank()
    }

    fn number(&self, rank: u32) -> u32 {
        self.numbers[rank as usize]
    }

    fn describe(&self) -> String {
        format!("MPI ({})", self.job.library)
    }

    fn reduce(&mut self, reduce: Reduce, mut numbers: Numbers<'_>) -> Result<()> {
        let Reduce { call, by } = reduce;
        self.agree(call)?;
        if call.concerns(self.rank().index() as usize) {
            return self.reduce_all(numbers, by);
        }
        // As an all-reduce, whose bits the root then has. The numbers of this rank do not change.
        let kind = numbers.kind();
        let mut copy = Scratch::default();
        let copy = copy.bytes(numbers.length());
        copy.copy_from_slice(numbers.bytes());
        self.reduce_all(Numbers::of(kind, copy), by)
    }

    fn reduce_scatter(
        &mut self,
        reduce: Reduce,
        values: &[u8],
        mut part: Numbers<'_>,
    ) -> Result<()> {
        let (Reduce { call, by }, kind, rank) = (reduce, part.kind(), self.rank());
        self.agree(call)?;
        if self.sum_part(values, &mut part, by)? {
            kind.divide(by, rank.size(), part.bytes());
            return Ok(());
        }
        let mut copy = Scratch::default();
        let copy = copy.bytes(values.len());
        copy.copy_from_slice(values);
        self.reduce_all(Numbers::of(kind, copy), by)?;
        let count = values.len() / kind.size();
        let own = kind.part(count, rank.index() as usize, rank.size() as usize);
        part.bytes().copy_from_slice(&copy[own]);
        Ok(())
    }

    fn gather(&mut self, call: Call, bytes: &[u8], into: &mut [&mut [u8]]) -> Result<()> {
        self.agree(call)?;
        let own = self.rank().index();
        match call.only_rank() {
            Some(root) if root != own => self.pass_on(MOVED, &[(root, bytes)], &mut []),
            Some(_) => {
                let into = into.iter_mut().map(|into| &mut **into);
                self.pass_on(MOVED, &[], &mut others(own, into))
            }
            None => self.gather_all(bytes, into),
        }
    }

    fn scatter(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()> {
        self.agree(call)?;
        let own = self.rank().index();
        match call.only_rank() {
            Some(root) if root != own => {
                self.pass_on(MOVED, &[], &mut [(root, &mut *into[root as usize])])
            }
            Some(_) => self.pass_on(MOVED, &others(own, parts.iter().copied()), &mut []),
            None => self.scatter_all(parts, into),
        }
    }

    fn scatter_any(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<bool> {
        self.agree(call)?;
        self.exchange_any(parts, into)?;
        Ok(true)
    }

    fn broadcast(&mut self, call: Call, bytes: &mut [u8], root: u32) -> Result<()> {
        self.agree(call)?;
        self.broadcast_from(root, bytes)
    }

    fn pass(&mut self, send: Sent<'_>, receive: Received<'_>) -> Result<()> {
        let messages = send.iter().map(|(message, _)| *message);
        let messages: Vec<_> =
            messages.chain(receive.iter().map(|(message, _)| *message)).collect();
        if let (Some(first), Some(last)) = (messages.first(), messages.last()) {
            self.job.watch.notes([first.said, last.said], &self.numbers);
        }
        let send = send.map(|(Message { other, .. }, bytes)| (other, bytes));
        let mut receive = receive.map(|(Message { other, .. }, bytes)| (other, bytes));
        self.agree_on(&messages)?;
        self.pass_on(PASSED, send.as_slice(), receive.as_mut_slice())
    }

    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError {
        let error = self.fail(|| lost(self.numbers[rank as usize], &reason));
        // The others are in the middle of a call, which the next one of this rank must not meet.
        Canceller(self.cancel()).cancel();
        error
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        // Every rank hears from all others.
        self.agree(call)
    }

    fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.job.cancel)
    }

    fn abort(&mut self, code: u8, reason: &str) {
        if self.job.watch.is_here() {
            self.job.watch.end();
            if !reason.is_empty() {
                let own = format!("rank {}", self.own_number());
                // In one piece: a launcher merges what several ranks write at this time.
                let line = aborted(&own, code, reason) + "\n";
                // The job ends even if stderr is closed.
                let _ = io::stderr().write_all(line.as_bytes());
            }
            self.ranks.communicator().abort(code.into())
        }
    }

    fn leave_panicking(&mut self) {
        self.give_up_on(self.rank().index(), PANICKED.to_owned());
    }

    fn close(self: Box<Self>) -> Result<()> {
        let earlier = self.job.failed.get().map(Arc::clone);
        // Only the world is finalized.
        if let Ranks::World(_) = self.ranks {
            // Every rank hears from all others.
            self.agree(Call::CLOSE)?;
        }
        let Mpi { job, ranks, .. } = *self;
        if let Ranks::World(world) = ranks {
            // Announce the exit before finalizing: after a stop signal, a launcher may kill a rank
            // during MPI_Finalize.
            job.watch.end();
            world.finalize_within(watch::limit(job.timeout))?;
        }
        earlier.map_or(Ok(()), |earlier| Err(CollectiveError::Earlier(earlier)))
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        // MPI_Comm_split has no time limit, so wait for all ranks first.
        self.agree(Call::SPLIT)?;
        let all = self.gather_equal(&Part::request(color, key))?;
        let part = Part::of(self.rank().index() as usize, &all);
        let part = part.map_err(|rank| lost(self.numbers[rank], UNREADABLE))?;
        let numbers = part.members.iter().map(|&rank| self.numbers[rank]).collect();
        // MPI's colors and keys are below 2^31, so name the new group by its first rank.
        let first = part.members[0] as u32;
        let group = self.call(|ranks| ranks.split(first, part.rank.index()))?;
        Ok(Box::new(Mpi::of(Arc::clone(&self.job), Ranks::Group(group), numbers)))
    }
}
