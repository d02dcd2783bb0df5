//! Ranks on several hosts, some of which have several ranks.
//!
//! An all-reduce combines numbers in rank order, as over the other transports. The first host adds
//! up its ranks' numbers, the next host adds its ranks' numbers to that sum, and so on. The last
//! host sends the result to all. Only one rank of each host sends, and it sends the host's sum
//! once, so hosts exchange much less than if every rank sent to every other. Numbers are sent in
//! blocks, so that all hosts are busy. All other calls go over TCP from rank to rank.

#[cfg(test)]
pub(super) mod tests;

use super::call::Call;
use super::element::{ElementKind, Numbers, Reduction, Scratch, in_rank_order};
use super::error::CollectiveError;
use super::hosts;
use super::shared::{Shared, slot_length};
use super::tcp::Tcp;
use super::transport::Transport;
use crate::value::rank::Rank;

/// The most bytes that hosts pass on at a time.
const BLOCK: usize = 256 * 1024;

/// All ranks of a group.
pub(super) struct TwoLevel {
    world: Tcp,
    /// The ranks of this host; `None` if this rank is alone on it.
    host: Option<Shared>,
    /// The first ranks of all hosts; `None` if this rank is not one of them.
    firsts: Option<Tcp>,
    /// This host's index among all hosts, in rank order.
    place: usize,
    hosts: usize,
    /// Bytes that hosts pass on at a time. They fit in one round on every host.
    block: usize,
    /// The sum of the hosts before this one, and the sum that includes this host.
    before: Scratch,
    sum: Scratch,
}

impl TwoLevel {
    /// The ranks of each host must be consecutive in `world`. `largest` is the largest number of
    /// ranks on a host.
    pub(super) fn new(
        world: Tcp,
        host: Option<Shared>,
        firsts: Option<Tcp>,
        place: usize,
        hosts: usize,
        largest: usize,
    ) -> TwoLevel {
        let block = BLOCK.min(slot_length(largest));
        TwoLevel {
            world,
            host,
            firsts,
            place,
            hosts,
            block,
            before: Scratch::default(),
            sum: Scratch::default(),
        }
    }

    /// Returns once every rank has made this call.
    fn barrier_of(&mut self, call: Call) -> Result<(), CollectiveError> {
        self.meet(call)?;
        self.world.barrier_of(call)
    }

    /// Adds this host's numbers of a block to the sum of the hosts before it.
    fn add(
        &mut self,
        call: Call,
        kind: ElementKind,
        by: Reduction,
        values: &[u8],
    ) -> Result<(), CollectiveError> {
        let rows = match &mut self.host {
            Some(host) => host.show(call, values)?,
            None => vec![values],
        };
        if self.firsts.is_some() {
            let before = (self.place > 0).then(|| &*self.before.bytes(values.len()));
            in_rank_order(kind, by, before.into_iter().chain(rows), self.sum.bytes(values.len()));
        }
        Ok(())
    }

    /// Sends the block that this host has added to. Receives a block from the host before, and a
    /// complete one from the last.
    fn exchange(
        &mut self,
        call: Call,
        added: usize,
        before: usize,
        complete: Option<&mut [u8]>,
    ) -> Result<(), CollectiveError> {
        let (place, last) = (self.place, self.hosts - 1);
        let Some(firsts) = &mut self.firsts else { return Ok(()) };
        let sum = &*self.sum.bytes(added);
        let next = |to: usize| place == last || to == place + 1;
        let mut from = Vec::new();
        if before > 0 && place > 0 {
            from.push((place - 1, self.before.bytes(before)));
        }
        from.extend(complete.filter(|_| place < last).map(|complete| (last, complete)));
        firsts.exchange(call, |to| (added > 0 && next(to)).then_some(sum), &mut from)
    }

    /// Meets the other ranks of this host first, so that a rank that makes another call is named.
    fn meet(&mut self, call: Call) -> Result<(), CollectiveError> {
        self.host.as_mut().map_or(Ok(()), |host| host.meet(call))
    }
}

impl Transport for TwoLevel {
    fn rank(&self) -> Rank {
        self.world.rank()
    }

    fn describe(&self) -> String {
        let TwoLevel { world, hosts, .. } = self;
        let why = world.why();
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        format!("shared memory on each host and TCP between {hosts} hosts{why}")
    }

    fn all_reduce(
        &mut self,
        mut numbers: Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        let (kind, call) = (numbers.kind(), Call::all_reduce(by, numbers.kind(), numbers.count()));
        let (place, last) = (self.place, self.hosts - 1);
        let mut blocks: Vec<&mut [u8]> = numbers.bytes().chunks_mut(self.block).collect();
        if blocks.is_empty() {
            return self.barrier_of(call);
        }
        let length = |block: Option<usize>, blocks: &[&mut [u8]]| {
            block.and_then(|at| blocks.get(at)).map_or(0, |b| b.len())
        };
        for step in 0..blocks.len() + last {
            // Each host is one step behind the previous host.
            let (own, complete) = (step.checked_sub(place), step.checked_sub(last));
            let before = (step + 1).checked_sub(place);
            let (added, before) = (length(own, &blocks), length(before, &blocks));
            if let Some(values) = own.and_then(|own| blocks.get(own)) {
                self.add(call, kind, by, values)?;
            }
            let complete = complete.and_then(|at| blocks.get_mut(at));
            let Some(values) = complete else {
                self.exchange(call, added, before, None)?;
                continue;
            };
            if place == last && self.firsts.is_some() {
                values.copy_from_slice(self.sum.bytes(values.len()));
            }
            self.exchange(call, added, before, Some(values))?;
            if let Some(host) = &mut self.host {
                host.pass_on(call, values)?;
            }
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        numbers: Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        self.meet(Call::reduce_scatter(by, numbers.kind(), numbers.count()))?;
        self.world.reduce_scatter(numbers, by)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.meet(Call::ALL_GATHER)?;
        self.world.all_gather(bytes)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.meet(Call::all_to_all(parts.first().map_or(0, Vec::len)))?;
        self.world.all_to_all(parts)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        self.meet(Call::broadcast(root))?;
        self.world.broadcast(bytes, root)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.barrier_of(Call::BARRIER)
    }

    fn refuse(&mut self, call: &'static str) -> Result<(), CollectiveError> {
        self.barrier_of(Call::refused(call))
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>, CollectiveError> {
        self.meet(Call::SPLIT)?;
        hosts::join(self.world.part(color, key)?)
    }

    fn bytes_sent(&self) -> Option<u64> {
        let published = self.host.as_ref().map_or(0, Shared::published);
        self.world.bytes_sent().map(|bytes| bytes + published)
    }

    fn rejected(&self) -> u64 {
        self.world.rejected()
    }
}
