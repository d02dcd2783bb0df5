//! Ranks joined by TCP, one connection to each peer.
//!
//! For a small sum, every rank sends its numbers to all others and adds in rank order. For a large one, chunks travel a
//! ring and are added up, and the sums travel it again. Both give the same bits on all ranks. In a reduce-scatter of any
//! size, each rank receives only its part, and adds in rank order.

mod group;
mod handshake;
mod mesh;
mod peer;
#[cfg(test)]
mod tests;
mod transfer;

use std::time::Duration;

use bytemuck::{cast_slice, cast_slice_mut};
use mpienv::Rank;

pub use mesh::{ConnectError, MeetingPoint};

use super::{Collective, CollectiveError, split};
use group::Group;
use transfer::{Links, Rows, Slot, Slots};

/// Largest sum that is exchanged directly, in bytes sent by one rank.
const DIRECT: usize = 512 * 1024;
/// Largest sum that is exchanged directly, in bytes sent to one other rank.
const DIRECT_EACH: usize = 64 * 1024;
/// The most bytes that a rank may gather or broadcast.
const LONGEST: usize = 1 << 31;
/// How many numbers travel the ring at a time: a megabyte stays in the processor's cache and needs few turns.
const PIECE: usize = 256 * 1024;

/// All ranks of a job, joined by TCP, or a group of them.
#[derive(Debug)]
pub struct Tcp {
    rank: Rank,
    group: Group,
    /// Buffer for the numbers of other ranks. It grows to the largest sum.
    others: Vec<f32>,
    sum: Vec<f32>,
    rejected: u64,
}

impl Tcp {
    /// Connects all ranks, which meet at `place`. `timeout` limits this and every later wait for a rank.
    ///
    /// # Errors
    /// If the ranks do not meet, or one cannot be reached.
    pub fn connect(rank: Rank, place: &MeetingPoint, timeout: Duration) -> Result<Tcp, ConnectError> {
        let mesh = mesh::connect(rank, place, timeout)?;
        Ok(Tcp { rejected: mesh.rejected, ..Tcp::of(rank, Group::world(Links::new(mesh.peers, timeout)?)) })
    }

    /// How many connections to this rank's ports were not from ranks of this job.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    fn of(rank: Rank, group: Group) -> Tcp {
        Tcp { rank, group, others: Vec::new(), sum: Vec::new(), rejected: 0 }
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn own(&self) -> usize {
        self.rank.index() as usize
    }

    /// Allocates memory for the bytes that a rank has announced.
    fn room(&self, rank: usize, length: &[u8]) -> Result<Vec<u8>, CollectiveError> {
        let length = length.try_into().map_or(0, u64::from_le_bytes);
        match usize::try_from(length) {
            Ok(length) if length <= LONGEST => Ok(vec![0; length]),
            _ => Err(self.group.lost(rank, format!("it announced {length} bytes, more than a rank may send"))),
        }
    }

    /// Every rank sends all its numbers to every other rank.
    fn sum_directly(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let (size, own, length) = (self.size(), self.own(), values.len());
        if self.others.len() < size * length {
            self.others.resize(size * length, 0.0);
        }
        let others = &mut self.others[..size * length];
        let bytes: &[u8] = cast_slice(values);
        let mut rows = Rows { bytes: cast_slice_mut(others), length: bytes.len() };
        self.group.transfer(|_| Some(bytes), &mut rows)?;
        add_in_order(others, own, values, &mut self.sum);
        values.copy_from_slice(&self.sum);
        Ok(())
    }

    /// Every rank sends each other rank its part.
    fn sum_parts(&mut self, values: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        let (size, own) = (self.size(), self.own());
        let length = values.len() / size;
        let part = |rank: usize| &values[rank * length..(rank + 1) * length];
        if self.others.len() < size * length {
            self.others.resize(size * length, 0.0);
        }
        let others = &mut self.others[..size * length];
        let mut rows = Rows { bytes: cast_slice_mut(others), length: size_of_val(part(own)) };
        self.group.transfer(|to| Some(cast_slice(part(to))), &mut rows)?;
        let mut sum = Vec::with_capacity(length);
        add_in_order(others, own, part(own), &mut sum);
        Ok(sum)
    }

    /// Around the ring, block by block, so that sums are forwarded while they are in the processor's cache.
    fn sum_around(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let size = self.size();
        values.chunks_mut(PIECE * size).try_for_each(|block| self.sum_block(block))
    }

