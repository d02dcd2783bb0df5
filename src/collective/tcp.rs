//! Ranks connected by TCP, with one connection to each peer.
//!
//! For a small sum, every rank sends its numbers to all others and adds in rank order. For a large
//! sum, every rank sends each other rank the part that the other adds, also in rank order, and then
//! sends its own part of the sum to all. Either way, all ranks get the same bits.

mod handshake;
mod members;
mod mesh;
mod pair;
mod peer;
mod seal;
#[cfg(test)]
pub(super) mod tests;
mod transfer;

use std::io;
use std::ops::Range;
use std::time::Duration;

use super::builder::Timeouts;
use super::call::{Call, Reduce};
use super::element::ElementKind;
use super::error::{CollectiveError, Result};
use super::numbers::{Numbers, Scratch};
use super::reduction::in_rank_order;
use super::transport::{Part, Received, Sent, Transport, gather_any};
use crate::value::rank::Rank;
use transfer::Links;

pub(super) use members::Members;
pub(super) use mesh::MeetingPoint;
pub use pair::{End, Meeting, Pair};
pub(super) use peer::Progress;
pub(super) use transfer::Exchange;

/// Largest sum that is exchanged directly, in bytes sent by one rank.
const DIRECT: usize = 512 * 1024;
/// Largest sum that is exchanged directly, in bytes sent to one other rank.
const DIRECT_EACH: usize = 64 * 1024;
/// The most bytes of a large call that one rank sends or adds at a time. A megabyte stays in the
/// processor's cache.
pub(super) const PIECE: usize = 1 << 20;

/// Connects the ranks of a group, such as a split one, over the fastest transport.
pub(super) type Join = fn(Tcp) -> Result<Box<dyn Transport>>;

/// All ranks of a job, or a group of them, connected by TCP.
#[derive(Debug)]
pub struct Tcp {
    pub(super) rank: Rank,
    pub(super) members: Members,
    /// The numbers of other ranks.
    others: Scratch,
    sum: Scratch,
    pub(super) rejected: u64,
    /// Why no better transport was chosen.
    why: String,
    /// Connects groups that are split from this one.
    join: Join,
}

impl Tcp {
    /// Connects all ranks, which meet at `place`. They still wait for each other as long as while
    /// connecting, until [`Transport::set_timeout`] ends that.
    ///
    /// # Errors
    /// If the ranks do not meet, or one cannot be reached.
    pub(super) fn connect(
        rank: Rank,
        place: &MeetingPoint,
        timeouts: Timeouts,
    ) -> Result<Tcp, CollectiveError> {
        let (peers, rejected) = mesh::connect(rank, place, timeouts)?;
        let links = Links::new(rank.index(), peers, timeouts.connecting);
        let members = Members::world(links.map_err(CollectiveError::Socket)?);
        Ok(Tcp { rejected, ..Tcp::of(rank, members) })
    }

    /// The ranks of a group, which are threads of this process.
    pub(super) fn of_this_process(first: Rank, timeout: Duration) -> io::Result<Vec<Tcp>> {
        let rank = |(rank, peers): (Rank, Vec<_>)| {
            let links = Links::new(rank.index(), peers, timeout)?;
            Ok(Tcp::of(rank, Members::world(links)))
        };
        let all = mesh::of_this_process(first.size() as usize)?;
        first.all().zip(all).map(rank).collect()
    }

    /// Sets the reason why no better transport was chosen.
    pub(super) fn because(self, why: impl Into<String>) -> Tcp {
        Tcp { why: why.into(), ..self }
    }

    /// The same ranks, whose split groups `join` connects.
    pub(super) fn joined_by(self, join: Join) -> Tcp {
        Tcp { join, ..self }
    }

    /// The same ranks, which make the calls of all of `group` together with others.
    pub(super) fn within(self, group: &Tcp) -> Tcp {
        Tcp { members: self.members.within(&group.members), ..self }
    }

    fn of(rank: Rank, members: Members) -> Tcp {
        let (others, sum, why) = (Scratch::default(), Scratch::default(), String::new());
        Tcp { rank, members, others, sum, rejected: 0, why, join: |tcp| Ok(Box::new(tcp)) }
    }

    fn size(&self) -> usize {
        self.members.size()
    }

    fn own(&self) -> usize {
        self.rank.index() as usize
    }

    /// Every rank sends each other rank that rank's part of `values`, of which `parts` has the byte
    /// ranges, and reduces its own part into `into`.
    fn reduce_parts(
        &mut self,
        Reduce { call, by }: Reduce,
        kind: ElementKind,
        values: &[u8],
        parts: &[Range<usize>],
        into: &mut [u8],
    ) -> Result<()> {
        let (size, own) = (self.size(), self.own());
        let mine = parts[own].clone();
        let others = self.others.bytes(size * mine.len());
        let mut rest = &mut *others;
        let exchange = parts.iter().map(|part| {
            let row = rest.split_off_mut(..mine.len()).unwrap_or_default();
            Exchange::both(&values[part.clone()], row)
        });
        self.members.transfer(call, exchange.collect())?;
        let row = |rank| match rank == own {
            true => &values[mine.clone()],
            false => &others[rank * mine.len()..(rank + 1) * mine.len()],
        };
        in_rank_order(kind, by, (0..size).map(row), into);
        Ok(())
    }

