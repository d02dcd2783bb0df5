//! Ranks connected by TCP, with one connection to each peer.
//!
//! For a small sum, every rank sends its numbers to all others and adds in rank order. For a large
//! sum, every rank sends each other rank the part that the other adds, also in rank order, and then
//! sends its own part of the sum to all. Either way, all ranks get the same bits.

mod handshake;
mod inbox;
mod members;
mod mesh;
mod peer;
mod seal;
#[cfg(test)]
pub(super) mod tests;
mod transfer;

use std::time::Duration;

use super::call::Call;
use super::element::{Numbers, Reduction, Scratch, in_rank_order};
use super::error::{CollectiveError, ConnectError};
use super::room;
use super::split;
use super::transport::Transport;
use crate::value::rank::Rank;
use inbox::{NoInbox, Parts, Rows, Slot, Slots, Tails};
use transfer::Links;

pub(super) use members::Members;
pub(super) use mesh::MeetingPoint;

/// Largest sum that is exchanged directly, in bytes sent by one rank.
const DIRECT: usize = 512 * 1024;
/// Largest sum that is exchanged directly, in bytes sent to one other rank.
const DIRECT_EACH: usize = 64 * 1024;
/// The most bytes of a large call that one rank sends or adds at a time. A megabyte stays in the
/// processor's cache.
const PIECE: usize = 1 << 20;

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
        let members = Members::world(Links::new(mesh.peers, timeout)?);
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
    fn announce(&mut self, call: Call, length: usize) -> Result<Vec<usize>, CollectiveError> {
        let own = (length as u64).to_le_bytes();
        let mut lengths = vec![0; 8 * self.size()];
        self.members.transfer(
            call,
            |_| Some(&own),
            &mut Rows { bytes: &mut lengths, length: 8 },
        )?;
        if let Some(at) = lengths.chunks_exact_mut(8).nth(self.own()) {
            at.copy_from_slice(&own);
        }
        let lengths = lengths.as_chunks().0.iter().map(|length| u64::from_le_bytes(*length));
        Ok(lengths.map(|length| usize::try_from(length).unwrap_or(usize::MAX)).collect())
    }

    /// Makes room for the bytes that a rank has announced.
    fn make_room(
        &self,
        rank: usize,
        bytes: &mut Vec<u8>,
        length: usize,
    ) -> Result<(), CollectiveError> {
        room::make(bytes, length, self.members.own())
            .map_err(|reason| self.members.give_up_on(rank, reason))
    }

    /// Every rank sends all of its numbers to every other rank.
    fn reduce_directly(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        let (size, own, kind) = (self.size(), self.own(), numbers.kind());
        let values = numbers.bytes();
        let length = values.len();
        let others = self.others.bytes(size * length);
        self.members.transfer(call, |_| Some(values), &mut Rows { bytes: others, length })?;
        let sum = self.sum.bytes(length);
        in_rank_order(kind, by, rows(others, size, length, own, values), sum);
        values.copy_from_slice(sum);
        Ok(())
    }

    /// Every rank sends each other rank that rank's part, and keeps its own part of the sum.
    fn reduce_parts(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        let (size, own, kind) = (self.size(), self.own(), numbers.kind());
        let parts: Vec<_> = (0..size).map(|rank| numbers.part(rank, size)).collect();
        let values = numbers.bytes();
        let length = parts[own].len();
        let others = self.others.bytes(size * length);
        let mut inbox = Rows { bytes: others, length };
        self.members.transfer(call, |to| Some(&values[parts[to].clone()]), &mut inbox)?;
        let sum = self.sum.bytes(length);
        in_rank_order(kind, by, rows(others, size, length, own, &values[parts[own].clone()]), sum);
        values[parts[own].clone()].copy_from_slice(sum);
        Ok(())
    }

    /// Reduces block by block, so that a block stays in the processor's cache. Each rank adds its
    /// part and sends it to all.
    fn reduce_blocks(
        &mut self,
        call: Call,
        numbers: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        let (size, own) = (self.size(), self.own());
        for mut block in numbers.blocks(PIECE * size) {
            self.reduce_parts(call, &mut block, by)?;
            let parts: Vec<_> = (0..size).map(|rank| block.part(rank, size)).collect();
            let sum = self.sum.bytes(parts[own].len());
            self.members.transfer(
                call,
                |_| Some(sum),
                &mut Parts { bytes: block.bytes(), parts: &parts },
            )?;
        }
        Ok(())
    }

    /// Every rank gets the bytes of every rank, as part of `call`.
    pub(super) fn gather(
        &mut self,
        call: Call,
        bytes: &[u8],
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let lengths = self.announce(call, bytes.len())?;
        let (own, longest) = (self.own(), lengths.iter().copied().max().unwrap_or_default());
        let mut all = vec![Vec::new(); lengths.len()];
        for (rank, (bytes, &length)) in all.iter_mut().zip(&lengths).enumerate() {
            self.make_room(rank, bytes, length)?;
        }
        for from in (0..longest).step_by(PIECE) {
            let to = |length: usize| from.saturating_add(PIECE).min(length);
            for (rank, (bytes, &length)) in all.iter_mut().zip(&lengths).enumerate() {
                if rank != own {
                    bytes.resize(to(length), 0);
                }
            }
            let piece = bytes.get(from..to(bytes.len())).filter(|piece| !piece.is_empty());
            self.members.transfer(call, |_| piece, &mut Tails { all: &mut all, from })?;
        }
        if let Some(own) = all.get_mut(own) {
            own.extend_from_slice(bytes);
        }
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

    /// Returns once every rank has made this call.
    pub(super) fn barrier_of(&mut self, call: Call) -> Result<(), CollectiveError> {
        self.members.transfer(call, |_| Some(&[]), &mut Rows { bytes: &mut [], length: 0 })
    }

    /// Sends bytes to some members and receives bytes from others, all at once.
    #[cfg(target_os = "linux")]
    pub(super) fn exchange<'b>(
        &mut self,
        call: Call,
        out: impl Fn(usize) -> Option<&'b [u8]>,
        from: &mut [(usize, &mut [u8])],
    ) -> Result<(), CollectiveError> {
        self.members.transfer(call, out, &mut inbox::Listed(from))
    }

    /// Splits off the ranks of this rank's color.
    pub(super) fn part(&mut self, color: u32, key: u32) -> Result<Tcp, CollectiveError> {
        let all = self.gather(Call::SPLIT, &split::request(color, key))?;
        let members = split::members(color, &all);
        let own = members.iter().position(|&place| place == self.own()).unwrap_or_default();
        // The position is below the size, so this cannot fail.
        let rank = Rank::new(own as u32, members.len() as u32).unwrap_or(Rank::ALONE);
        Ok(Tcp::of(rank, self.members.part(&members, color)).because(self.why.clone()))
    }
}

