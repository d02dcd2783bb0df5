//! Ranks of one host, connected by shared memory.
//!
//! Every rank shows its numbers in the memory. Each adds all of them, or its part, in rank order,
//! so every rank gets the same bits, which are also those of TCP. The TCP connections stay open:
//! they close when a rank is killed, so that the others can name it.

mod memory;
mod messages;
mod sums;
mod wait;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub(super) use self::memory::{Memory, slot_length};
use self::memory::{Offer, Slots};
use super::call::{Call, Reduce};
use super::error::Result;
use super::numbers::Numbers;
use super::tcp::Tcp;
use super::transport::{self, Begun, Received, Sent, Transport, gather_any};
use crate::value::printable::printable;
use crate::value::rank::Rank;

/// All ranks of a group, on one host.
#[derive(Debug)]
pub(super) struct Shared {
    tcp: Tcp,
    memory: Memory,
    /// Whether every rank has its own core.
    spins: bool,
    /// Bytes that this rank has published.
    published: u64,
    /// How many calls of all ranks the group has made.
    calls: u32,
    /// The rank that may not have read this one's last message, a short one.
    unread_by: Option<usize>,
    /// The reduction that waits for its end, and whether this rank has published its part of the
    /// sum.
    begun: Option<(Call, bool)>,
}

/// The ranks that share memory, or their connections and why they do not.
pub(super) type Sharing = Result<Shared, (Tcp, String)>;

impl Shared {
    /// Shares memory among the ranks of `tcp`. The outcome is the same on all ranks.
    pub(super) fn share(mut tcp: Tcp, spins: bool) -> Result<Sharing> {
        let (ranks, own) = (tcp.rank().size() as usize, tcp.rank().index() as usize);
        let (file, offer) = match (own == 0).then(|| memory::create(ranks)) {
            Some(Ok((file, offer))) => (Some(file), Ok(offer)),
            Some(Err(error)) => (None, Err(error.to_string())),
            None => (None, Err(String::new())),
        };
        // None, which no rank can read, if there is no JSON for it.
        let offer = serde_json::to_vec(&offer).unwrap_or_default();
        let offers = gather_any(&mut tcp, Call::CONNECT, &offer)?;
        let offer: Result<Offer, String> =
            serde_json::from_slice(&offers[0]).map_err(|_| tcp.members.unreadable(0))?;
        let file = match file {
            Some(file) => Ok(file),
            None => offer
                .and_then(|offer| memory::open(&offer, ranks).map_err(|error| error.to_string())),
        };
        let map = |file: &OwnedFd| Memory::map(file, ranks, own).map_err(|error| error.to_string());
        let mapped = file.as_ref().map_err(Clone::clone).and_then(map);
        let reason = mapped.as_ref().err().map_or("", String::as_str);
        let reasons = gather_any(&mut tcp, Call::CONNECT, reason.as_bytes())?;
        // Rank 0's file stays open until all others have opened it through /proc.
        drop(file);
        Ok(match (mapped, first_reason(&reasons)) {
            (Ok(memory), None) => Ok(Shared::of(tcp, memory, spins)),
            (Err(why), None) | (_, Some(why)) => Err((tcp, why)),
        })
    }

    /// The ranks of `tcp`, each of which has its part of the `memory`.
    pub(super) fn of(tcp: Tcp, memory: Memory, spins: bool) -> Shared {
        Shared { tcp, memory, spins, published: 0, calls: 0, unread_by: None, begun: None }
    }

    /// Counts the call of all ranks that comes, before which the group has made `made`.
    pub(super) fn count_call(&mut self, made: u32) {
        self.calls = made.wrapping_add(1);
    }

    /// Publishes this rank's bytes and returns those of all ranks, in rank order.
    pub(super) fn show(&mut self, call: Call, bytes: &[u8]) -> Result<Vec<&[u8]>> {
        self.round(call, |slot, _| copy(slot, bytes))?;
        let ranks = self.memory.ranks();
        let slots = self.slots()?;
        Ok((0..ranks).map(|rank| &slots.of(rank)[..bytes.len()]).collect())
    }

