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
    /// After [`Shared::compute_and_publish`], this rank's numbers are only in its slot, and `added`
    /// says which bytes of `numbers` are already those of the sum.
    pub(super) fn reduce_published(
        &mut self,
        reduce: Reduce,
        numbers: &mut Numbers<'_>,
        added: Option<Range<usize>>,
    ) -> Result<()> {
        if self.own_part(numbers).is_some() {
            self.publish_part(reduce, numbers, added)?;
            self.wait_for_others(reduce.call)?;
            return self.read_parts(reduce.call, numbers);
        }
        let (ranks, own, Reduce { call, by }) = (self.memory.ranks(), self.memory.own(), reduce);
        if !call.concerns(own) {
            return Ok(());
        }
        let (slots, kind, values) = (self.slots()?, numbers.kind(), numbers.bytes());
        if added.is_none() && ranks == 2 && kind.is_done_in_pairs(by) {
            kind.combine(by, values, &slots.of(1 - own)[..values.len()]);
            return Ok(());
        }
        let done = added.map_or(0, |added| added.end);
        add_blocks(kind, by, ranks, |rank| slots.of(rank), done, &mut values[done..]);
        Ok(())
    }

    /// The bytes that this rank alone adds; `None` if every rank adds all.
    pub(super) fn own_part(&self, numbers: &Numbers<'_>) -> Option<Range<usize>> {
        let ranks = self.memory.ranks();
        let is_direct = ranks == 2 || numbers.length() * ranks <= DIRECT;
        (!is_direct).then(|| numbers.kind().part(numbers.count(), self.memory.own(), ranks))
    }

    /// Computes in the slot, adds what all ranks have completed of this rank's part while they
    /// compute the rest, and publishes the slot. Returns the bytes that are added.
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

    /// Adds this rank's part of the published numbers, and publishes it. `added` is as in
    /// [`Shared::reduce_published`].
    pub(super) fn publish_part(
        &mut self,
        Reduce { call, by }: Reduce,
        numbers: &mut Numbers<'_>,
        added: Option<Range<usize>>,
    ) -> Result<()> {
        let (ranks, own, kind) = (self.memory.ranks(), self.memory.own(), numbers.kind());
        let Range { start, end } = kind.part(numbers.count(), own, ranks);
        let values = numbers.bytes();
        self.publish(call, |slot, slots| {
            let done = added.as_ref().map_or(0, |added| copy(slot, &values[added.clone()]));
            let row = |rank| match rank == own && added.is_none() {
                true => &*values,
                false => slots.of(rank),
            };
            let sum = &mut slot[..end - start];
            add_blocks(kind, by, ranks, row, start + done, &mut sum[done..]);
            sum.len()
        })
    }

    /// Every rank, or the root alone, reads the published parts of all ranks.
    pub(super) fn read_parts(&mut self, call: Call, numbers: &mut Numbers<'_>) -> Result<()> {
        let (ranks, own, kind) = (self.memory.ranks(), self.memory.own(), numbers.kind());
        if call.concerns(own) {
            let (count, values) = (numbers.count(), numbers.bytes());
            let (others, slots) = (self.others(), self.slots()?);
            for rank in others.chain([own]) {
                let into = &mut values[kind.part(count, rank, ranks)];
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::super::tests::shared;
    use super::*;
    use crate::call::Results;
    use crate::tcp::tests::ranks_within;
    use crate::tests::PLENTY;
    use crate::transport::{Begun, Transport as _};

    #[test]
    fn ranks_meet_in_a_sum_in_one_step_in_two_and_in_parts() {
        let has_one_core = thread::available_parallelism().unwrap().get() == 1;
        // Added by every rank, and by parts.
        for length in [1000, 30_000] {
            let (all, has_waited) = (Barrier::new(3), AtomicBool::new(false));
            let sums = ranks_within(PLENTY, 3, |tcp| {
                let mut shared = shared(tcp, true);
                let sum = Reduce::new(Reduction::Sum, Results::ToAll, ElementKind::F32, length);
                let own = shared.rank().index();
                let brought: Vec<f32> =
                    (0..length).map(|at| (at as u32 * 3 + own) as f32).collect();
                let mut values = brought.clone();
                for turn in 0.. {
                    values.copy_from_slice(&brought);
                    let longest = Duration::from_micros([0, 2_000, 1_000_000][turn / 3 % 3]);
                    let numbers = Numbers::new(&mut values);
                    match (own as usize + turn) % 3 {
                        0 => shared.reduce(sum, numbers),
                        1 => match shared.begin_reduce(sum, numbers, longest).unwrap() {
                            Begun::Waits => {
                                if shared.begun == Some((sum.call, true)) {
                                    has_waited.store(true, Ordering::SeqCst);
                                }
                                shared.end_reduce(sum, Numbers::new(&mut values))
                            }
                            Begun::Done => Ok(()),
                            Begun::Refused => panic!("refused"),
                        },
                        _ => {
                            let mut compute = |at: usize, part: &mut [u8]| {
                                let bytes: &[u8] = bytemuck::cast_slice(&brought);
                                part.copy_from_slice(&bytes[at..][..part.len()]);
                            };
                            // Others may wait for this rank's part meanwhile.
                            let mut rest = || thread::sleep(Duration::from_millis(10));
                            shared.reduce_in_parts(sum, numbers, 4000, &mut compute, &mut rest)
                        }
                    }
                    .unwrap();
                    all.wait();
                    // Until a rank has waited for the others' parts. On one core, none does.
                    if turn > 20
                        && (length == 1000 || has_one_core || has_waited.load(Ordering::SeqCst))
                    {
                        break;
                    }
                }
                values
            });
            let expected: Vec<f32> = (0..length).map(|at| (at as u32 * 9 + 3) as f32).collect();
            assert!(sums.iter().all(|values| *values == expected), "{length} numbers");
        }
    }
}
