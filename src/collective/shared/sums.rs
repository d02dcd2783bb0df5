//! The ways in which ranks add the numbers that they see in each other's slots.

use std::ops::Range;

use super::{Shared, copy};
use crate::call::{Call, Reduce};
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
    /// Publishes this rank's numbers, but for those that no other rank reads.
    pub(super) fn publish_numbers(&mut self, call: Call, numbers: &mut Numbers<'_>) -> Result<()> {
        let (own, values) = (self.own_part(numbers), numbers.bytes());
        self.publish(call, |slot, _| {
            let Some(Range { start, end }) = own else { return copy(slot, values) };
            copy(slot, &values[..start]) + copy(&mut slot[end..], &values[end..])
        })
    }

    /// Reduces the published numbers of all ranks into those of this rank, or of the root alone.
    /// `added` says what is already reduced, if this rank's numbers are only in its slot.
    pub(super) fn reduce_published(
        &mut self,
        reduce: Reduce,
        numbers: &mut Numbers<'_>,
        added: Option<Range<usize>>,
    ) -> Result<()> {
        if self.own_part(numbers).is_some() {
            return self.exchange_parts(reduce, numbers, added);
        }
        let (ranks, own, Reduce { call, by }) = (self.memory.ranks(), self.memory.own(), reduce);
        let (slots, kind, values) = (self.slots()?, numbers.kind(), numbers.bytes());
        match added {
            _ if !call.concerns(own) => {}
            None if ranks == 2 && kind.is_done_in_pairs(by) => {
                kind.combine(by, values, &slots.of(1 - own)[..values.len()]);
            }
            _ => {
                let done = added.map_or(0, |added| added.end);
                add_blocks(kind, by, ranks, |rank| slots.of(rank), done, &mut values[done..]);
            }
        }
        Ok(())
    }

    /// The bytes that this rank alone adds; `None` if every rank adds all.
    fn own_part(&self, numbers: &Numbers<'_>) -> Option<Range<usize>> {
        let ranks = self.memory.ranks();
        let is_direct = ranks == 2 || numbers.length() * ranks <= DIRECT;
        (!is_direct).then(|| numbers.kind().part(numbers.count(), self.memory.own(), ranks))
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
        let own = self.own_part(numbers).unwrap_or(0..numbers.length());
        let values = numbers.bytes();
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

    /// Adds this rank's part. Every rank, or the root alone, then reads the parts of all others.
    fn exchange_parts(
        &mut self,
        Reduce { call, by }: Reduce,
        numbers: &mut Numbers<'_>,
        added: Option<Range<usize>>,
    ) -> Result<()> {
        let (ranks, own, kind) = (self.memory.ranks(), self.memory.own(), numbers.kind());
        let count = numbers.count();
        let (part_of, values) = (|rank| kind.part(count, rank, ranks), numbers.bytes());
        self.round(call, |slot, slots| {
            let Range { start, end } = part_of(own);
            let done = added.as_ref().map_or(0, |added| copy(slot, &values[added.clone()]));
            let row = |rank| match rank == own && added.is_none() {
                true => &*values,
                false => slots.of(rank),
            };
            let sum = &mut slot[..end - start];
            add_blocks(kind, by, ranks, row, start + done, &mut sum[done..]);
            sum.len()
        })?;
        if call.concerns(own) {
            let (others, slots) = (self.others(), self.slots()?);
            for rank in others.chain([own]) {
                let into = &mut values[part_of(rank)];
                into.copy_from_slice(&slots.of(rank)[..into.len()]);
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