    /// Runs one round: `fill` gets this rank's slot and the previous round's slots. Returns once
    /// all ranks have published.
    fn round(
        &mut self,
        call: Call,
        fill: impl FnOnce(&mut [u8], Slots<'_>) -> usize,
    ) -> Result<()> {
        self.publish(call, fill)?;
        self.wait_for_others(call)
    }

    /// As [`Shared::round`], but does not wait for the others.
    fn publish(
        &mut self,
        call: Call,
        fill: impl FnOnce(&mut [u8], Slots<'_>) -> usize,
    ) -> Result<()> {
        let members = &self.tcp.members;
        members.begin(call)?;
        let (slot, before) = self.memory.next().map_err(|rank| members.late(rank))?;
        self.published += fill(slot, before) as u64;
        self.memory.publish(call);
        Ok(())
    }

    /// Waits until all others have published the round that this rank has published.
    fn wait_for_others(&mut self, call: Call) -> Result<()> {
        // Ranks that take turns on a core mostly publish in rank order: with rank 0 first, this one
        // sleeps less often.
        let first = if self.spins { self.memory.own() + 1 } else { 0 };
        for rank in self.others_from(first) {
            self.wait_for(rank)?;
            let found = self.memory.call(rank);
            if found != Some(call) {
                return Err(self.tcp.members.differs(rank, found));
            }
        }
        Ok(())
    }

    /// The slots of the completed round.
    fn slots(&mut self) -> Result<Slots<'_>> {
        let members = &self.tcp.members;
        self.memory.slots().map_err(|rank| members.late(rank))
    }

    /// All other ranks, the next one first: if every rank began with rank 0, they would all wait
    /// for its cache lines.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        self.others_from(self.memory.own() + 1)
    }

    /// All other ranks, those from `first` on before the rest.
    fn others_from(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        let (ranks, own) = (self.memory.ranks(), self.memory.own());
        (first..ranks).chain(0..first).filter(move |&rank| rank != own)
    }

    /// The index of the room for rank `to` in the slot of rank `from`, which has none for itself.
    fn room(from: usize, to: usize) -> usize {
        to - usize::from(to > from)
    }

    /// The byte ranges of the rounds that move `length` bytes, `most` at a time; one empty range if
    /// there are none.
    fn rounds(length: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
        (0..length.max(1)).step_by(most).map(move |at| at..(at + most).min(length))
    }
}

/// Returns why memory is not shared, given a reason from every rank, which is empty if that rank
/// succeeded.
fn first_reason(reasons: &[Vec<u8>]) -> Option<String> {
    let (rank, reason) = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty())?;
    Some(format!("rank {rank} cannot share memory: {}", printable(reason)))
}

