//! What carries the calls of a group.

use std::sync::Arc;
use std::time::Duration;

use bytemuck::cast_slice;

use super::call::{Call, Message, Reduce};
use super::cancel::Cancel;
use super::element::Element;
use super::error::{CollectiveError, OWN_HOST, Result};
use super::numbers::Numbers;
use super::tcp::Tcp;
use crate::value::rank::Rank;

/// The group of a rank after a split.
pub(super) struct Part {
    /// Its ranks, by their index in the group that is split.
    pub(super) members: Vec<usize>,
    /// This rank's place in it.
    pub(super) rank: Rank,
}

impl Part {
    /// Encodes what a rank sends to the others.
    pub(super) fn request(color: u32, key: u32) -> Vec<u8> {
        [color.to_le_bytes(), key.to_le_bytes()].concat()
    }

    /// The group of rank `own`: the ranks of its color, ordered by key, then by rank. `requests`
    /// has one request from each rank, in rank order.
    ///
    /// # Errors
    /// The rank whose request cannot be read.
    pub(super) fn of(own: usize, requests: &[Vec<u8>]) -> Result<Part, usize> {
        let mut colors = Vec::new();
        for (rank, request) in requests.iter().enumerate() {
            let ([color, key], []) = request.as_chunks::<4>() else { return Err(rank) };
            colors.push((*color, u32::from_le_bytes(*key), rank));
        }
        let &(own_color, ..) = colors.get(own).ok_or(own)?;
        colors.retain(|(color, ..)| *color == own_color);
        colors.sort_unstable();
        let members: Vec<usize> = colors.into_iter().map(|(.., rank)| rank).collect();
        let place = members.iter().position(|&rank| rank == own).ok_or(own)?;
        let rank = Rank::new(place as u32, members.len() as u32).map_err(|_| own)?;
        Ok(Part { members, rank })
    }
}

/// A connection to another rank.
#[derive(Clone, Debug)]
pub struct Connection {
    /// It stays open as long as the transport.
    pub descriptor: std::os::fd::RawFd,
    /// The other rank's host, as errors have it.
    pub host: String,
}

pub(super) fn not_begun() -> CollectiveError {
    let reason = "no reduction of these numbers was begun".to_owned();
    CollectiveError::Argument { call: "end_reduce", reason }
}

/// Every rank gets the values of every rank, of which each has any count.
pub(super) fn gather_any<T: Element>(
    transport: &mut dyn Transport,
    call: Call,
    values: &[T],
) -> Result<Vec<Vec<T>>> {
    let (own, size) = (transport.rank().index() as usize, transport.rank().size() as usize);
    let count = (values.len() as u64).to_le_bytes();
    let mut counts = vec![count; size];
    let mut into: Vec<&mut [u8]> = counts.iter_mut().map(<[u8; 8]>::as_mut_slice).collect();
    transport.gather(call, &count, &mut into)?;
    let mut all = rooms(transport, counts)?;
    all[own].copy_from_slice(values);
    if all.iter().any(|values| !values.is_empty()) {
        T::with_parts(&mut all, |parts| transport.gather(call, cast_slice(values), parts))?;
    }
    Ok(all)
}

/// Room for as many values as each rank has announced.
pub(super) fn rooms<T: Element>(
    transport: &mut dyn Transport,
    announced: Vec<[u8; 8]>,
) -> Result<Vec<Vec<T>>> {
    let mut all = vec![Vec::new(); announced.len()];
    for (rank, (values, count)) in (0..).zip(all.iter_mut().zip(announced)) {
        make_room(transport, rank, values, count)?;
    }
    Ok(all)
}

/// Makes room for as many values as a rank has announced.
pub(super) fn make_room<T: Element>(
    transport: &mut dyn Transport,
    rank: u32,
    values: &mut Vec<T>,
    announced: [u8; 8],
) -> Result<()> {
    let announced = u64::from_le_bytes(announced);
    values.clear();
    let count = usize::try_from(announced).ok();
    match count.filter(|&count| values.try_reserve_exact(count).is_ok()) {
        Some(count) => {
            values.resize(count, T::default());
            Ok(())
        }
        None => {
            let name = T::KIND.name();
            let reason =
                format!("it announced {announced} {name}, more than this rank can allocate");
            Err(transport.give_up_on(rank, reason))
        }
    }
}

/// A message to a rank, if this one sends one, and its bytes.
pub(crate) type Sent<'b> = Option<(Message, &'b [u8])>;

/// A message from a rank, if this one receives one, and the place of its bytes.
pub(crate) type Received<'b> = Option<(Message, &'b mut [u8])>;

/// How far a reduction has come that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The numbers are reduced.
    Done,
    /// Other ranks have not begun yet.
    Waits,
    /// The ranks have not begun: so many numbers, or this transport, cannot wait in two steps.
    Refused,
}

