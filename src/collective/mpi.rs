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

mod agree;
mod init;
mod lost;
mod sum;
mod watch;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use self::sum::{Sum, sum_part};
use self::watch::{Socket, Watch};
use super::call::{Call, Message};
use super::cancel::Cancel;
use super::element::ElementKind;
use super::error::{CollectiveError, Result, UNREADABLE};
use super::host_info::{self, HostInfo};
use super::numbers::{Numbers, Scratch};
use super::reduction::Reduction;
use super::split;
use super::transport::Transport;
use crate::value::rank::Rank;
use mpienv_mpi::{Communicator, MpiError, Request, World};

pub(super) use init::{connect, connect_by, is_named};
pub(super) use lost::OnLost;

/// How long to hold back an MPI error so that the watch can name the lost rank. On one machine, it
/// takes milliseconds.
const WATCH_FIRST: Duration = Duration::from_secs(1);

/// The most bytes that one MPI call moves, of all ranks together; MPI's own limit is below 2^31.
const LONGEST: usize = 1 << 30;
/// Tags of messages: of the values that two ranks pass, and of those of a call of all ranks.
/// [`agree`] has another one.
const PASSED: u16 = 2;
const MOVED: u16 = 3;

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
    cancel: Arc<Cancel>,
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
        let (sum, cancel) = (Sum::default(), Arc::default());
        Ok(Mpi { watch, ranks, numbers, timeout, spins, sum, library, cancel })
    }

    fn check(&self) -> Result<()> {
        if self.cancel.is_set() { Err(CollectiveError::Canceled) } else { Ok(()) }
    }

    /// Makes a call under the watch.
    fn call<T>(&self, call: impl FnOnce(&Communicator) -> Result<T, MpiError>) -> Result<T> {
        self.check()?;
        let result = self.watch.over(|| call(self.ranks.communicator()));
        if let Err(MpiError::Call { .. }) = result {
            // MPI may notice a loss first. Wait for the watch, which names the rank and exits this
            // process.
            thread::sleep(WATCH_FIRST);
        }
        Ok(result?)
    }

    /// Starts a call and polls it until it is done.
    fn wait<B: Default>(
        &self,
        start: impl FnOnce(&Communicator) -> Result<Request<B>, MpiError>,
    ) -> Result<B> {
        let limit = watch::limit(self.timeout);
        let done = self.call(|ranks| start(ranks)?.wait_unless(limit, &|| self.cancel.is_set()))?;
        done.ok_or(CollectiveError::Canceled)
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

impl Mpi {
    /// Every rank gets the bytes of every rank, as part of a call on which all ranks agree.
    fn gather_any(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let limit = watch::limit(self.timeout);
        let all =
            self.call(|ranks| ranks.all_gather_unless(bytes, limit, &|| self.cancel.is_set()))?;
        all.ok_or(CollectiveError::Canceled)
    }

    /// Sends and receives bytes, which all ranks have agreed on, a piece at a time.
    fn move_values(
        &self,
        tag: u16,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, &mut [u8])],
    ) -> Result<()> {
        let lengths = sends.iter().map(|(_, bytes)| bytes.len());
        let lengths = lengths.chain(receives.iter().map(|(_, bytes)| bytes.len()));
        for at in (0..lengths.max().unwrap_or(0)).step_by(LONGEST) {
            let piece = |length: usize| at.min(length)..(at + LONGEST).min(length);
            let (mut received, mut sent) = (Vec::new(), Vec::new());
            for (index, (from, bytes)) in receives.iter().enumerate() {
                let piece = piece(bytes.len());
                if !piece.is_empty() {
                    let room = vec![0; piece.len()];
                    let request = self.call(|ranks| ranks.start_receive(room, *from, tag))?;
                    received.push((index, piece, request));
                }
            }
            for (to, bytes) in sends {
                let bytes = bytes[piece(bytes.len())].to_vec();
                if !bytes.is_empty() {
                    sent.push(self.call(|ranks| ranks.start_send(bytes, *to, tag))?);
                }
            }
            for (index, piece, request) in received {
                let bytes = self.wait(|_| Ok(request))?;
                receives[index].1[piece].copy_from_slice(&bytes);
            }
            for request in sent {
                self.wait(|_| Ok(request))?;
            }
        }
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

    fn reduce(
        &mut self,
        call: Call,
        mut numbers: Numbers<'_>,
        by: Reduction,
        root: Option<u32>,
    ) -> Result<()> {
        self.agree(call)?;
        if root.is_none_or(|root| root == self.rank().index()) {
            return self.reduce_all(numbers, by);
        }
        // As an all-reduce, whose bits the root then has. The numbers of this rank do not change.
        let kind = numbers.kind();
        let mut copy = Scratch::default();
        let copy = copy.bytes(numbers.bytes().len());
        copy.copy_from_slice(numbers.bytes());
        self.reduce_all(Numbers::of(kind, copy), by)
    }

    fn reduce_scatter(
        &mut self,
        call: Call,
        values: &[u8],
        mut part: Numbers<'_>,
        by: Reduction,
    ) -> Result<()> {
        let (kind, rank) = (part.kind(), self.rank());
        let count = values.len() / kind.size();
        self.agree(call)?;
        let mut scratch = Scratch::default();
        let copy = scratch.bytes(values.len());
        copy.copy_from_slice(values);
        let mut numbers = Numbers::of(kind, copy);
        let is_even = count.is_multiple_of(rank.size() as usize);
        if is_even
            && matches!(by, Reduction::Sum | Reduction::Mean)
            && matches!(kind, ElementKind::F32 | ElementKind::F64)
        {
            if let Some(values) = numbers.as_mut::<f32>() {
                sum_part(self, values)?;
            } else if let Some(values) = numbers.as_mut::<f64>() {
                sum_part(self, values)?;
            }
            let own = kind.part(count, rank.index() as usize, rank.size() as usize);
            part.bytes().copy_from_slice(&numbers.bytes()[own]);
            kind.divide(by, rank.size(), part.bytes());
            return Ok(());
        }
        self.reduce_all(Numbers::of(kind, numbers.bytes()), by)?;
        let own = kind.part(count, rank.index() as usize, rank.size() as usize);
        part.bytes().copy_from_slice(&numbers.bytes()[own]);
        Ok(())
    }

    fn gather(
        &mut self,
        call: Call,
        bytes: &[u8],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()> {
        self.agree(call)?;
        let own = self.rank().index();
        if let Some(root) = root {
            if own != root {
                return self.move_values(MOVED, &[(root, bytes)], &mut []);
            }
            into[own as usize].copy_from_slice(bytes);
            let others = (0..).zip(into).filter(|(rank, _)| *rank != own);
            let mut receives: Vec<(u32, &mut [u8])> =
                others.map(|(rank, into)| (rank, &mut **into)).collect();
            return self.move_values(MOVED, &[], &mut receives);
        }
        let longest = into.iter().map(|into| into.len()).max().unwrap_or(0);
        let most = (LONGEST / into.len()).max(1);
        for at in (0..longest).step_by(most) {
            let piece = |length: usize| at.min(length)..(at + most).min(length);
            let all = self.gather_any(&bytes[piece(bytes.len())])?;
            for (into, bytes) in into.iter_mut().zip(all) {
                let piece = piece(into.len());
                into[piece].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn scatter(
        &mut self,
        call: Call,
        parts: &[&[u8]],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()> {
        self.agree(call)?;
        let own = self.rank().index() as usize;
        if let Some(root) = root {
            let Some(part) = parts.get(own) else {
                return self.move_values(MOVED, &[], &mut [(root, &mut *into[root as usize])]);
            };
            into[own].copy_from_slice(part);
            let others = (0..).zip(parts).filter(|(rank, _)| *rank as usize != own);
            let sends: Vec<(u32, &[u8])> = others.map(|(rank, part)| (rank, *part)).collect();
            return self.move_values(MOVED, &sends, &mut []);
        }
        let length = into[own].len();
        let most = (LONGEST / into.len()).max(1);
        for at in (0..length).step_by(most) {
            let piece = at..(at + most).min(length);
            let sent: Vec<&[u8]> = parts.iter().map(|part| &part[piece.clone()]).collect();
            let mut bytes = sent.concat();
            if self.spins {
                self.call(|ranks| ranks.all_to_all(&mut bytes))?;
            } else {
                bytes = self.wait(|ranks| ranks.start_all_to_all(bytes))?;
            }
            for (into, bytes) in into.iter_mut().zip(bytes.chunks(piece.len())) {
                into[piece.clone()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, call: Call, bytes: &mut [u8], root: u32) -> Result<()> {
        self.agree(call)?;
        if self.spins {
            return self.call(|ranks| ranks.broadcast(bytes, root));
        }
        for piece in bytes.chunks_mut(LONGEST) {
            let sent = self.wait(|ranks| ranks.start_broadcast(piece.to_vec(), root))?;
            piece.copy_from_slice(&sent);
        }
        Ok(())
    }

    fn pass(
        &mut self,
        send: Option<(Message, &[u8])>,
        receive: Option<(Message, &mut [u8])>,
    ) -> Result<()> {
        let messages = send.iter().map(|(message, _)| *message);
        let messages: Vec<_> =
            messages.chain(receive.iter().map(|(message, _)| *message)).collect();
        self.agree_on(&messages)?;
        let send = send.map(|(Message { other, .. }, bytes)| (other, bytes));
        let mut receive = receive.map(|(Message { other, .. }, bytes)| (other, bytes));
        self.move_values(PASSED, send.as_slice(), receive.as_mut_slice())
    }

    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError {
        let (rank, host) = (self.numbers[rank as usize], "its host".to_owned());
        CollectiveError::Lost { rank, host, reason }
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        // Every rank hears from all others.
        self.agree(call)
    }

    fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel)
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
        let all = self.gather_any(&split::request(color, key))?;
        let part = split::part(self.rank().index() as usize, &all);
        let part = part.map_err(|rank| unreadable(self.numbers[rank]))?;
        let numbers = part.members.iter().map(|&rank| self.numbers[rank]).collect();
        // MPI's colors and keys are below 2^31, so name the new group by its first rank.
        let first = part.members[0] as u32;
        let group = self.call(|ranks| ranks.split(first, part.rank.index()))?;
        let Mpi { timeout, spins, .. } = *self;
        let (watch, library, ranks) =
            (Arc::clone(&self.watch), self.library.clone(), Ranks::Group(group));
        let (sum, cancel) = (Sum::default(), self.cancel());
        Ok(Box::new(Mpi { watch, ranks, numbers, timeout, spins, sum, library, cancel }))
    }
}