/// Copies bytes to the start of a slot and returns how many.
fn copy(slot: &mut [u8], bytes: &[u8]) -> usize {
    slot[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

impl Transport for Shared {
    fn rank(&self) -> Rank {
        self.tcp.rank
    }

    fn describe(&self) -> String {
        self.tcp.described("shared memory")
    }

    fn tcp(&self) -> Option<&Tcp> {
        Some(&self.tcp)
    }

    fn note(&mut self, made: u32) {
        self.count_call(made);
        self.tcp.note(made);
    }

    fn reduce(&mut self, reduce: Reduce, mut numbers: Numbers<'_>) -> Result<()> {
        for mut chunk in numbers.blocks(self.memory.slot()) {
            self.publish_numbers(reduce.call, &mut chunk)?;
            self.wait_for_others(reduce.call)?;
            self.reduce_published(reduce, &mut chunk, None)?;
        }
        Ok(())
    }

    fn begin_reduce(
        &mut self,
        reduce: Reduce,
        mut numbers: Numbers<'_>,
        longest: Duration,
    ) -> Result<Begun> {
        if !self.spins || numbers.length() > self.memory.slot() {
            return Ok(Begun::Refused);
        }
        self.publish_numbers(reduce.call, &mut numbers)?;
        let mut have_come = self.have_come(longest);
        let adds_part = have_come && self.own_part(&numbers).is_some();
        if adds_part {
            self.wait_for_others(reduce.call)?;
            self.publish_part(reduce, &mut numbers, None)?;
            have_come = self.have_come(longest);
        }
        self.begun = Some((reduce.call, adds_part));
        if !have_come {
            return Ok(Begun::Waits);
        }
        self.end_reduce(reduce, numbers).map(|()| Begun::Done)
    }

    fn end_reduce(&mut self, reduce: Reduce, mut numbers: Numbers<'_>) -> Result<()> {
        let begun = self.begun.take_if(|(call, _)| *call == reduce.call);
        let (call, has_published_part) = begun.ok_or_else(transport::not_begun)?;
        self.wait_for_others(call)?;
        if has_published_part {
            return self.read_parts(call, &mut numbers);
        }
        self.reduce_published(reduce, &mut numbers, None)
    }

    fn reduce_in_parts(
        &mut self,
        reduce: Reduce,
        mut numbers: Numbers<'_>,
        part: usize,
        compute: &mut dyn FnMut(usize, &mut [u8]),
        other_work: &mut dyn FnMut(),
    ) -> Result<()> {
        if numbers.length() > self.memory.slot() {
            numbers.compute(part, compute);
            other_work();
            return self.reduce(reduce, numbers);
        }
        let added = self.compute_and_publish(reduce, &mut numbers, part, compute)?;
        other_work();
        self.wait_for_others(reduce.call)?;
        self.reduce_published(reduce, &mut numbers, Some(added))
    }

    fn reduce_scatter(&mut self, reduce: Reduce, values: &[u8], part: Numbers<'_>) -> Result<()> {
        let Reduce { call, by } = reduce;
        let (kind, ranks, own) = (part.kind(), self.memory.ranks(), self.memory.own());
        let (parts, into) = (kind.ranges(values.len() / kind.size(), ranks), part.into_bytes());
        let longest = parts.iter().map(Range::len).max().unwrap_or(0);
        // A round moves a piece of every part, so that all ranks add at the same time.
        let room = self.memory.share();
        for range in Shared::rounds(longest, room) {
            let piece = |part: &Range<usize>| {
                let [from, to] = [range.start, range.end].map(|at| at.min(part.len()));
                part.start + from..part.start + to
            };
            self.round(call, |slot, _| {
                let others = parts.iter().enumerate().filter(|(rank, _)| *rank != own);
                let rooms = slot.chunks_mut(room);
                rooms.zip(others).map(|(room, (_, part))| copy(room, &values[piece(part)])).sum()
            })?;
            let (mine, slots) = (&values[piece(&parts[own])], self.slots()?);
            let row = |rank| match rank == own {
                true => mine,
                false => &slots.of(rank)[Shared::room(rank, own) * room..][..mine.len()],
            };
            let into = &mut into[range.start.min(parts[own].len())..][..mine.len()];
            sums::add_blocks(kind, by, ranks, row, 0, into);
        }
        Ok(())
    }

    fn gather(&mut self, call: Call, bytes: &[u8], into: &mut [&mut [u8]]) -> Result<()> {
        let own = self.memory.own();
        let is_due = call.concerns(own);
        let longest = into.iter().map(|into| into.len()).max().unwrap_or(0).max(bytes.len());
        for range in Shared::rounds(longest, self.memory.slot()) {
            let piece = |length: usize| range.start.min(length)..range.end.min(length);
            // The root reads its own bytes where they are.
            let sent =
                if call.only_rank().is_some() && is_due { &[] } else { &bytes[piece(bytes.len())] };
            self.round(call, |slot, _| copy(slot, sent))?;
            if !is_due {
                continue;
            }
            let (others, slots) = (self.others(), self.slots()?);
            for rank in others {
                let piece = piece(into[rank].len());
                let into = &mut into[rank][piece];
                into.copy_from_slice(&slots.of(rank)[..into.len()]);
            }
        }
        Ok(())
    }

    fn scatter(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()> {
        let own = self.memory.own();
        let length = into.iter().map(|into| into.len()).max().unwrap_or(0);
        for range in Shared::rounds(length, self.memory.share()) {
            let now = range.len();
            self.round(call, |slot, _| {
                // A rank's part for itself needs no room in its slot.
                let others = parts.iter().enumerate().filter(|(rank, _)| *rank != own);
                let rooms = slot.chunks_mut(now.max(1));
                rooms.zip(others).map(|(room, (_, part))| copy(room, &part[range.clone()])).sum()
            })?;
            let (others, slots) = (self.others(), self.slots()?);
            for rank in others.filter(|&rank| call.concerns(rank)) {
                let room = &slots.of(rank)[Shared::room(rank, own) * now..][..now];
                into[rank][range.clone()].copy_from_slice(room);
            }
        }
        Ok(())
    }

    /// As a gather in which only the root brings bytes, but without its room for those of each rank:
    /// short ones take 0.94 of the time.
    fn broadcast(&mut self, call: Call, bytes: &mut [u8], root: u32) -> Result<()> {
        let is_root = self.memory.own() == root as usize;
        for range in Shared::rounds(bytes.len(), self.memory.slot()) {
            let piece = &mut bytes[range];
            self.round(call, |slot, _| if is_root { copy(slot, piece) } else { 0 })?;
            if !is_root {
                piece.copy_from_slice(&self.slots()?.of(root as usize)[..piece.len()]);
            }
        }
        Ok(())
    }

    fn pass(&mut self, send: Sent<'_>, receive: Received<'_>) -> Result<()> {
        let passing = self.post(send, receive)?;
        self.finish(passing)
    }

    fn next_message(&mut self, from: u32, longest: Duration) -> Result<Call> {
        self.await_message(from as usize, longest)
    }

    fn has_message(&mut self, from: u32) -> Result<bool> {
        self.look_for_message(from as usize)
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        self.round(call, |_, _| 0)
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        // Meet in shared memory first, so that a rank that makes another call is named.
        self.meet(Call::SPLIT)?;
        self.tcp.split(color, key)
    }

    fn published(&self) -> u64 {
        self.published
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::call::{Message, Results};
    use crate::element::ElementKind;
    use crate::error::CollectiveError;
    use crate::group::Group;
    use crate::reduction::Reduction;
    use crate::tcp::tests::ranks_within;
    use crate::tests::PLENTY;
    use crate::tests::{
        check_that_a_hung_rank_is_named, check_that_a_rank_without_messages_is_named,
    };

    /// Runs `run` on every rank, each in its own thread, over shared memory.
    fn ranks<T: Send>(size: u32, run: impl Fn(Shared) -> T + Sync) -> Vec<T> {
        sharing_within(PLENTY, size, run)
    }

    fn sharing_within<T: Send>(
        timeout: Duration,
        size: u32,
        run: impl Fn(Shared) -> T + Sync,
    ) -> Vec<T> {
        ranks_within(timeout, size, |tcp| run(shared(tcp, false)))
    }

    pub(super) fn shared(tcp: Tcp, spins: bool) -> Shared {
        Shared::share(tcp, spins).unwrap().unwrap_or_else(|(_, why)| panic!("{why}"))
    }

    fn group(shared: Shared) -> Group {
        Group::new(Box::new(shared))
    }

    #[test]
    fn a_rank_that_is_killed_is_named_by_all_others() {
        for length in [10, 1 << 20] {
            let all_have_summed = Barrier::new(4);
            let errors = ranks(4, |mut shared| {
                let mut values = vec![1.0_f32; length];
                let sum = Reduce::new(Reduction::Sum, Results::ToAll, ElementKind::F32, length);
                shared.reduce(sum, Numbers::new(&mut values)).unwrap();
                all_have_summed.wait();
                if shared.rank().index() == 2 {
                    // As when a process is killed: its connections close.
                    shared.tcp.members.links().fail_silently();
                    return None;
                }
                let begun = Instant::now();
                let again = shared.reduce(sum, Numbers::new(&mut values));
                let error = again.unwrap_err();
                assert!(begun.elapsed() < PLENTY / 2);
                let again = shared.meet(Call::BARRIER).unwrap_err();
                assert!(again.to_string().starts_with("rank 2 on "), "{again}");
                Some(error)
            });
            for error in errors.into_iter().flatten() {
                assert!(matches!(&error, CollectiveError::Lost { rank: 2, .. }), "{error}");
            }
        }
    }

    #[test]
    fn a_rank_that_hangs_is_named_by_all_others() {
        check_that_a_hung_rank_is_named(1, 1, |timeout, run| {
            sharing_within(timeout, 4, |shared| run(group(shared)))
        });
    }

    #[test]
    fn a_rank_that_passes_no_messages_is_named_by_all_others() {
        check_that_a_rank_without_messages_is_named(1, |timeout, run| {
            sharing_within(timeout, 4, |shared| run(group(shared)))
        });
    }

    #[test]
    fn a_rank_that_is_killed_is_named_by_all_that_pass_messages() {
        for length in [8, 3_000_000] {
            let all_have_passed = Barrier::new(4);
            let errors = ranks(4, |mut shared| {
                let (own, mut into) = (shared.rank().index(), vec![0; length]);
                let mut ring = |shared: &mut Shared| {
                    let (to, from) = ((own + 1) % 4, (own + 3) % 4);
                    let sent = Message::to(to, own, ElementKind::U8, length).as_half(false);
                    let received = Message::from(from, own, ElementKind::U8, length).as_half(false);
                    shared.pass(Some((sent, &vec![1; length])), Some((received, &mut into)))
                };
                ring(&mut shared).unwrap();
                // Otherwise rank 2 may be lost before another rank has passed its first messages.
                all_have_passed.wait();
                if own == 2 {
                    // As when a process is killed: its connections close.
                    shared.tcp.members.links().fail_silently();
                    return None;
                }
                // A rank that has done without it fails next.
                let error = (0..3).find_map(|_| ring(&mut shared).err()).unwrap();
                let again = ring(&mut shared).unwrap_err();
                assert!(again.to_string().starts_with("rank 2 on "), "{again}");
                Some(error)
            });
            for error in errors.into_iter().flatten() {
                assert!(matches!(&error, CollectiveError::Lost { rank: 2, .. }), "{error}");
            }
        }
    }

    #[test]
    fn the_reason_why_memory_is_not_shared_is_the_same_on_all_ranks() {
        let reasons = ranks_within(PLENTY, 3, |mut tcp| {
            // A rank other than 0 fails to map the memory.
            let mapped =
                if tcp.rank().index() == 2 { Err("no such file".to_owned()) } else { Ok(()) };
            let reason = mapped.err().unwrap_or_default();
            let reasons = gather_any(&mut tcp, Call::CONNECT, reason.as_bytes()).unwrap();
            first_reason(&reasons)
        });
        assert!(
            reasons
                .iter()
                .all(|reason| reason.as_deref() == Some("rank 2 cannot share memory: no such file"))
        );
    }
}
