//! The ways in which ranks add the numbers that they see in each other's slots.

use std::ops::Range;

use super::{Shared, copy};
use crate::call::Reduce;
use crate::element::ElementKind;
use crate::error::Result;
use crate::numbers::Numbers;
use crate::reduction::{Reduction, in_rank_order};

/// The largest sum that more than two ranks add directly, in bytes of all ranks. In a larger sum,
/// each adds its part. Ranks that compute in parts, reduce in two steps or do neither may meet in
/// one call, so that all choose by this limit. Four ranks on 16 cores add 31,400 bytes of each by
/// parts in half the time.
const DIRECT: usize = 64 * 1024;
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

    /// Computes in the slot, adds what all ranks have completed of this rank's part while they compute
    /// the rest, and publishes the slot. Returns the bytes that are added.
    pub(super) fn compute_and_publish(
        &mut self,
        Reduce { call, by }: Reduce,
        numbers: &mut Numbers<'_>,
        part: usize,
        compute: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<Range<usize>> {
        let (ranks, kind) = (self.memory.ranks(), numbers.kind());
        let parts = numbers.ranges(ranks);
        let values = numbers.bytes();
        let own = match self.is_direct(values.len()) {
            true => 0..values.len(),
            false => parts[self.memory.own()].clone(),
        };
        self.tcp.members.begin(call)?;
        let mut added = own.start;
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
            let until = (completed.length / kind.size() * kind.size()).min(own.end);
            if until > added {
                let into = &mut values[added..until];
                add_blocks(kind, by, ranks, |rank| completed.of(rank), added, into);
                added = until;
            }
        }
        self.published += values.len() as u64;
        self.memory.publish(call);
        Ok(own.start..added)
    }

    /// Reduces the numbers of the published round, but for those that are `added`.
    pub(super) fn add_rest(
        &mut self,
        by: Reduction,
        numbers: &mut Numbers<'_>,
        added: Range<usize>,
    ) -> Result<()> {
        let (ranks, kind) = (self.memory.ranks(), numbers.kind());
        let (slots, rest) = (self.slots()?, &mut numbers.bytes()[added.end..]);
        add_blocks(kind, by, ranks, |rank| slots.of(rank), added.end, rest);
        Ok(())
    }

    /// Every rank adds its part. Every rank, or the root alone, then reads the parts of all others.
    pub(super) fn reduce_by_parts(
        &mut self,
        reduce: Reduce,
        numbers: &mut Numbers<'_>,
    ) -> Result<()> {
        let (ranks, own) = (self.memory.ranks(), self.memory.own());
        for mut chunk in numbers.blocks(self.memory.slot()) {
            let Range { start, end } = chunk.ranges(ranks)[own];
            let values = chunk.bytes();
            self.round(reduce.call, |slot, _| {
                // No other rank reads what this one adds.
                copy(slot, &values[..start]);
                copy(&mut slot[end..], &values[end..]);
                values.len()
            })?;
            self.exchange_parts(reduce, &mut chunk, None)?;
        }
        Ok(())
    }

    /// Adds this rank's part of the published round, and reads the parts of all others. `added` says
    /// what is already added, if this rank's own numbers are in its slot.
    pub(super) fn exchange_parts(
        &mut self,
        Reduce { call, by }: Reduce,
        numbers: &mut Numbers<'_>,
        added: Option<Range<usize>>,
    ) -> Result<()> {
        let (ranks, own, kind) = (self.memory.ranks(), self.memory.own(), numbers.kind());
        let (parts, values) = (numbers.ranges(ranks), numbers.bytes());
        self.round(call, |slot, slots| {
            let mine = parts[own].clone();
            let done = copy(slot, added.clone().map_or(&[], |added| &values[added]));
            let row = |rank| match rank == own && added.is_none() {
                true => &*values,
                false => slots.of(rank),
            };
            add_blocks(kind, by, ranks, row, mine.start + done, &mut slot[done..mine.len()]);
            mine.len()
        })?;
        if call.concerns(own) {
            let (others, slots) = (self.others(), self.slots()?);
            for rank in others.chain([own]) {
                let part = parts[rank].clone();
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