/// What carries the calls of a [`Group`](super::Group): shared memory, TCP or MPI.
///
/// Every rank makes the same calls in the same order, and the group has already checked the
/// arguments. If a rank is lost, hangs or makes another call, every call fails on all others.
#[expect(clippy::missing_errors_doc, reason = "all calls fail for the reasons above")]
pub trait Transport: Send {
    /// This rank and the size of the group.
    fn rank(&self) -> Rank;

    /// What the transport is, and why it was chosen.
    fn describe(&self) -> String;

    /// The number in the job of a rank of the group.
    fn number(&self, rank: u32) -> u32 {
        self.tcp().map_or(rank, |tcp| tcp.members.name(rank))
    }

    /// Notes that the group has made `made` calls before the next one, apart from messages between
    /// two ranks. A transport may use it to notice that ranks make different calls.
    fn note(&mut self, made: u32) {
        let _ = made;
    }

    /// The connections over TCP that the same ranks have. What such a transport does not define goes
    /// over them.
    fn tcp(&self) -> Option<&Tcp> {
        None
    }

    /// Sets how long later calls wait for another rank, in all groups that share its connections.
    /// Over MPI, it stays as it is.
    fn set_timeout(&mut self, timeout: Duration) {
        if let Some(tcp) = self.tcp() {
            tcp.members.links().set_timeout(timeout);
        }
    }

