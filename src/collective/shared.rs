//! Ranks of one host, connected by shared memory.
//!
//! Every rank copies its numbers into the memory. All ranks read them and add them in rank order,
//! so every rank gets the same bits, which are also those of TCP. The TCP connections stay open:
//! they close when a rank is killed, so that the others can name it.

mod memory;
#[cfg(test)]
mod tests;
mod wait;

use std::os::fd::OwnedFd;

pub(super) use self::memory::slot_length;
use self::memory::{Memory, Offer, Slots};
use super::call::Call;
use super::element::{ElementKind, Numbers, Reduction, in_rank_order};
use super::error::Result;
use super::tcp::{Join, Tcp};
use super::transport::Transport;
use crate::value::printable::printable;
use crate::value::rank::Rank;

/// The largest sum that more than two ranks add directly, in bytes of all ranks. In a larger sum,
/// each adds its part.
const DIRECT: usize = 128 * 1024;
/// Bytes that are added at a time. They stay in the L1 cache while several ranks' numbers are
/// added.
const BLOCK: usize = 8 * 1024;

/// All ranks of a group, on one host.
#[derive(Debug)]
pub(super) struct Shared {
    tcp: Tcp,
    memory: Memory,
    /// Whether every rank has its own core.
    spins: bool,
    /// Bytes that this rank has published.
    published: u64,
    /// Connects split groups.
    join: Join,
}

/// Whether ranks share memory.
pub(super) enum Sharing {
    Memory(Shared),
    Refused { tcp: Tcp, why: String },
}

impl Shared {
    /// Shares memory among the ranks of `tcp`. The outcome is the same on all ranks.
    pub(super) fn share(mut tcp: Tcp, spins: bool, join: Join) -> Result<Sharing> {
        let (ranks, own) = (tcp.rank().size() as usize, tcp.rank().index() as usize);
        let (file, offer) = match (own == 0).then(|| memory::create(ranks)) {
            Some(Ok((file, offer))) => (Some(file), Ok(offer)),
            Some(Err(error)) => (None, Err(error.to_string())),
            None => (None, Err(String::new())),
        };
        // None, which no rank can read, if there is no JSON for it.
        let offer = serde_json::to_vec(&offer).unwrap_or_default();
        let offers = tcp.gather(Call::CONNECT, &offer)?;
        let offer: Result<Offer, String> =
            serde_json::from_slice(&offers[0]).map_err(|_| tcp.members().unreadable(0))?;
        let file = match file {
            Some(file) => Ok(file),
            None => offer
                .and_then(|offer| memory::open(&offer, ranks).map_err(|error| error.to_string())),
        };
        let map = |file: &OwnedFd| Memory::map(file, ranks, own).map_err(|error| error.to_string());
        let mapped = file.as_ref().map_err(Clone::clone).and_then(map);
        let reason = mapped.as_ref().err().map_or("", String::as_str);
        let reasons = tcp.gather(Call::CONNECT, reason.as_bytes())?;
        // Rank 0's file stays open until all others have opened it through /proc.
        drop(file);
        Ok(match (mapped, first_reason(&reasons)) {
            (Ok(memory), None) => {
                Sharing::Memory(Shared { tcp, memory, spins, published: 0, join })
            }
            (Err(why), None) | (_, Some(why)) => Sharing::Refused { tcp, why },
        })
    }

    /// Bytes that this rank has published.
    pub(super) fn published(&self) -> u64 {
        self.published
    }

    /// Publishes this rank's bytes and returns those of all ranks, in rank order.
    pub(super) fn show(&mut self, call: Call, bytes: &[u8]) -> Result<Vec<&[u8]>> {
        self.round(call, |slot, _| copy(slot, bytes))?;
        let ranks = self.memory.ranks();
        let slots = self.slots()?;
        Ok((0..ranks).map(|rank| &slots.of(rank)[..bytes.len()]).collect())
    }

    /// Copies the first rank's bytes to all ranks.
    pub(super) fn pass_on(&mut self, call: Call, bytes: &mut [u8]) -> Result<()> {
        let is_first = self.memory.own() == 0;
        self.round(call, |slot, _| if is_first { copy(slot, bytes) } else { 0 })?;
        if !is_first {
            bytes.copy_from_slice(&self.slots()?.of(0)[..bytes.len()]);
        }
        Ok(())
    }