/// The rows of all ranks in rank order, with `mine` in this rank's place.
fn rows<'r>(
    others: &'r [u8],
    size: usize,
    length: usize,
    own: usize,
    mine: &'r [u8],
) -> impl Iterator<Item = &'r [u8]> {
    (0..size).map(
        move |rank| if rank == own { mine } else { &others[rank * length..(rank + 1) * length] },
    )
}

impl Transport for Tcp {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn describe(&self) -> String {
        if self.why.is_empty() { "TCP".to_owned() } else { format!("TCP ({})", self.why) }
    }

    fn all_reduce(
        &mut self,
        mut numbers: Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        let call = Call::all_reduce(by, numbers.kind(), numbers.count());
        let bytes = numbers.bytes().len();
        match self.size() - 1 {
            0 => Ok(()),
            others if bytes <= DIRECT_EACH && bytes * others <= DIRECT => {
                self.reduce_directly(call, &mut numbers, by)
            }
            _ => self.reduce_blocks(call, &mut numbers, by),
        }
    }

    fn reduce_scatter(
        &mut self,
        mut numbers: Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        let call = Call::reduce_scatter(by, numbers.kind(), numbers.count());
        self.reduce_parts(call, &mut numbers, by)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.gather(Call::ALL_GATHER, bytes)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let part = |rank: usize| parts.get(rank).map_or(&[][..], Vec::as_slice);
        let own = self.own();
        let length = part(own).len();
        let mut all = vec![vec![0; length]; self.size()];
        self.members.transfer(
            Call::all_to_all(length),
            |to| Some(part(to)),
            &mut Slots(&mut all),
        )?;
        if let Some(all) = all.get_mut(own) {
            all.copy_from_slice(part(own));
        }
        Ok(all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        let (call, from, own) = (Call::broadcast(root), root as usize, self.own());
        // The root hears from all ranks too: another root, or another call, must be an error on
        // every rank.
        let lengths = self.announce(call, if from == own { bytes.len() } else { 0 })?;
        if from == own {
            return bytes
                .chunks(PIECE)
                .try_for_each(|piece| self.members.transfer(call, |_| Some(piece), &mut NoInbox));
        }
        let length = lengths.get(from).copied().unwrap_or_default();
        self.make_room(from, bytes, length)?;
        for start in (0..length).step_by(PIECE) {
            bytes.resize(start.saturating_add(PIECE).min(length), 0);
            self.members.transfer(
                call,
                |_| None,
                &mut Slot { from, bytes: &mut bytes[start..] },
            )?;
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.barrier_of(Call::BARRIER)
    }

    fn refuse(&mut self, call: &'static str) -> Result<(), CollectiveError> {
        self.barrier_of(Call::refused(call))
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>, CollectiveError> {
        Ok(Box::new(self.part(color, key)?))
    }

    fn bytes_sent(&self) -> Option<u64> {
        Some(self.members.written())
    }

    fn rejected(&self) -> u64 {
        self.rejected
    }
}