    /// Reduces the ranks' numbers element by element. Every rank, or only one, gets the result
    /// in place. The numbers of the other ranks do not change.
    fn reduce(&mut self, reduce: Reduce, numbers: Numbers<'_>) -> Result<()>;

    /// Begins to reduce as [`Transport::reduce`] does, to all ranks, and waits for the others for at
    /// most `longest`, or twice as long if each rank adds a part of the sum. If they have not come,
    /// the next call is [`Transport::end_reduce`].
    fn begin_reduce(
        &mut self,
        reduce: Reduce,
        numbers: Numbers<'_>,
        longest: Duration,
    ) -> Result<Begun> {
        let _ = (reduce, numbers, longest);
        Ok(Begun::Refused)
    }

    /// Ends what was begun by [`Transport::begin_reduce`] with the same arguments.
    fn end_reduce(&mut self, reduce: Reduce, numbers: Numbers<'_>) -> Result<()> {
        let _ = (reduce, numbers);
        Err(not_begun())
    }

    /// Like [`Transport::reduce`] to all ranks, but `compute` overwrites the numbers first, `part`
    /// bytes at a time: it gets the place of the first byte and the bytes. A transport may reduce
    /// the first numbers while ranks compute the next. Parts may have other lengths on other ranks.
    /// `other_work` is called once, when the last part is computed.
    fn reduce_in_parts(
        &mut self,
        reduce: Reduce,
        mut numbers: Numbers<'_>,
        part: usize,
        compute: &mut dyn FnMut(usize, &mut [u8]),
        other_work: &mut dyn FnMut(),
    ) -> Result<()> {
        numbers.compute(part, compute);
        other_work();
        self.reduce(reduce, numbers)
    }

    /// Like [`Transport::reduce`], but every rank gets only its part of the result: the numbers
    /// from `rank * count / size` to `(rank + 1) * count / size` of the ranks' `values`.
    fn reduce_scatter(&mut self, reduce: Reduce, values: &[u8], part: Numbers<'_>) -> Result<()>;

    /// Every rank, or only one, gets the bytes of every other rank, by rank: `into` has no room
    /// on ranks that get none. All ranks know all lengths, which `call` has or an earlier call
    /// exchanged. What a rank gets of itself, here and in a scatter, is in `into` already.
    fn gather(&mut self, call: Call, bytes: &[u8], into: &mut [&mut [u8]]) -> Result<()>;

    /// Every rank, or only one, sends part r to rank r: `parts` has no part on ranks that send
    /// none. `into` gets a part of each of these ranks, by rank. All parts
    /// have the same length.
    fn scatter(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()>;

    /// Like [`Transport::scatter`] from all ranks, but parts may have any lengths, which the two
    /// ranks of a part know. Returns whether the transport can.
    fn scatter_any(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<bool> {
        let _ = (call, parts, into);
        Ok(false)
    }

    /// Every rank gets the bytes of rank `root`.
    fn broadcast(&mut self, call: Call, bytes: &mut [u8], root: u32) -> Result<()> {
        let mut into: Vec<&mut [u8]> =
            (0..self.rank().size()).map(|_| Default::default()).collect();
        if self.rank().index() == root {
            return self.gather(call, bytes, &mut into);
        }
        into[root as usize] = bytes;
        self.gather(call, &[], &mut into)
    }

    /// Sends a message to a rank and receives one from a rank, or does one of both. Returns once
    /// the other ranks have made the other half of the call.
    fn pass(&mut self, send: Sent<'_>, receive: Received<'_>) -> Result<()>;

    /// Waits for the next message that a rank sends to this one, for at most `longest`. Returns its
    /// call, and leaves the message to [`Transport::pass`].
    fn next_message(&mut self, from: u32, longest: Duration) -> Result<Call> {
        let _ = (from, longest);
        let reason = format!("messages with tags do not go over {}", self.describe());
        Err(CollectiveError::Argument { call: "receive", reason })
    }

    /// Whether the next message that a rank sends to this one has come. Does not wait. Without
    /// messages with tags, it fails as [`Transport::next_message`] does.
    fn has_message(&mut self, from: u32) -> Result<bool> {
        self.next_message(from, Duration::ZERO).map(|_| true)
    }

    /// The connections to the ranks of the group, by rank; none to this one. It is empty if the
    /// ranks are connected by other means.
    fn connections(&self) -> Vec<Option<Connection>> {
        self.tcp().map_or_else(Vec::new, |tcp| tcp.members.connections())
    }

    /// Fails the group because a rank brought what this one cannot take, for this `reason`.
    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError {
        match self.tcp() {
            Some(tcp) => tcp.members.refuse(rank as usize, reason),
            None => CollectiveError::Lost { rank, host: OWN_HOST.to_owned(), reason },
        }
    }

    /// Returns once every rank has made this call, which exchanges nothing else: a barrier, or a
    /// call whose arguments every rank refuses.
    fn meet(&mut self, call: Call) -> Result<()>;

    /// Splits the group into one group for each `color`, ordered by `key`, then by rank. Returns
    /// this rank's new group.
    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>>;

    /// Makes the calls of all other ranks fail, because this rank aborts the job for this `reason`.
    /// A transport that cannot prints the reason and exits all ranks, including this one, with
    /// `code`.
    fn abort(&mut self, code: u8, reason: &str) {
        // Ranks that wait for memory look at the connections too.
        if let Some(tcp) = self.tcp() {
            tcp.members.links().abort(code, reason);
        }
    }

    /// Makes all later calls fail because this rank's thread panics. The other ranks learn it if
    /// the transport can tell them.
    fn leave_panicking(&mut self) {
        match self.tcp() {
            Some(tcp) => tcp.members.links().leave_panicking(),
            None => self.cancel().end_panicking(),
        }
    }

    /// What cancels the calls of the transport.
    fn cancel(&self) -> Arc<Cancel> {
        self.tcp().map_or_else(Arc::default, |tcp| Arc::clone(&tcp.members.links().cancel))
    }

    /// Closes the transport, after waiting for all ranks if it needs to. Fails if an earlier call
    /// failed.
    fn close(self: Box<Self>) -> Result<()> {
        self.tcp().map_or_else(|| self.cancel().check(), |tcp| tcp.members.links().check_last())
    }

    /// How many bytes this rank has written to other ranks, protocol included; `None` if unknown.
    fn bytes_sent(&self) -> Option<u64> {
        self.tcp().map(|tcp| self.published() + tcp.members.links().written())
    }

    /// How many bytes this rank has written to memory that other ranks read.
    fn published(&self) -> u64 {
        0
    }

    /// How many connections were rejected because they were not from ranks of this job.
    fn rejected(&self) -> u64 {
        self.tcp().map_or(0, |tcp| tcp.rejected)
    }
}

/// The only rank of its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    cancel: Arc<Cancel>,
}

impl Transport for Alone {
    fn rank(&self) -> Rank {
        Rank::ALONE
    }

    fn describe(&self) -> String {
        "a single rank".to_owned()
    }

    fn reduce(&mut self, _reduce: Reduce, _numbers: Numbers<'_>) -> Result<()> {
        self.cancel.check()
    }

    fn reduce_scatter(&mut self, _reduce: Reduce, values: &[u8], part: Numbers<'_>) -> Result<()> {
        part.into_bytes().copy_from_slice(values);
        self.cancel.check()
    }

    fn gather(&mut self, _call: Call, _bytes: &[u8], _into: &mut [&mut [u8]]) -> Result<()> {
        self.cancel.check()
    }

    fn scatter(&mut self, _call: Call, _parts: &[&[u8]], _into: &mut [&mut [u8]]) -> Result<()> {
        self.cancel.check()
    }

    fn pass(&mut self, send: Sent<'_>, receive: Received<'_>) -> Result<()> {
        // The group allows no other message to itself.
        if let (Some((_, bytes)), Some((_, into))) = (send, receive) {
            into.copy_from_slice(bytes);
        }
        self.cancel.check()
    }

    fn meet(&mut self, _call: Call) -> Result<()> {
        self.cancel.check()
    }

    fn split(&mut self, _color: u32, _key: u32) -> Result<Box<dyn Transport>> {
        self.cancel.check()?;
        Ok(Box::new(self.clone()))
    }

    fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel)
    }

    fn bytes_sent(&self) -> Option<u64> {
        Some(0)
    }
}
