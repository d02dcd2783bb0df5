//! Simulated hosts: all ranks are threads of this process.

use std::time::Duration;

use super::*;
use crate::group::Group;
use crate::host_info::HostInfo;
use crate::hosts;
use crate::tcp::tests::{numbers, ranks_within};
use crate::tests::hangs::{
    check_that_a_hung_rank_is_named, check_that_a_rank_without_messages_is_named,
};
use crate::tests::{PLENTY, bits, sum_in_order};

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
    for hosts in [&[0, 0, 1, 1][..], &[0, 1, 0, 1], &[7, 7, 7, 3, 3, 5], &[0, 1, 1], &[0, 0, 1]] {
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
fn one_rank_of_each_host_sends_its_hosts_share() {
    const LENGTH: u64 = 31_400;
    let sent = ranks(PLENTY, &[0, 0, 1, 1], |mut group| {
        let before = group.bytes_sent().unwrap();
        group.all_reduce_sum(&mut [0.5_f32; LENGTH as usize / 4]).unwrap();
        group.bytes_sent().unwrap() - before
    });
    // Every rank writes its numbers to the memory, and the first rank also the result. Each host
    // sends one message to the other, with the tags of its head and of its numbers.
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
        // Over TCP, the head of an empty answer with its tag, and the message with two.
        let far = if between > 0 { between + 28 + 16 } else { LENGTH };
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
            errors[..2].iter().all(|error| error.contains("rank 2") || error.contains("rank 3")),
            "{errors:?}"
        );
    }
}
