//! Ranks on several hosts, some of which have several ranks.
//!
//! An all-reduce combines numbers in rank order, as over the other transports. The first host adds
//! up its ranks' numbers, the next host adds its ranks' numbers to that sum, and so on. The last
//! host sends the result to all. Only one rank of each host sends, and it sends the host's sum
//! once, so hosts exchange much less than if every rank sent to every other. Numbers are sent in
//! blocks, so that all hosts are busy. A message to a rank of the same host goes through memory. All
//! else goes over TCP from rank to rank.

use std::ops::Range;

use super::call::{Call, Difference, Message, Reduce};
use super::element::ElementKind;
use super::error::Result;
use super::numbers::{Numbers, Scratch};
use super::reduction::Reduction;
use super::shared::Shared;
use super::tcp::{Exchange, Tcp};
use super::transport::{Received, Sent, Transport};
use crate::value::rank::Rank;

/// The most bytes that hosts pass on at a time.
const BLOCK: usize = 256 * 1024;

/// The place of this rank's host among all hosts.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// The host's index, in rank order.
    pub(super) place: usize,
    pub(super) hosts: usize,
    /// The most bytes that a rank can publish in a round on every host.
    pub(super) slot: usize,
}

impl Layout {
    fn is_last(self) -> bool {
        self.place + 1 == self.hosts
    }
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
    /// The partial result of the hosts before this one, and that which includes this host.
    before: Scratch,
    sum: Scratch,
    /// On the last host, the result.
    result: Scratch,
}

impl TwoLevel {
    /// The ranks of each host must be consecutive in `world`: then adding host by host is adding in
    /// rank order.
    pub(super) fn new(
        world: Tcp,
        host: Option<Shared>,
        firsts: Option<Tcp>,
        layout: Layout,
    ) -> TwoLevel {
        let block = BLOCK.min(layout.slot);
        let [before, sum, result] = [(); 3].map(|()| Scratch::default());
        TwoLevel { world, host, firsts, layout, block, before, sum, result }
    }

    /// Adds this host's numbers of a block to the partial result of the hosts before it. On the
    /// last host, this makes the result.
    fn add(&mut self, call: Call, kind: ElementKind, by: Reduction, values: &[u8]) -> Result<()> {
        let rows = match &mut self.host {
            Some(host) => host.show(call, values)?,
            None => vec![values],
        };
        if self.firsts.is_none() {
            return Ok(());
        }
        let length = values.len() / kind.size() * kind.of_partial(by).size();
        let sum = self.sum.bytes(length);
        let mut rows = rows.into_iter();
        if self.layout.place > 0 {
            sum.copy_from_slice(self.before.bytes(length));
        } else if let Some(first) = rows.next() {
            kind.begin(by, first, sum);
        }
        rows.for_each(|row| kind.add(by, sum, row));
        if self.layout.is_last() {
            kind.end(by, self.world.rank().size(), sum, self.result.bytes(values.len()));
        }
        Ok(())
    }

    /// Sends the partial result that this host has added to, of as many bytes; from the last host,
    /// the result. Receives a partial result from the host before, and a result from the last.
    fn exchange(
        &mut self,
        call: Call,
        added: usize,
        before: usize,
        complete: Option<&mut [u8]>,
    ) -> Result<()> {
        let (Layout { place, hosts, .. }, is_last) = (self.layout, self.layout.is_last());
        let Some(firsts) = &mut self.firsts else { return Ok(()) };
        let sum = &*if is_last { &mut self.result } else { &mut self.sum }.bytes(added);
        let is_next = |to: usize| is_last || to == place + 1;
        let send = |to| (added > 0 && is_next(to)).then_some(sum);
        let mut by_place: Vec<_> =
            (0..hosts).map(|to| Exchange { send: send(to), ..Exchange::default() }).collect();
        if before > 0 && place > 0 {
            by_place[place - 1].receive = Some(self.before.bytes(before));
        }
        if !is_last {
            by_place[hosts - 1].receive = complete;
        }
        firsts.members.transfer(call, by_place)
    }

    /// Meets the other ranks of this host first, so that a rank that makes another call is named.
    fn meet_host(&mut self, call: Call) -> Result<()> {
        let Some(host) = &mut self.host else { return Ok(()) };
        // The call goes on over the connections, so when the last one over them ended still counts.
        let ended = self.world.members.links().ended;
        host.meet(call)?;
        self.world.members.links().ended = ended;
        Ok(())
    }
}

/// Returns a message first if it is with one of the ranks `here`, as they are numbered on this
/// host, and second if it is with another rank.
fn by_place<B>(half: Option<(Message, B)>, here: &Range<u32>) -> [Option<(Message, B)>; 2] {
    match half {
        Some((message, bytes)) if here.contains(&message.other) => {
            [Some((Message { other: message.other - here.start, ..message }, bytes)), None]
        }
        far => [None, far],
    }
}

