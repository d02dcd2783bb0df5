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
use super::error::Result;
use super::shared::{Shared, slot_length};
use super::tcp::{Exchange, Join, Tcp};
use super::transport::Transport;
use crate::value::rank::Rank;

/// The most bytes that hosts pass on at a time.
const BLOCK: usize = 256 * 1024;

/// The place of this rank's host among all hosts.
pub(super) struct Layout {
    /// The host's index, in rank order.
    pub(super) place: usize,
    pub(super) hosts: usize,
    /// The largest number of ranks on a host.
    pub(super) largest: usize,
}

/// All ranks of a group.
pub(super) struct TwoLevel {
    world: Tcp,
    /// The ranks of this host; `None` if this rank is alone on it.
    host: Option<Shared>,
    /// The first ranks of all hosts; `None` if this rank is not one of them.
    firsts: Option<Tcp>,
    layout: Layout,
    /// Bytes that hosts pass on at a time. They fit in one round on every host.
    block: usize,
    /// The sum of the hosts before this one, and the sum that includes this host.
    before: Scratch,
    sum: Scratch,
    /// Connects split groups.
    join: Join,
}

impl TwoLevel {
    /// The ranks of each host must be consecutive in `world`: then adding host by host is adding in
    /// rank order.
    pub(super) fn new(
        world: Tcp,
        host: Option<Shared>,
        firsts: Option<Tcp>,
        layout: Layout,
        join: Join,
    ) -> TwoLevel {
        let block = BLOCK.min(slot_length(layout.largest));
        let (before, sum) = (Scratch::default(), Scratch::default());
        TwoLevel { world, host, firsts, layout, block, before, sum, join }
    }

    /// Adds this host's numbers of a block to the sum of the hosts before it.
    fn add(&mut self, call: Call, kind: ElementKind, by: Reduction, values: &[u8]) -> Result<()> {
        let rows = match &mut self.host {
            Some(host) => host.show(call, values)?,
            None => vec![values],
        };
        if self.firsts.is_some() {
            let before = (self.layout.place > 0).then(|| &*self.before.bytes(values.len()));
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
    ) -> Result<()> {
        let Layout { place, hosts, .. } = self.layout;
        let Some(firsts) = &mut self.firsts else { return Ok(()) };
        let (sum, last) = (&*self.sum.bytes(added), hosts - 1);
        let is_next = |to: usize| place == last || to == place + 1;
        let send = |to| (added > 0 && is_next(to)).then_some(sum);
        let mut by_place: Vec<_> =
            (0..hosts).map(|to| Exchange { send: send(to), receive: None }).collect();
        if before > 0 && place > 0 {
            by_place[place - 1].receive = Some(self.before.bytes(before));
        }
        if place < last {
            by_place[last].receive = complete;
        }
        firsts.exchange(call, by_place)
    }

    /// Meets the other ranks of this host first, so that a rank that makes another call is named.
    fn meet_host(&mut self, call: Call) -> Result<()> {
        self.host.as_mut().map_or(Ok(()), |host| host.meet(call))
    }
}

impl Transport for TwoLevel {
    fn rank(&self) -> Rank {
        self.world.rank()
    }

    fn describe(&self) -> String {
        let TwoLevel { world, layout: Layout { hosts, .. }, .. } = self;
        let why = world.why();
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        format!("shared memory on each host and TCP between {hosts} hosts{why}")
    }

    fn all_reduce(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        let (kind, call) = (numbers.kind(), Call::all_reduce(&numbers, by));
        let (place, last) = (self.layout.place, self.layout.hosts - 1);
        let mut blocks: Vec<&mut [u8]> = numbers.bytes().chunks_mut(self.block).collect();
        if blocks.is_empty() {
            return self.meet(call);
        }
        // A pipeline: each host is one step behind the previous one, so that after the first steps
        // all hosts add and all links carry a block. The block that is complete in a step is the
        // one that the last host adds to, and every host passes it on to its ranks at once.
        for step in 0..blocks.len() + last {
            let length = |block: Option<usize>| {
                block.and_then(|index| blocks.get(index)).map_or(0, |block| block.len())
            };
            let added = length(step.checked_sub(place));
            let before = length((step + 1).checked_sub(place));
            if added > 0 {
                self.add(call, kind, by, blocks[step - place])?;
            }
            let Some(complete) = step.checked_sub(last) else {
                self.exchange(call, added, before, None)?;
                continue;
            };
            let values = &mut *blocks[complete];
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

    fn reduce_scatter(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.meet_host(Call::reduce_scatter(&numbers, by))?;
        self.world.reduce_scatter(numbers, by)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.meet_host(Call::ALL_GATHER)?;
        self.world.all_gather(bytes)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        self.meet_host(Call::all_to_all(parts[self.rank().index() as usize].len()))?;
        self.world.all_to_all(parts)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()> {
        self.meet_host(Call::broadcast(root))?;
        self.world.broadcast(bytes, root)
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        self.meet_host(call)?;
        self.world.meet(call)
    }

    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        self.world.abort(code, last_words);
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        self.meet_host(Call::SPLIT)?;
        (self.join)(self.world.part(color, key)?)
    }

    fn bytes_sent(&self) -> Option<u64> {
        let published = self.host.as_ref().map_or(0, Shared::published);
        self.world.bytes_sent().map(|bytes| bytes + published)
    }

    fn rejected(&self) -> u64 {
        self.world.rejected()
    }
}