    /// Reduces block by block, so that a block stays in the processor's cache. Of few numbers, every
    /// rank sends all to every other rank, or to the root. Of many, each rank adds its part and sends
    /// it to all, or to the root.
    fn reduce_blocks(
        &mut self,
        reduce: Reduce,
        numbers: &mut Numbers<'_>,
        are_few: bool,
    ) -> Result<()> {
        let (size, own, kind) = (self.size(), self.own(), numbers.kind());
        let is_due = |rank| reduce.call.concerns(rank);
        let mut sum = std::mem::take(&mut self.sum);
        for mut block in numbers.blocks(PIECE * size) {
            let all = |rank| 0..if is_due(rank) { block.length() } else { 0 };
            let parts = if are_few { (0..size).map(all).collect() } else { block.ranges(size) };
            let mine = parts[own].clone();
            let into = sum.bytes(mine.len());
            self.reduce_parts(reduce, kind, block.bytes(), &parts, into)?;
            if !are_few {
                let parts = block.parts(size).into_iter().enumerate();
                let exchange = parts.map(|(rank, part)| Exchange {
                    send: is_due(rank).then_some(&*into),
                    receive: is_due(own).then_some(part),
                    ..Exchange::default()
                });
                self.members.transfer(reduce.call, exchange.collect())?;
            }
            if is_due(own) {
                block.bytes()[mine].copy_from_slice(into);
            }
        }
        self.sum = sum;
        Ok(())
    }

    /// What the transport is called, and why no better one was chosen if there is a reason to report.
    pub(super) fn described(&self, transport: &str) -> String {
        let why = &self.why;
        if why.is_empty() { transport.to_owned() } else { format!("{transport} ({why})") }
    }

    /// Splits off the ranks of this rank's color.
    pub(super) fn part(&mut self, color: u32, key: u32) -> Result<Tcp> {
        let all = gather_any(self, Call::SPLIT, &Part::request(color, key))?;
        let part = Part::of(self.own(), &all).map_err(|rank| self.members.unreadable(rank))?;
        let members = self.members.part(&part.members, color);
        Ok(Tcp::of(part.rank, members).because(self.why.clone()).joined_by(self.join))
    }
}

impl Transport for Tcp {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn describe(&self) -> String {
        self.described("TCP")
    }

    fn tcp(&self) -> Option<&Tcp> {
        Some(self)
    }

    fn note(&mut self, made: u32) {
        self.members.note(made);
    }

    /// Reduces in the way that is faster for as many numbers.
    fn reduce(&mut self, reduce: Reduce, mut numbers: Numbers<'_>) -> Result<()> {
        let (bytes, others) = (numbers.length(), self.size() - 1);
        if others == 0 {
            return self.meet(reduce.call);
        }
        let are_few = bytes <= DIRECT_EACH && bytes * others <= DIRECT;
        self.reduce_blocks(reduce, &mut numbers, are_few)
    }

    fn reduce_scatter(&mut self, reduce: Reduce, values: &[u8], part: Numbers<'_>) -> Result<()> {
        let (kind, count) = (part.kind(), values.len() / part.kind().size());
        let parts = kind.ranges(count, self.size());
        self.reduce_parts(reduce, kind, values, &parts, part.into_bytes())
    }

    /// Gathers piece by piece.
    fn gather(&mut self, call: Call, bytes: &[u8], into: &mut [&mut [u8]]) -> Result<()> {
        let longest = into.iter().map(|into| into.len()).max().unwrap_or(0).max(bytes.len());
        for from in (0..longest.max(1)).step_by(PIECE) {
            let piece = |length: usize| from.min(length)..from.saturating_add(PIECE).min(length);
            let bytes = &bytes[piece(bytes.len())];
            let exchange = into.iter_mut().enumerate().map(|(rank, into)| {
                let send = if call.concerns(rank) { bytes } else { &[] };
                let piece = piece(into.len());
                let receive = &mut into[piece];
                // All ranks hear from all others first: another root, or another call, must be an
                // error on every rank. Then they hear from those with more.
                Exchange {
                    send: Some(send).filter(|send| from == 0 || !send.is_empty()),
                    receive: Some(receive).filter(|receive| from == 0 || !receive.is_empty()),
                    pair: None,
                }
            });
            self.members.transfer(call, exchange.collect())?;
        }
        Ok(())
    }

    fn scatter(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()> {
        let part = |rank| parts.get(rank).copied().unwrap_or_default();
        let exchange =
            into.iter_mut().enumerate().map(|(rank, into)| Exchange::both(part(rank), into));
        self.members.transfer(call, exchange.collect())
    }

    fn scatter_any(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<bool> {
        self.scatter(call, parts, into).map(|()| true)
    }

    fn pass(&mut self, send: Sent<'_>, receive: Received<'_>) -> Result<()> {
        self.members.pass(send, receive, None)
    }

    fn next_message(&mut self, from: u32, longest: Duration) -> Result<Call> {
        self.members.next_message(from as usize, longest)
    }

    fn has_message(&mut self, from: u32) -> Result<bool> {
        self.members.has_message(from as usize)
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        let exchange = (0..self.size()).map(|_| Exchange::both(&[], &mut []));
        self.members.transfer(call, exchange.collect())
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        let part = self.part(color, key)?;
        // All ranks have entered the split. If one of another color fails, the next call says so.
        self.members.links().is_joining = true;
        let joined = (self.join)(part);
        self.members.links().is_joining = false;
        joined
    }
}
