//! Ranks connected by TCP, with one connection to each peer.
//!
//! For a small sum, every rank sends its numbers to all others and adds in rank order. For a large
//! sum, every rank sends each other rank the part that the other adds, also in rank order, and then
//! sends its own part of the sum to all. Either way, all ranks get the same bits.

mod frame;
mod handshake;
mod members;
mod mesh;
mod peer;
mod seal;
#[cfg(test)]
pub(super) mod tests;
mod transfer;

use std::ops::Range;
use std::time::Duration;

use super::call::Call;
use super::element::{Numbers, Reduction, Scratch, in_rank_order};
use super::error::{ConnectError, Result};
use super::split;
use super::transport::Transport;
use crate::value::rank::Rank;
use transfer::Links;

pub(super) use members::Members;
pub(super) use mesh::MeetingPoint;
pub(super) use transfer::Exchange;

/// Largest sum that is exchanged directly, in bytes sent by one rank.
const DIRECT: usize = 512 * 1024;
/// Largest sum that is exchanged directly, in bytes sent to one other rank.
const DIRECT_EACH: usize = 64 * 1024;
/// The most bytes of a large call that one rank sends or adds at a time. A megabyte stays in the
/// processor's cache.
pub(super) const PIECE: usize = 1 << 20;

/// Connects the ranks of a group, such as a split one, over the fastest transport.
#[cfg(target_os = "linux")]
pub(super) type Join = fn(Tcp) -> Result<Box<dyn Transport>>;

/// All ranks of a job, or a group of them, connected by TCP.
#[derive(Debug)]
pub(super) struct Tcp {
    rank: Rank,
    members: Members,
    /// The numbers of other ranks.
    others: Scratch,
    sum: Scratch,
    rejected: u64,
    /// Why no better transport was chosen.
    why: String,
}

impl Tcp {
    /// Connects all ranks, which meet at `place`. `timeout` limits this call and every later wait
    /// for a rank.
    ///
    /// # Errors
    /// If the ranks do not meet, or one cannot be reached.
    pub(super) fn connect(
        rank: Rank,
        place: &MeetingPoint,
        timeout: Duration,
    ) -> Result<Tcp, ConnectError> {
        let mesh = mesh::connect(rank, place, timeout)?;
        let members = Members::world(Links::new(rank.index(), mesh.peers, timeout)?);
        Ok(Tcp { rejected: mesh.rejected, ..Tcp::of(rank, members) })
    }

    /// Sets the reason why no better transport was chosen.
    pub(super) fn because(self, why: impl Into<String>) -> Tcp {
        Tcp { why: why.into(), ..self }
    }

    fn of(rank: Rank, members: Members) -> Tcp {
        let (others, sum) = (Scratch::default(), Scratch::default());
        Tcp { rank, members, others, sum, rejected: 0, why: String::new() }
    }

    fn size(&self) -> usize {
        self.members.size()
    }

    fn own(&self) -> usize {
        self.rank.index() as usize
    }

    /// Compares the calls of all ranks, each of which announces a length. Returns all lengths.
    fn announce(&mut self, call: Call, length: usize) -> Result<Vec<u64>> {
        let own = (length as u64).to_le_bytes();
        let mut lengths = vec![own; self.size()];
        let exchange = lengths.iter_mut().map(|length| Exchange::both(&own, length));
        self.members.transfer(call, exchange.collect())?;
        Ok(lengths.into_iter().map(u64::from_le_bytes).collect())
    }

