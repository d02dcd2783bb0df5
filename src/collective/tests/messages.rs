//! Messages between two ranks, over every transport.

use super::calls::is_named;
use super::*;
use crate::error::Result;

/// In a mailbox, in one piece or in several, and in more than fit into the shared memory of a
/// rank.
const LENGTHS: [usize; 10] = [0, 1, 8, 63, 64, 65, 65_536, 65_537, 524_289, 3_000_001];

fn message(from: u32, turn: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at + at / 65_536 + 31 * turn + 7 * from as usize) as u8).collect()
}

/// Fails unless these are the bytes of that message.
fn check(bytes: &[u8], from: u32, turn: usize) {
    assert!(bytes == message(from, turn, bytes.len()), "{} bytes of rank {from}", bytes.len());
}

#[test]
fn messages_of_any_length_arrive_whole_between_all_ranks() {
    for size in [2, 4] {
        over_each(size, |group| {
            let own = group.rank().index();
            for (turn, length) in LENGTHS.into_iter().enumerate() {
                for by in 1..size {
                    let (to, from) = ((own + by) % size, (own + size - by) % size);
                    let mut into = vec![0; length];
                    let sent = message(own, turn, length);
                    group.send_receive(&sent, to, &mut into, from).unwrap();
                    check(&into, from, turn);
                }
            }
        });
    }
}

#[test]
fn the_ends_of_a_chain_exchange_with_the_one_neighbor_that_they_have() {
    over_each(3, |group| {
        let own = group.rank().index();
        let (before, after) = (own.checked_sub(1), Some(own + 1).filter(|&rank| rank < 3));
        let mut into = [100];
        group.send_receive(&[own], after, &mut into, before).unwrap();
        assert_eq!(into, [before.unwrap_or(100)]);
        group.send_receive(&[own], before, &mut into, after).unwrap();
        assert_eq!(into[0], after.or(before).unwrap());
        // A chain of one.
        group.send_receive(&[own], None, &mut [0], None).unwrap();
        group.barrier().unwrap();
    });
}

#[test]
fn messages_of_two_ranks_arrive_in_their_order_whatever_others_do_meanwhile() {
    over_each(4, |group| {
        let own = group.rank().index();
        for (turn, length) in LENGTHS.into_iter().enumerate() {
            let (sent, mut into) = (message(own, turn, length), vec![0; length]);
            match own {
                // To both others, of which the first may be late.
                0 => {
                    group.send(&sent, 3).unwrap();
                    group.send(&sent, 1).unwrap();
                    group.send(&sent, 1).unwrap();
                }
                1 => {
                    for from in [0, 0, 3] {
                        group.receive(&mut into, from).unwrap();
                        check(&into, from, turn);
                    }
                }
                3 => {
                    group.receive(&mut into, 0).unwrap();
                    check(&into, 0, turn);
                    group.send(&sent, 1).unwrap();
                }
                _ => {}
            }
        }
    });
}

#[test]
fn short_messages_arrive_though_their_sender_goes_on_or_leaves() {
    over_each(3, |group| {
        let own = group.rank().index();
        for turn in 0..1000 {
            let mut into = [0; 8];
            match own {
                0 => group.send(&message(0, turn, 8), 1 + turn as u32 % 2).unwrap(),
                own if turn as u32 % 2 == own - 1 => {
                    group.receive(&mut into, 0).unwrap();
                    check(&into, 0, turn);
                }
                _ => {}
            }
        }
    });
}

#[test]
fn messages_and_calls_of_all_ranks_leave_each_others_bytes_alone() {
    for (over, all) in over_each(3, |group| {
        let (own, mut sums) = (group.rank().index(), Vec::new());
        for turn in 0..20 {
            let (next, before) = ((own + 1) % 3, (own + 2) % 3);
            for _ in 0..turn % 3 {
                let mut sum = numbers(own, 5_000);
                group.all_reduce_sum(&mut sum).unwrap();
                sums.push(bits(&sum));
            }
            let (sent, mut into) = (message(own, turn, 20_000), vec![0; 20_000]);
            group.send_receive(&sent, next, &mut into, before).unwrap();
            check(&into, before, turn);
        }
        sums
    }) {
        let expected = sum_in_order(0..3, 5_000);
        assert!(all.into_iter().flatten().all(|sum| sum == expected), "{over}");
    }
}

#[test]
fn a_rank_sends_and_receives_at_once_although_one_neighbor_waits_for_the_other() {
    // With two levels, rank 2 is on another host than the others.
    for length in [1, 3_000_000] {
        over_each(4, |group| {
            let own = group.rank().index();
            let (sent, mut into) = (message(own, 0, length), vec![0; length]);
            match own {
                0 => group.send_receive(&sent, 1, &mut into, 2).unwrap(),
                1 => [2, 0].into_iter().for_each(|from| group.receive(&mut into, from).unwrap()),
                2 => [0, 1].into_iter().for_each(|to| group.send(&sent, to).unwrap()),
                _ => into.copy_from_slice(&sent),
            }
            match own {
                0 => group.send_receive(&sent, 2, &mut into, 1).unwrap(),
                1 => [0, 2].into_iter().for_each(|to| group.send(&sent, to).unwrap()),
                2 => [1, 0].into_iter().for_each(|from| group.receive(&mut into, from).unwrap()),
                _ => {}
            }
            check(&into, [1, 0, 0, 3][own as usize], 0);
        });
    }
}

