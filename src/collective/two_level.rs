//! Ranks of several hosts, with several ranks on some.
//!
//! A sum has three steps: the ranks of each host add up, the hosts' first ranks add the hosts' sums, and each of them
//! passes the result on. So one rank of each host sends its host's share, instead of every rank its own. Everything else
//! goes over TCP from rank to rank.

#[cfg(test)]
mod tests;

use super::call::Call;
use super::element::{Numbers, Reduction};
use super::error::CollectiveError;
use super::hosts;
use super::shared::Shared;
use super::tcp::Tcp;
use super::transport::Transport;
use crate::value::rank::Rank;

/// All ranks of a group.
pub(super) struct TwoLevel {
    world: Tcp,
    /// The ranks of this host; none if this is the only one.
    host: Option<Shared>,
    /// The first ranks of all hosts, on those.
    firsts: Option<Tcp>,
    hosts: usize,
}

impl TwoLevel {
    pub(super) fn new(world: Tcp, host: Option<Shared>, firsts: Option<Tcp>, hosts: usize) -> TwoLevel {
        TwoLevel { world, host, firsts, hosts }
    }

    /// Meets the other ranks of this host first: one that makes another call is named, and does not wait elsewhere.
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

    fn all_reduce(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<(), CollectiveError> {
        if let Some(host) = &mut self.host {
            host.all_reduce(numbers.again(), by)?;
        }
        if let Some(firsts) = &mut self.firsts {
            firsts.all_reduce(numbers.again(), by)?;
        }
        self.host.as_mut().map_or(Ok(()), |host| host.pass_on(&mut numbers, by))
    }

    fn reduce_scatter(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<(), CollectiveError> {
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
        self.meet(Call::BARRIER)?;
        self.world.barrier()
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