impl Transport for TwoLevel {
    fn rank(&self) -> Rank {
        self.world.rank
    }

    fn describe(&self) -> String {
        let TwoLevel { world, layout: Layout { hosts, .. }, .. } = self;
        world.described(&format!("shared memory on each host and TCP between {hosts} hosts"))
    }

    fn tcp(&self) -> Option<&Tcp> {
        Some(&self.world)
    }

    fn note(&mut self, made: u32) {
        if let Some(host) = &mut self.host {
            host.count_call(made);
        }
        self.world.note(made);
    }

    fn reduce(&mut self, reduce: Reduce, mut numbers: Numbers<'_>) -> Result<()> {
        let Reduce { call, by } = reduce;
        if call.only_rank().is_some() {
            self.meet_host(call)?;
            return self.world.reduce(reduce, numbers);
        }
        let kind = numbers.kind();
        // How many bytes the partial result of so many has.
        let wide = |bytes: usize| bytes / kind.size() * kind.of_partial(by).size();
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
            let before = wide(length((step + 1).checked_sub(place)));
            if added > 0 {
                self.add(call, kind, by, blocks[step - place])?;
            }
            let added = if place == last { added } else { wide(added) };
            let Some(complete) = step.checked_sub(last) else {
                self.exchange(call, added, before, None)?;
                continue;
            };
            let values = &mut *blocks[complete];
            if place == last && self.firsts.is_some() {
                values.copy_from_slice(self.result.bytes(values.len()));
            }
            self.exchange(call, added, before, Some(values))?;
            if let Some(host) = &mut self.host {
                host.broadcast(call, values, 0)?;
            }
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, reduce: Reduce, values: &[u8], part: Numbers<'_>) -> Result<()> {
        self.meet_host(reduce.call)?;
        self.world.reduce_scatter(reduce, values, part)
    }

    fn gather(&mut self, call: Call, bytes: &[u8], into: &mut [&mut [u8]]) -> Result<()> {
        self.meet_host(call)?;
        self.world.gather(call, bytes, into)
    }