#[test]
fn two_ranks_that_exchange_other_counts_or_types_both_learn_it_in_this_call() {
    type Exchange = fn(&mut Group) -> Result<()>;
    let others: [Exchange; 3] = [
        |group| group.send_receive(&[1.0_f32; 3], 0, &mut [0.0_f32; 5], 0),
        |group| group.send_receive(&[1.0_f32; 2], 0, &mut [0.0_f32; 3], 0),
        |group| group.send_receive(&[1_i32; 3], 0, &mut [0_i32; 3], 0),
    ];
    for (index, other) in others.into_iter().enumerate() {
        for (over, errors) in over_each(2, |group| match group.rank().index() {
            0 => group.send_receive(&[1.0_f32; 3], 1, &mut [0.0_f32; 3], 1).unwrap_err(),
            _ => other(group).unwrap_err(),
        }) {
            for error in errors {
                let rule = "a message needs the same count and type on both ranks";
                assert!(error.to_string().contains(rule), "{over}, {index}: {error}");
            }
        }
    }
}

#[test]
fn two_ranks_that_exchange_must_both_send_and_receive_at_once() {
    type Calls = fn(&mut Group) -> Result<()>;
    let one_after_the_other: [Calls; 2] = [
        |group| group.receive(&mut [0_u32], 0).and_then(|()| group.send(&[1_u32], 0)),
        |group| group.send(&[1_u32], 0).and_then(|()| group.receive(&mut [0_u32], 0)),
    ];
    for (index, calls) in one_after_the_other.into_iter().enumerate() {
        for (over, errors) in over_each(2, |group| {
            let made = match group.rank().index() {
                0 => group.send_receive(&[0_u32], 1, &mut [0_u32], 1),
                _ => calls(group),
            };
            made.and_then(|()| group.barrier()).unwrap_err().to_string()
        }) {
            for error in errors {
                let rule = "two ranks that exchange messages must both call send_receive";
                assert!(error.contains(rule), "{over}, {index}: {error}");
            }
        }
    }
}

#[test]
fn two_ranks_that_both_send_or_both_receive_are_named_at_once() {
    let calls: [fn(&mut Group, u32) -> Result<()>; 4] = [
        |group, other| group.send(&[1_u8], other),
        |group, other| group.send(&[1_u8; 1000], other),
        |group, other| group.receive(&mut [1_u8], other),
        // A third rank sends to one and would receive from the other.
        |group, other| match group.rank().index() {
            0 => group.send_receive(&[1_u8], 1, &mut [0_u8], 2),
            _ => group.send(&[1_u8], other),
        },
    ];
    for (index, call) in calls.iter().enumerate() {
        for (over, errors) in over_each(3, |group| {
            let own = group.rank().index();
            if own < 2 {
                // Messages that have passed count for nothing.
                group.send_receive(&[own], 1 - own, &mut [0], 1 - own).unwrap();
                return call(group, 1 - own).unwrap_err();
            }
            group.barrier().unwrap_err()
        }) {
            assert!(errors.iter().all(is_named), "{over}, {index}: {errors:?}");
        }
    }
}

#[test]
fn a_rank_that_leaves_or_cancels_its_calls_is_named_by_those_that_wait_for_its_message() {
    for cancels in [false, true] {
        let ended = AtomicU32::new(0);
        for (over, errors) in over_each(4, |group| {
            let all = ended.load(Ordering::Relaxed) + 2;
            group.barrier().unwrap();
            let error = match group.rank().index() {
                0 => group.receive(&mut [0_u8], 1).unwrap_err(),
                // These need the other's memory, or socket.
                2 => group.send(&vec![0_u8; 30_000_000], 1).unwrap_err(),
                1 if cancels => {
                    let canceller = group.canceller();
                    thread::spawn(move || canceller.cancel());
                    // Rank 3 sends nothing.
                    let error = group.receive(&mut [0_u8], 3).unwrap_err();
                    assert!(matches!(error, CollectiveError::Canceled), "{error}");
                    until_ended(&ended, all);
                    return None;
                }
                own => {
                    if own == 3 {
                        until_ended(&ended, all);
                    }
                    return None;
                }
            };
            ended.fetch_add(1, Ordering::Relaxed);
            Some(error.to_string())
        }) {
            for error in errors.into_iter().flatten() {
                let is_named = error.starts_with("rank 1 ");
                assert!(is_named && error.contains("canceled") == cancels, "{over}: {error}");
            }
        }
    }
}

fn until_ended(ended: &AtomicU32, all: u32) {
    let begun = Instant::now();
    while ended.load(Ordering::Relaxed) < all {
        assert!(begun.elapsed() < PLENTY / 2);
        thread::sleep(Duration::from_millis(1));
    }
}