    /// Runs one round: `fill` gets this rank's slot and the previous round's slots. Returns once
    /// all ranks have published.
    fn round(
        &mut self,
        call: Call,
        fill: impl FnOnce(&mut [u8], Slots<'_>) -> usize,
    ) -> Result<()> {
        let members = self.tcp.members();
        members.begin(call)?;
        let (slot, before) = self.memory.next().map_err(|rank| members.late(rank))?;
        self.published += fill(slot, before) as u64;
        self.complete(call)
    }

    /// Publishes this rank's slot, and waits until all others have published theirs.
    fn complete(&mut self, call: Call) -> Result<()> {
        self.memory.publish(call);
        let own = self.memory.own();
        for rank in (0..self.memory.ranks()).filter(|&rank| rank != own) {
            self.wait_for(rank)?;
            let found = self.memory.call(rank);
            if found != Some(call) {
                return Err(self.tcp.members().differs(rank, found));
            }
        }
        Ok(())
    }

    /// The slots of the completed round.
    fn slots(&mut self) -> Result<Slots<'_>> {
        let members = self.tcp.members();
        self.memory.slots().map_err(|rank| members.late(rank))
    }

    /// Every rank reads the numbers of all others.
    fn reduce_directly(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<()> {
        let kind = numbers.kind();
        for mut chunk in numbers.blocks_or_none(self.memory.slot()) {
            let values = chunk.bytes();
            self.round(call, |slot, _| copy(slot, values))?;
            self.add_up(kind, by, 0, values)?;
        }
        Ok(())
    }

    /// Reduces the numbers of all ranks that begin at `start` in their slots, into this rank's
    /// `values`.
    fn add_up(
        &mut self,
        kind: ElementKind,
        by: Reduction,
        start: usize,
        values: &mut [u8],
    ) -> Result<()> {
        let (ranks, own) = (self.memory.ranks(), self.memory.own());
        let slots = self.slots()?;
        let range = start..start + values.len();
        match ranks {
            2 => kind.combine(by, values, &slots.of(1 - own)[range]),
            _ => add_blocks(kind, by, ranks, slots, start, values),
        }
        Ok(())
    }

    /// Every rank adds its part and then reads the parts of all others.
    fn reduce_by_parts(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<()> {
        let (ranks, own, kind) = (self.memory.ranks(), self.memory.own(), numbers.kind());
        for mut chunk in numbers.blocks_or_none(self.memory.slot()) {
            let parts: Vec<_> = (0..ranks).map(|rank| chunk.part(rank, ranks)).collect();
            let values = chunk.bytes();
            self.round(call, |slot, _| copy(slot, values))?;
            let mine = parts[own].clone();
            self.round(call, |slot, slots| {
                let sum = &mut slot[..mine.len()];
                add_blocks(kind, by, ranks, slots, mine.start, sum);
                sum.len()
            })?;
            let slots = self.slots()?;
            for (rank, part) in parts.into_iter().enumerate() {
                let length = part.len();
                values[part].copy_from_slice(&slots.of(rank)[..length]);
            }
        }
        Ok(())
    }

    /// Every rank gets the bytes of every rank, as part of `call`.
    fn gather(&mut self, call: Call, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (ranks, length) = (self.memory.ranks(), (bytes.len() as u64).to_le_bytes());
        let mut all: Vec<Vec<u8>> = Vec::new();
        let mut lengths = Vec::new();
        let mut sent = 0;
        loop {
            let is_first = all.is_empty();
            self.round(call, |slot, _| {
                // In the first round, the length precedes the bytes.
                let (head, room) = slot.split_at_mut(if is_first { length.len() } else { 0 });
                head.copy_from_slice(&length[..head.len()]);
                let now = room.len().min(bytes.len() - sent);
                sent += now;
                head.len() + copy(room, &bytes[sent - now..sent])
            })?;
            let members = self.tcp.members();
            let slots = self.memory.slots().map_err(|rank| members.late(rank))?;
            for rank in 0..ranks {
                let mut slot = slots.of(rank);
                if let Some((head, rest)) = slot.split_first_chunk().filter(|_| is_first) {
                    let mut bytes = Vec::new();
                    lengths.push(members.reserve(rank, &mut bytes, u64::from_le_bytes(*head))?);
                    all.push(bytes);
                    slot = rest;
                }
                let missing = lengths[rank] - all[rank].len();
                all[rank].extend_from_slice(&slot[..missing.min(slot.len())]);
            }
            if all.iter().zip(&lengths).all(|(bytes, length)| bytes.len() == *length) {
                return Ok(all);
            }
        }
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

/// Reduces the numbers of all ranks that begin at `start` in their slots, in rank order, into
/// `into`.
fn add_blocks(
    kind: ElementKind,
    by: Reduction,
    ranks: usize,
    slots: Slots<'_>,
    start: usize,
    into: &mut [u8],
) {
    for (index, into) in into.chunks_mut(BLOCK).enumerate() {
        let start = start + index * BLOCK;
        let row = |rank| &slots.of(rank)[start..start + into.len()];
        let rows: Vec<&[u8]> = (0..ranks).map(row).collect();
        in_rank_order(kind, by, rows, into);
    }
}

impl Transport for Shared {
    fn rank(&self) -> Rank {
        self.tcp.rank()
    }

    fn describe(&self) -> String {
        let why = self.tcp.why();
        if why.is_empty() { "shared memory".to_owned() } else { format!("shared memory ({why})") }
    }

    fn all_reduce(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        let call = Call::all_reduce(&numbers, by);
        let ranks = self.memory.ranks();
        if ranks == 2 || numbers.bytes().len() * ranks <= DIRECT {
            self.reduce_directly(call, &mut numbers, by)
        } else {
            self.reduce_by_parts(call, &mut numbers, by)
        }
    }

    fn reduce_scatter(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        let call = Call::reduce_scatter(&numbers, by);
        let (ranks, own, kind, slot) =
            (self.memory.ranks(), self.memory.own(), numbers.kind(), self.memory.slot());
        let mine = numbers.part(own, ranks);
        for (index, mut chunk) in numbers.blocks_or_none(slot).enumerate() {
            let (values, at) = (chunk.bytes(), index * slot);
            self.round(call, |slot, _| copy(slot, values))?;
            let start = mine.start.clamp(at, at + values.len()) - at;
            let end = mine.end.clamp(at, at + values.len()) - at;
            self.add_up(kind, by, start, &mut values[start..end])?;
        }
        Ok(())
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather(Call::ALL_GATHER, bytes)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let (ranks, own) = (self.memory.ranks(), self.memory.own());
        let length = parts[own].len();
        let mut all = vec![Vec::with_capacity(length); ranks];
        let share = (self.memory.slot() / ranks).max(1);
        let mut done = 0;
        loop {
            let now = share.min(length - done);
            self.round(Call::all_to_all(length), |slot, _| {
                for (part, room) in parts.iter().zip(slot.chunks_mut(now.max(1))) {
                    copy(room, &part[done..done + now]);
                }
                ranks * now
            })?;
            let slots = self.slots()?;
            for (rank, all) in all.iter_mut().enumerate() {
                all.extend_from_slice(&slots.of(rank)[own * now..(own + 1) * now]);
            }
            done += now;
            if done == length {
                return Ok(all);
            }
        }
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()> {
        let own = if self.rank().index() == root { std::mem::take(bytes) } else { Vec::new() };
        *bytes = self.gather(Call::broadcast(root), &own)?.swap_remove(root as usize);
        Ok(())
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        self.round(call, |_, _| 0)
    }

    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        // The others look at the connections while they wait for this rank's memory.
        self.tcp.abort(code, last_words);
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        // Meet in shared memory first, so that a rank that makes another call is named.
        self.meet(Call::SPLIT)?;
        (self.join)(self.tcp.part(color, key)?)
    }

    fn bytes_sent(&self) -> Option<u64> {
        self.tcp.bytes_sent().map(|bytes| bytes + self.published)
    }

    fn rejected(&self) -> u64 {
        self.tcp.rejected()
    }
}