    fn scatter(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()> {
        self.meet_host(call)?;
        self.world.scatter(call, parts, into)
    }

    fn scatter_any(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<bool> {
        self.scatter(call, parts, into).map(|()| true)
    }

    fn pass(&mut self, send: Sent<'_>, receive: Received<'_>) -> Result<()> {
        let Some(host) = &mut self.host else { return self.world.pass(send, receive) };
        let first = self.world.rank().index() - host.rank().index();
        let here = first..first + host.rank().size();
        let ([near_send, send], [near_receive, receive]) =
            (by_place(send, &here), by_place(receive, &here));
        if near_send.is_none() && near_receive.is_none() {
            return self.world.pass(send, receive);
        }
        let mut passing = host.post(near_send, near_receive)?;
        if send.is_some() || receive.is_some() {
            let mut beside = || {
                let found = match host.advance(&mut passing) {
                    Ok(progress) if progress.moved => return Ok(progress),
                    Ok(progress) => host.difference(&passing).map_or(Ok(progress), Err),
                    Err(difference) => Err(difference),
                };
                found.map_err(|found| Difference { rank: found.rank + first as usize, ..found })
            };
            self.world.members.pass(send, receive, Some(&mut beside))?;
        }
        host.finish(passing)
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        self.meet_host(call)?;
        self.world.meet(call)
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        self.meet_host(Call::SPLIT)?;
        self.world.split(color, key)
    }

    fn published(&self) -> u64 {
        self.host.as_ref().map_or(0, Shared::published)
    }
}

#[cfg(test)]
pub(super) mod tests {
    //! Simulated hosts: all ranks are threads of this process.

    use std::time::Duration;

    use super::*;
    use crate::group::Group;
    use crate::host_info::HostInfo;
    use crate::hosts;
    use crate::tcp::tests::{numbers, ranks_within};
    use crate::tests::{PLENTY, bits, sum_in_order};
    use crate::tests::{
        check_that_a_hung_rank_is_named, check_that_a_rank_without_messages_is_named,
    };

    /// Runs one rank, in its own thread, for each entry of `hosts`, which is the number of its
    /// simulated host.
    pub(crate) fn ranks<T: Send>(
        timeout: Duration,
        hosts: &[u8],
        run: impl Fn(Group) -> T + Sync,
    ) -> Vec<T> {
        ranks_within(timeout, hosts.len() as u32, |tcp| {
            let network = hosts[tcp.rank().index() as usize].to_string();
            run(Group::new(
                hosts::join_from(tcp, &HostInfo { network, ..HostInfo::own(None) }).unwrap(),
            ))
        })
    }

    #[test]
    fn a_sum_is_made_in_rank_order_wherever_the_ranks_are() {
        for hosts in [&[0, 0, 1, 1][..], &[0, 1, 0, 1], &[7, 7, 7, 3, 3, 5], &[0, 1, 1], &[0, 0, 1]]
        {
            for length in [0, 1, 7850, 200_000] {
                let expected = sum_in_order(0..hosts.len() as u32, length);
                let sums = ranks(PLENTY, hosts, |mut group| {
                    let mut sum = numbers(group.rank().index(), length);
                    group.all_reduce_sum(&mut sum).unwrap();
                    bits(&sum)
                });
                assert!(sums.iter().all(|sum| *sum == expected), "{hosts:?}, {length} numbers");
            }
        }
    }

    #[test]
    fn split_groups_detect_their_hosts_again() {
        ranks(PLENTY, &[0, 0, 1, 1], |mut group| {
            let own = group.rank().index();
            assert_eq!(group.describe(), "shared memory on each host and TCP between 2 hosts");
            // One host's ranks, and one rank of each host: all are on this host.
            for (color, described) in
                [(own / 2, "shared memory"), (own % 2, "shared memory"), (own, "TCP")]
            {
                assert_eq!(group.split(color, 0).unwrap().describe(), described);
            }
        });
    }

    #[test]
    fn every_other_rank_is_watched_over_a_connection_on_this_host_or_another() {
        let connected = ranks(PLENTY, &[0, 0, 1, 1], |group| {
            group.connections().iter().map(Option::is_some).collect::<Vec<_>>()
        });
        for (own, connected) in connected.into_iter().enumerate() {
            assert_eq!(connected, [0, 1, 2, 3].map(|rank| rank != own));
        }
    }

    #[test]
    fn one_rank_of_each_host_sends_its_hosts_share() {
        const LENGTH: u64 = 31_400;
        let sent = ranks(PLENTY, &[0, 0, 1, 1], |mut group| {
            let before = group.bytes_sent().unwrap();
            group.all_reduce_sum(&mut [0.5_f32; LENGTH as usize / 4]).unwrap();
            group.bytes_sent().unwrap() - before
        });
        // Every rank writes its numbers to the memory, and the first rank also the result. Each
        // host sends one message to the other, with the tags of its head and of its numbers.
        let first = 2 * LENGTH + (LENGTH + 28 + 2 * 16);
        assert_eq!(sent, [first, LENGTH, first, LENGTH]);
    }

    #[test]
    fn a_message_goes_over_tcp_to_another_host_alone() {
        const LENGTH: u64 = 31_400;
        for (hosts, between) in [([0, 0, 0, 0], 0), ([0, 0, 1, 1], LENGTH + 28 + 2 * 16)] {
            let sent = ranks(PLENTY, &hosts, |mut group| {
                let own = group.rank().index();
                // To the same host, and then to the other.
                [own ^ 1, own ^ 2].map(|other| {
                    let before = group.bytes_sent().unwrap();
                    let mut into = [0_u8; LENGTH as usize];
                    group.send_receive(&[7; LENGTH as usize], other, &mut into, other).unwrap();
                    assert_eq!(into, [7; LENGTH as usize]);
                    group.bytes_sent().unwrap() - before
                })
            });
            // Over TCP, each message is the answer to the other.
            let far = if between > 0 { between } else { LENGTH };
            assert_eq!(sent, [[LENGTH, far]; 4], "{hosts:?}");
        }
    }

    #[test]
    fn ranks_that_do_not_follow_each_other_on_a_host_use_tcp() {
        let described = ranks(PLENTY, &[0, 1, 0, 1], |group| group.describe());
        assert!(
            described
                .iter()
                .all(|described| described == "TCP (the ranks of a host do not follow each other)")
        );
    }

    #[test]
    fn a_rank_that_hangs_is_named_on_every_host() {
        check_that_a_hung_rank_is_named(3, 1, |timeout, run| ranks(timeout, &[0, 0, 1, 1], run));
    }

    #[test]
    fn a_rank_that_passes_no_messages_is_named_on_every_host() {
        for hung in [1, 3] {
            check_that_a_rank_without_messages_is_named(hung, |timeout, run| {
                ranks(timeout, &[0, 0, 1, 1], run)
            });
        }
    }

    #[test]
    fn a_rank_that_makes_another_call_on_another_host_is_named() {
        // Repeat this, because the error may reach a rank that is still in the previous call.
        for _ in 0..20 {
            let errors = ranks(PLENTY, &[0, 0, 1, 1], |mut group| {
                group.barrier().unwrap();
                match group.rank().index() {
                    2 => group.barrier().unwrap_err().to_string(),
                    _ => group.all_reduce_sum(&mut [1.0_f32; 10]).unwrap_err().to_string(),
                }
            });
            assert!(
                errors[3].starts_with("rank 2 called barrier, rank 3 all_reduce_sum of 10 f32"),
                "{errors:?}"
            );
            assert!(
                errors[..2]
                    .iter()
                    .all(|error| error.contains("rank 2") || error.contains("rank 3")),
                "{errors:?}"
            );
        }
    }
}
