//! The ways in which ranks add the numbers that they see in each other's slots.

use super::{Shared, copy};
use crate::call::Reduce;
use crate::element::ElementKind;
use crate::error::Result;
use crate::numbers::Numbers;
use crate::reduction::{Reduction, in_rank_order};

/// The largest sum that more than two ranks add directly, in bytes of all ranks. In a larger sum,
/// each adds its part. Ranks that compute in parts, reduce in two steps or do neither may meet in
/// one call, so that all choose by this limit.
const DIRECT: usize = 128 * 1024;
/// Bytes that are added at a time. They stay in the L1 cache while several ranks' numbers are
/// added.
const BLOCK: usize = 8 * 1024;

impl Shared {
    /// Every rank, or the root alone, reads the numbers of all others.
    pub(super) fn reduce_directly(
        &mut self,
        reduce: Reduce,
        numbers: &mut Numbers<'_>,
    ) -> Result<()> {
        let Reduce { call, by } = reduce;
        for mut chunk in numbers.blocks(self.memory.slot()) {
            self.round(call, |slot, _| copy(slot, chunk.bytes()))?;
            if call.concerns(self.memory.own()) {
                self.add_up(by, chunk)?;
            }
        }
        Ok(())
    }

    /// Whether every rank reads as many bytes of all others, rather than the parts of a sum.
    pub(super) fn is_direct(&self, bytes: usize) -> bool {
        let ranks = self.memory.ranks();
        ranks == 2 || bytes * ranks <= DIRECT
    }

    /// Reduces the numbers of all ranks, which are in their slots, into those of this rank.
    pub(super) fn add_up(&mut self, by: Reduction, numbers: Numbers<'_>) -> Result<()> {
        let (ranks, own) = (self.memory.ranks(), self.memory.own());
        let (slots, kind, values) = (self.slots()?, numbers.kind(), numbers.into_bytes());
        match ranks {
            2 if kind.is_done_in_pairs(by) => {
                kind.combine(by, values, &slots.of(1 - own)[..values.len()]);
            }
            _ => add_blocks(kind, by, ranks, |rank| slots.of(rank), 0, values),
        }
        Ok(())
    }

    /// Computes in the slot, reduces what all ranks have completed while they compute the rest, and
    /// publishes the slot. Returns how many bytes are reduced.
    pub(super) fn compute_and_publish(
        &mut self,
        Reduce { call, by }: Reduce,
        numbers: &mut Numbers<'_>,
        part: usize,
        compute: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<usize> {
        let (ranks, kind) = (self.memory.ranks(), numbers.kind());
        let values = numbers.bytes();
        self.tcp.members.begin(call)?;
        let mut reduced = 0;
        for start in (0..values.len()).step_by(part) {
            let length = part.min(values.len() - start);
            let members = &self.tcp.members;
            let (rest, _) = self.memory.next().map_err(|rank| members.late(rank))?;
            compute(start, &mut rest[..length]);
            self.memory.complete(length);
            if start + length == values.len() {
                // Publish first: another rank may already wait.
                break;
            }
            let completed = self.memory.completed();
            // Another rank may make another call, which is noticed at the end.
            let until = completed.length / kind.size() * kind.size();
            if until > reduced {
                let into = &mut values[reduced..until];
                add_blocks(kind, by, ranks, |rank| completed.of(rank), reduced, into);
                reduced = until;
            }
        }
        self.published += values.len() as u64;
        self.memory.publish(call);
        Ok(reduced)
    }

    /// Reduces the numbers of the published round, but for the first `reduced` bytes.
    pub(super) fn reduce_rest(
        &mut self,
        Reduce { call, by }: Reduce,
        numbers: &mut Numbers<'_>,
        reduced: usize,
    ) -> Result<()> {
        self.wait_for_others(call)?;
        let (ranks, kind) = (self.memory.ranks(), numbers.kind());
        let (slots, rest) = (self.slots()?, &mut numbers.bytes()[reduced..]);
        add_blocks(kind, by, ranks, |rank| slots.of(rank), reduced, rest);
        Ok(())
    }

    /// Every rank adds its part. Every rank, or the root alone, then reads the parts of all others.
    pub(super) fn reduce_by_parts(
        &mut self,
        reduce: Reduce,
        numbers: &mut Numbers<'_>,
    ) -> Result<()> {
        let (ranks, own, kind) = (self.memory.ranks(), self.memory.own(), numbers.kind());
        let Reduce { call, by } = reduce;
        let is_due = call.concerns(own);
        for mut chunk in numbers.blocks(self.memory.slot()) {
            let parts = chunk.ranges(ranks);
            let values = chunk.bytes();
            self.round(call, |slot, _| copy(slot, values))?;
            let mine = parts[own].clone();
            self.round(call, |slot, slots| {
                let sum = &mut slot[..mine.len()];
                add_blocks(kind, by, ranks, |rank| slots.of(rank), mine.start, sum);
                sum.len()
            })?;
            let slots = self.slots()?;
            for (rank, part) in parts.into_iter().enumerate().filter(|_| is_due) {
                let length = part.len();
                values[part].copy_from_slice(&slots.of(rank)[..length]);
            }
        }
        Ok(())
    }
}

/// Reduces the numbers of all ranks that begin at `start` in their slots, in rank order, into
/// `into`.
pub(super) fn add_blocks<'s>(
    kind: ElementKind,
    by: Reduction,
    ranks: usize,
    slot_of: impl Fn(usize) -> &'s [u8],
    start: usize,
    into: &mut [u8],
) {
    for (index, into) in into.chunks_mut(BLOCK).enumerate() {
        let start = start + index * BLOCK;
        let end = start + into.len();
        let row = |rank| &slot_of(rank)[start..end];
        in_rank_order(kind, by, (0..ranks).map(row), into);
    }
}