    /// Every rank sends all of its numbers to every other rank.
    fn reduce_directly(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<()> {
        let whole = 0..numbers.bytes().len();
        self.reduce_parts(call, numbers, by, &vec![whole; self.size()])
    }

    /// Every rank sends each other rank that rank's part, of which `parts` has the byte ranges, and
    /// keeps its own part of the sum.
    fn reduce_parts(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
        parts: &[Range<usize>],
    ) -> Result<()> {
        let (size, own, kind) = (self.size(), self.own(), numbers.kind());
        let (values, mine) = (numbers.bytes(), parts[own].clone());
        let others = self.others.bytes(size * mine.len());
        let mut rest = &mut *others;
        let exchange = parts.iter().map(|part| {
            let row;
            (row, rest) = std::mem::take(&mut rest).split_at_mut(mine.len());
            Exchange::both(&values[part.clone()], row)
        });
        self.members.transfer(call, exchange.collect())?;
        let sum = self.sum.bytes(mine.len());
        let row = |rank| match rank == own {
            true => &values[mine.clone()],
            false => &others[rank * mine.len()..(rank + 1) * mine.len()],
        };
        in_rank_order(kind, by, (0..size).map(row), sum);
        values[mine].copy_from_slice(sum);
        Ok(())
    }

    /// Reduces block by block, so that a block stays in the processor's cache. Each rank adds its
    /// part and sends it to all.
    fn reduce_blocks(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<()> {
        let (size, own) = (self.size(), self.own());
        for mut block in numbers.blocks(PIECE * size) {
            let parts = block.ranges(size);
            self.reduce_parts(call, &mut block, by, &parts)?;
            let sum = self.sum.bytes(parts[own].len());
            let exchange = block.parts(size).into_iter().map(|part| Exchange::both(sum, part));
            self.members.transfer(call, exchange.collect())?;
        }
        Ok(())
    }

    /// Every rank gets the bytes of every rank, as part of `call`.
    pub(super) fn gather(&mut self, call: Call, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let announced = self.announce(call, bytes.len())?;
        let mut all = vec![Vec::new(); announced.len()];
        let mut lengths = Vec::new();
        for (rank, announced) in announced.into_iter().enumerate() {
            lengths.push(self.members.reserve(rank, &mut all[rank], announced)?);
        }
        let (own, longest) = (self.own(), lengths.iter().copied().max().unwrap_or_default());
        for from in (0..longest).step_by(PIECE) {
            let to = |length: usize| from.saturating_add(PIECE).min(length);
            let send = bytes.get(from..to(bytes.len())).filter(|piece| !piece.is_empty());
            let mut exchange = Vec::new();
            for (rank, (bytes, &length)) in all.iter_mut().zip(&lengths).enumerate() {
                if rank != own {
                    bytes.resize(to(length), 0);
                }
                // Nothing from a rank that has no more.
                let receive = bytes.get_mut(from..).filter(|piece| !piece.is_empty());
                exchange.push(Exchange { send, receive });
            }
            self.members.transfer(call, exchange)?;
        }
        all[own].extend_from_slice(bytes);
        Ok(all)
    }

    /// The members, which notice lost ranks for a transport that waits for ranks by other means.
    #[cfg(target_os = "linux")]
    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// Why no better transport was chosen; empty if there is no reason to report.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Sends bytes to some members and receives bytes from others, all at once.
    #[cfg(target_os = "linux")]
    pub(super) fn exchange(&mut self, call: Call, by_place: Vec<Exchange<'_>>) -> Result<()> {
        self.members.transfer(call, by_place)
    }

    /// Splits off the ranks of this rank's color.
    pub(super) fn part(&mut self, color: u32, key: u32) -> Result<Tcp> {
        let all = self.gather(Call::SPLIT, &split::request(color, key))?;
        let part = split::part(self.own(), &all).map_err(|rank| self.members.unreadable(rank))?;
        let members = self.members.part(&part.members, color);
        Ok(Tcp::of(part.rank, members).because(self.why.clone()))
    }
}

impl Transport for Tcp {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn describe(&self) -> String {
        if self.why.is_empty() { "TCP".to_owned() } else { format!("TCP ({})", self.why) }
    }

    fn all_reduce(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        let call = Call::all_reduce(&numbers, by);
        let bytes = numbers.bytes().len();
        match self.size() - 1 {
            0 => Ok(()),
            others if bytes <= DIRECT_EACH && bytes * others <= DIRECT => {
                self.reduce_directly(call, &mut numbers, by)
            }
            _ => self.reduce_blocks(call, &mut numbers, by),
        }
    }

    fn reduce_scatter(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        let call = Call::reduce_scatter(&numbers, by);
        let parts = numbers.ranges(self.size());
        self.reduce_parts(call, &mut numbers, by, &parts)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather(Call::ALL_GATHER, bytes)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        // This rank keeps its own part; the bytes of all others are overwritten.
        let mut all = vec![parts[self.own()].clone(); self.size()];
        let call = Call::all_to_all(all[0].len());
        let exchange = parts.iter().zip(&mut all).map(|(own, part)| Exchange::both(own, part));
        self.members.transfer(call, exchange.collect())?;
        Ok(all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()> {
        // The root hears from all ranks too: another root, or another call, must be an error on
        // every rank.
        let own = if self.rank.index() == root { std::mem::take(bytes) } else { Vec::new() };
        *bytes = self.gather(Call::broadcast(root), &own)?.swap_remove(root as usize);
        Ok(())
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        let exchange = (0..self.size()).map(|_| Exchange::both(&[], &mut []));
        self.members.transfer(call, exchange.collect())
    }

    fn abort(&mut self, code: u8, _last_words: &mut dyn FnMut()) {
        self.members.abort(code);
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        Ok(Box::new(self.part(color, key)?))
    }

    fn bytes_sent(&self) -> Option<u64> {
        Some(self.members.written())
    }

    fn rejected(&self) -> u64 {
        self.rejected
    }
}