    /// First adds up each chunk around the ring, then copies the sums around it.
    fn sum_block(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let (size, own, length) = (self.size(), self.own(), values.len());
        let (right, left) = ((own + 1) % size, (own + size - 1) % size);
        let chunk = |turn: usize| {
            let chunk = turn % size;
            chunk * length / size..(chunk + 1) * length / size
        };
        let longest = length.div_ceil(size);
        if self.others.len() < longest {
            self.others.resize(longest, 0.0);
        }
        for turn in 0..size - 1 {
            let (out, into) = (chunk(own + size - turn), chunk(own + 2 * size - turn - 1));
            let other = &mut self.others[..into.len()];
            let bytes: &[u8] = cast_slice(&values[out]);
            let mut slot = Slot { from: left, bytes: cast_slice_mut(other) };
            self.group.transfer(|to| (to == right).then_some(bytes), &mut slot)?;
            add(&mut values[into], other);
        }
        for turn in 0..size - 1 {
            // Chunks of different turns never overlap.
            let (out, into) = (chunk(own + size + 1 - turn), chunk(own + size - turn));
            let Ok([out, into]) = values.get_disjoint_mut([out, into]) else { continue };
            let bytes: &[u8] = cast_slice(out);
            let mut slot = Slot { from: left, bytes: cast_slice_mut(into) };
            self.group.transfer(|to| (to == right).then_some(bytes), &mut slot)?;
        }
        Ok(())
    }
}

/// Adds one row for each rank in rank order: those of `others`, with `mine` in place of row `own`.
fn add_in_order(others: &[f32], own: usize, mine: &[f32], sum: &mut Vec<f32>) {
    sum.clear();
    // `chunks_exact` needs a length above 0.
    for (rank, row) in others.chunks_exact(mine.len().max(1)).enumerate() {
        let row = if rank == own { mine } else { row };
        if rank == 0 {
            sum.extend(row);
        } else {
            add(sum, row);
        }
    }
}

fn add(sum: &mut [f32], more: &[f32]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

impl Collective for Tcp {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let bytes = size_of_val(values);
        let others = self.size() - 1;
        if others == 0 {
            return Ok(());
        }
        self.group.begin_sum(values.len());
        let done = if bytes <= DIRECT_EACH && bytes * others <= DIRECT {
            self.sum_directly(values)
        } else {
            self.sum_around(values)
        };
        self.group.begin_sum(0);
        done
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let own = (bytes.len() as u64).to_le_bytes();
        let mut lengths = vec![0; 8 * self.size()];
        self.group.transfer(|_| Some(&own), &mut Rows { bytes: &mut lengths, length: 8 })?;
        let mut all = Vec::with_capacity(self.size());
        for (rank, length) in lengths.chunks_exact(8).enumerate() {
            all.push(self.room(rank, length)?);
        }
        self.group.transfer(|_| Some(bytes), &mut Slots(&mut all))?;
        if let Some(own) = all.get_mut(self.own()) {
            *own = bytes.to_vec();
        }
        Ok(all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        let from = root as usize;
        let own = from == self.own();
        let mut length = (bytes.len() as u64).to_le_bytes();
        let sent = length;
        let none = usize::MAX;
        let mut slot = Slot { from: if own { none } else { from }, bytes: &mut length };
        self.group.transfer(|_| own.then_some(&sent[..]), &mut slot)?;
        if own {
            let bytes = &*bytes;
            return self.group.transfer(|_| Some(bytes), &mut Slot { from: none, bytes: &mut [] });
        }
        *bytes = self.room(from, &length)?;
        self.group.transfer(|_| None, &mut Slot { from, bytes })
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.group.transfer(|_| Some(&[]), &mut Rows { bytes: &mut [], length: 0 })
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        let all = self.all_gather(&split::request(color, key))?;
        let members = split::members(color, &all);
        let own = members.iter().position(|&place| place == self.own()).unwrap_or_default();
        // The position is below the size, so this cannot fail.
        let rank = Rank::new(own as u32, members.len() as u32).unwrap_or(Rank::ALONE);
        Ok(Box::new(Tcp::of(rank, self.group.part(&members, color))))
    }

    fn reduce_scatter_sum(&mut self, values: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        self.group.begin_sum(values.len());
        let done = self.sum_parts(values);
        self.group.begin_sum(0);
        done
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let part = |rank: usize| parts.get(rank).map_or(&[][..], Vec::as_slice);
        let own = self.own();
        let mut all = vec![vec![0; part(own).len()]; self.size()];
        self.group.transfer(|to| Some(part(to)), &mut Slots(&mut all))?;
        if let Some(all) = all.get_mut(own) {
            all.copy_from_slice(part(own));
        }
        Ok(all)
    }
}
