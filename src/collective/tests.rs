//! What every transport that needs no launcher must do alike.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::cast_slice;

use super::tcp::PIECE;
use super::tcp::tests::{numbers, ranks_within};
use super::{CollectiveError, Element, Group, Reduction, half, threads};
use calls::{CALLS, Made, RINGS, is_named};
use measured::longer_than;

mod calls;
#[path = "../../tests/support/measured.rs"]
pub(super) mod measured;
mod messages;
mod values;

pub(super) const PLENTY: Duration = Duration::from_secs(1200);

/// What `run` returns on `size` ranks, by transport. With two levels, there are two ranks on each
/// simulated host.
pub(super) fn over_each<T: Send>(
    size: u32,
    run: impl Fn(&mut Group) -> T + Sync,
) -> Vec<(&'static str, Vec<T>)> {
    over_each_within(PLENTY, size, run)
}

/// Like [`over_each`], with another timeout.
fn over_each_within<T: Send>(
    timeout: Duration,
    size: u32,
    run: impl Fn(&mut Group) -> T + Sync,
) -> Vec<(&'static str, Vec<T>)> {
    over_each_owned(timeout, size, |mut group| run(&mut group))
}

/// Like [`over_each_within`], where each rank has its group to itself.
fn over_each_owned<T: Send>(
    timeout: Duration,
    size: u32,
    run: impl Fn(Group) -> T + Sync,
) -> Vec<(&'static str, Vec<T>)> {
    OVER.iter().map(|&over| (over, over_one(over, timeout, size, &run))).collect()
}

/// The transports of [`over_each`].
const OVER: &[&str] =
    if cfg!(target_os = "linux") { &[SHARED, TCP, TWO_LEVELS] } else { &[SHARED, TCP] };
const SHARED: &str = "shared memory";
const TCP: &str = "TCP";
const TWO_LEVELS: &str = "two levels";

/// What `run` returns on `size` ranks over one of [`OVER`].
fn over_one<T: Send>(
    over: &str,
    timeout: Duration,
    size: u32,
    run: &(impl Fn(Group) -> T + Sync),
) -> Vec<T> {
    match over {
        SHARED => in_threads(timeout, size, run),
        #[cfg(target_os = "linux")]
        TWO_LEVELS => {
            let hosts: Vec<u8> = (0..size).map(|rank| (rank / 2) as u8).collect();
            super::two_level::tests::ranks(timeout, &hosts, run)
        }
        _ => ranks_within(timeout, size, |tcp| run(Group::new(Box::new(tcp)))),
    }
}

fn in_threads<T: Send>(timeout: Duration, size: u32, run: &(impl Fn(Group) -> T + Sync)) -> Vec<T> {
    let ranks = threads::group(size, timeout).unwrap();
    thread::scope(|scope| {
        let start = |rank| scope.spawn(|| run(Group::from(rank)));
        let ranks: Vec<_> = ranks.into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn all_other_ranks_name_a_rank_that_aborts_although_it_stays() {
    let ended = AtomicU32::new(0);
    let over = over_each(3, |group| {
        group.barrier().unwrap();
        if group.rank().index() == 1 {
            let all = ended.load(Ordering::Relaxed) + 2;
            group.abort(9, "the loss is NaN\n\x1b[2J");
            while ended.load(Ordering::Relaxed) < all {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let errors = [group.barrier().unwrap_err(), group.barrier().unwrap_err()];
        ended.fetch_add(1, Ordering::Relaxed);
        errors.map(|error| error.to_string())
    });
    for (over, errors) in over {
        for error in errors.into_iter().flatten() {
            let is_named = error.starts_with("rank 1 on ");
            let reason = "it aborted with exit code 9: the loss is NaN\u{fffd}\u{fffd}[2J";
            assert!(is_named && error.contains(reason), "{over}: {error}");
        }
    }
}

#[test]
fn messages_and_means_are_named_as_the_program_calls_them() {
    for (over, errors) in over_each(2, |group| match group.rank().index() {
        0 => group.send_receive(&[1.0_f64], 1, &mut [0.0], 1).unwrap_err().to_string(),
        _ => group.all_reduce(&mut [1.0_f32; 10], Reduction::Mean).unwrap_err().to_string(),
    }) {
        for error in errors {
            let called = ["send_receive of 1 f64", "all_reduce (mean) of 10 f32"];
            assert!(called.iter().all(|called| error.contains(called)), "{over}: {error}");
        }
    }
}

/// The bits of a sum of the ranks' [`numbers`] in rank order.
pub(super) fn sum_in_order(ranks: impl Iterator<Item = u32>, length: usize) -> Vec<u32> {
    let rows = ranks.map(|rank| numbers(rank, length));
    let sum = rows.reduce(|sum, row| sum.iter().zip(&row).map(|(a, b)| a + b).collect()).unwrap();
    bits(&sum)
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn numbers_are_added_in_rank_order_however_many_there_are() {
    // TCP and shared memory add in another way from 16,385 numbers on, and in several pieces from
    // 262,144 or, for three ranks, 786,432 numbers on.
    let few = (1..=8).flat_map(|size| [0, 1, 7, 7850].map(|length| (size, length)));
    let many = [16_384, 16_385, 43_691, 1 << 18, (3 << 18) - 1, (3 << 18) + 1];
    for (size, length) in few.chain(many.map(|length| (3, length))).chain([(4, 40_000)]) {
        let expected = sum_in_order(0..size, length);
        for (over, all) in over_each(size, |group| {
            let own = numbers(group.rank().index(), length);
            let part = group.reduce_scatter_sum(&own).unwrap();
            let mut sum = own;
            group.all_reduce_sum(&mut sum).unwrap();
            (bits(&sum), bits(&part), group.rank().share_of(length))
        }) {
            for (sum, part, share) in all {
                assert!(sum == expected, "{over}: {size} ranks, {length} numbers");
                assert!(part == expected[share], "{over}: part of {length} of {size} ranks");
            }
        }
    }
}

/// Makes every call. `length` bytes come from rank 1, twice as many from rank 2, and so on. Returns
/// what the ranks reduce.
fn make_every_call(group: &mut Group, length: usize) -> Vec<Vec<u8>> {
    let (own, size) = (group.rank().index(), group.size());
    let mut sum = numbers(own, length);
    group.all_reduce_sum(&mut sum).unwrap();
    let mut least: Vec<f64> = numbers(own, length).into_iter().map(f64::from).collect();
    group.all_reduce_min(&mut least).unwrap();
    let mut most: Vec<i64> = (0..length as i64).map(|i| i * (i64::from(own) - 1)).collect();
    group.all_reduce_max(&mut most).unwrap();
    let part = group.reduce_scatter_sum(&numbers(own, length)).unwrap();

    let of = |rank: u32| vec![rank as u8; length * rank as usize];
    let all: Vec<_> = (0..size).map(of).collect();
    assert!(group.all_gather(&of(own)).unwrap() == all);
    let mut word = of(own);
    group.broadcast_bytes(&mut word, size - 1).unwrap();
    assert!(word == of(size - 1));
    let part_of = |from: u32, to: u32| vec![(16 * from + to) as u8; length];
    let parts: Vec<_> = (0..size).map(|to| part_of(own, to)).collect();
    let exchanged: Vec<_> = (0..size).map(|from| part_of(from, own)).collect();
    assert!(group.all_to_all(&parts).unwrap() == exchanged);
    group.barrier().unwrap();
    [cast_slice(&sum), cast_slice(&least), cast_slice(&most), cast_slice(&part)]
        .map(<[u8]>::to_vec)
        .into()
}

#[test]
fn every_call_returns_the_same_bits_over_every_transport_in_all_groups() {
    for length in [0, 1, 300, 40_000] {
        let mut first = None;
        for (over, results) in over_each(6, |world| {
            let own = world.rank().index();
            // By columns in reverse rank order, by rows in rank order: 4 2 0 and 5 3 1; 0 1 2 and
            // 3 4 5. Within a column: 4 0 and 2; 5 1 and 3.
            let mut column = world.split(own % 2, 9 - own).unwrap();
            let mut row = world.split(own / 3, 0).unwrap();
            let mut inner = column.split(column.rank().index() % 2, 7).unwrap();
            assert_eq!((column.size(), column.rank().index()), (3, 2 - own / 2));
            assert_eq!((row.size(), row.rank().index()), (3, own % 3));
            let mut results = Vec::new();
            for _ in 0..2 {
                for group in [&mut column, &mut row, &mut inner] {
                    results.extend(make_every_call(group, length));
                }
                results.extend(make_every_call(world, length));
            }
            results
        }) {
            let expected = first.get_or_insert_with(|| results.clone());
            assert!(results == *expected, "{over}: {length}");
        }
    }
}

#[test]
fn more_bytes_than_a_piece_or_a_slot_come_piece_by_piece() {
    for length in [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
        for (over, all) in over_each(3, |group| {
            let own = group.rank().index() as u8;
            // Some ranks bring fewer pieces than others.
            let gathered = group.all_gather(&vec![own; length / (usize::from(own) + 1)]).unwrap();
            let mut bytes = if own == 1 { vec![9; length] } else { vec![own; 3] };
            group.broadcast_bytes(&mut bytes, 1).unwrap();
            (gathered, bytes)
        }) {
            let expected = [1, 2, 3].map(|share| vec![share as u8 - 1; length / share]);
            for (gathered, bytes) in all {
                assert!(bytes == vec![9; length] && gathered == expected, "{over}: {length}");
            }
        }
    }
}

#[test]
fn ranks_that_call_different_operations_are_named_with_what_they_called() {
    for (over, errors) in over_each(3, |group| match group.rank().index() {
        2 => group.barrier().unwrap_err().to_string(),
        _ => group.all_reduce_sum(&mut [1.0_f32; 10]).unwrap_err().to_string(),
    }) {
        // Either rank may have found the difference.
        let [first, second] =
            ["rank 2 called barrier, rank ", " called all_reduce_sum of 10 f32, rank 2 barrier: "];
        for error in &errors {
            assert!(
                error.starts_with("rank ") && (error.starts_with(first) || error.contains(second)),
                "{over}: {errors:?}"
            );
        }
    }
}

#[test]
fn lengths_that_differ_are_named_with_both_lengths() {
    for (over, errors) in over_each(2, |group| {
        let length = 100_000 + group.rank().index() as usize;
        group.all_reduce_sum(&mut vec![1_i32; length]).unwrap_err().to_string()
    }) {
        let sums = [("0", "100000"), ("1", "100001")];
        let named = |one: usize, other: usize| {
            let ([(rank, count), (own, expected)], sum) =
                ([sums[one], sums[other]], "all_reduce_sum");
            format!(
                "rank {rank} called {sum} of {count} i32, rank {own} {sum} of {expected} i32: \
                 all ranks must run the same program with the same options"
            )
        };
        let either = [named(0, 1), named(1, 0)];
        assert!(errors.iter().all(|error| either.contains(error)), "{over}: {errors:?}");
    }
}

#[test]
fn a_group_that_has_failed_fails_again_at_once_and_names_the_same_rank() {
    for (over, errors) in over_each(3, |group| {
        let first = if group.rank().index() == 1 {
            group.barrier()
        } else {
            group.all_gather(b"x").map(drop)
        };
        let begun = Instant::now();
        let again = [group.barrier().is_err(), group.all_reduce_sum(&mut [1_u64]).is_err()];
        (first.unwrap_err().to_string(), again, begun.elapsed())
    }) {
        for (error, again, took) in errors {
            assert_eq!(again, [true; 2], "{over}: {error}");
            assert!(took < PLENTY, "{over}: {took:?}");
        }
    }
}

#[test]
fn arguments_that_no_rank_could_use_are_errors_that_leave_the_group_usable() {
    for (over, sums) in over_each(2, |group| {
        let errors = [
            group.broadcast(&mut [1_u8], 2).unwrap_err(),
            group.all_to_all(&[vec![1]]).unwrap_err(),
            group.all_to_all(&[vec![1], vec![1, 2]]).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, CollectiveError::Argument { .. })));
        assert_eq!(
            errors[0].to_string(),
            "broadcast: there is no rank 2: the group has ranks 0 and 1"
        );
        let mut sum = [1_u32];
        group.all_reduce_sum(&mut sum).unwrap();
        sum
    }) {
        assert_eq!(sums, [[2], [2]], "{over}");
    }
}

#[test]
fn nothing_and_single_numbers_and_groups_of_one_are_no_special_case() {
    for size in [1, 2, 3] {
        for (over, results) in over_each(size, |group| {
            group.all_reduce_sum::<f32>(&mut []).unwrap();
            let nothing = group.reduce_scatter_sum::<f64>(&[]).unwrap().len();
            let empty = group.all_gather(&[]).unwrap().concat().len();
            let parts = group.all_to_all(&vec![Vec::new(); size as usize]).unwrap().concat().len();
            let mut word = Vec::new();
            group.broadcast_bytes(&mut word, size - 1).unwrap();
            let mut one = [1_i64];
            group.all_reduce_sum(&mut one).unwrap();
            // One number does not divide among several ranks: the last rank gets it.
            let part = group.reduce_scatter_sum(&[2_i64]).unwrap();
            let mut alone = group.split(group.rank().index(), 0).unwrap();
            alone.all_reduce_sum(&mut one).unwrap();
            alone.barrier().unwrap();
            (nothing + empty + parts + word.len(), one[0], part)
        }) {
            for (rank, (nothing, one, part)) in (1..).zip(results) {
                let expected = if rank == size { vec![2 * i64::from(size)] } else { Vec::new() };
                assert_eq!(
                    (nothing, one, part),
                    (0, i64::from(size), expected),
                    "{over}, {size} ranks"
                );
            }
        }
    }
}

#[test]
fn every_operation_has_the_right_value_for_every_type_over_every_transport() {
    // Half-precision numbers in several rounds, blocks and pieces.
    let long = |group: &mut Group| values::check::<half::bf16>(group, 600_000);
    let all = [(4, 0), (2, 1), (4, 7), (3, 3_000), (4, 17_000)];
    for (size, length) in all.into_iter().chain([(3, 600_000)]) {
        for (over, results) in over_each(size, |group| match length {
            600_000 => long(group),
            _ => values::check_all(group, length),
        }) {
            for result in results {
                assert_eq!(result, Ok(()), "{over}, {size} ranks");
            }
        }
    }
}

#[test]
fn a_call_is_canceled_from_another_thread_and_the_others_learn_who_did_it() {
    // The transports over which rank 1 has canceled its call.
    let canceled = Mutex::new(Vec::new());
    for (over, errors) in over_each(3, |group| {
        let over = group.describe();
        let sum = |group: &mut Group| {
            let result = group.all_reduce_sum(&mut vec![1.0_f32; 100_000]);
            result.unwrap_err().to_string()
        };
        match group.rank().index() {
            // It comes too late for the sum of the others.
            0 => {
                let begun = Instant::now();
                while !canceled.lock().unwrap().contains(&over) {
                    assert!(begun.elapsed() < PLENTY / 2);
                    thread::sleep(Duration::from_millis(10));
                }
                vec![sum(group)]
            }
            1 => {
                let canceller = group.canceller();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        thread::sleep(Duration::from_millis(20));
                        canceller.clone().cancel();
                        canceled.lock().unwrap().push(over);
                    });
                    vec![sum(group), group.barrier().unwrap_err().to_string()]
                })
            }
            _ => vec![sum(group)],
        }
    }) {
        let canceled = CollectiveError::Canceled.to_string();
        assert_eq!(errors[1], [canceled.clone(), canceled], "{over}");
        for error in [&errors[0][0], &errors[2][0]] {
            let is_named = error.starts_with("rank 1 on ");
            assert!(is_named && error.contains("its calls were canceled"), "{over}: {error}");
        }
    }
}

#[test]
fn a_group_goes_on_in_another_thread() {
    for (over, sums) in over_each(2, |group| {
        let own = group.rank().index();
        let part = group.split(0, 0).unwrap();
        let moved = thread::spawn(move || {
            let mut part = part;
            let mut sum = [own + 1];
            part.all_reduce_sum(&mut sum).map(|()| (part, sum))
        });
        let (mut part, sum) = moved.join().unwrap().unwrap();
        part.barrier().unwrap();
        group.barrier().unwrap();
        sum
    }) {
        assert_eq!(sums, [[3], [3]], "{over}");
    }
}

#[test]
fn a_rank_that_closes_or_drops_its_group_too_early_is_named_with_the_call_of_those_that_wait() {
    type Waits = fn(&mut Group) -> Result<(), CollectiveError>;
    let waits: [Waits; 3] = [
        |group| group.all_reduce_sum(&mut [1.0_f64]),
        |group| group.all_reduce_sum(&mut vec![1.0_f64; 3_000_000]),
        |group| match group.rank().index() {
            0 => group.send(&[1.0_f64; 3_000_000], 1),
            _ => group.receive(&mut [1.0_f64], 1),
        },
    ];
    let calls = ["all_reduce_sum of 1 f64", "all_reduce_sum of 3000000 f64", ""];
    for ((wait, call), closes) in
        waits.iter().zip(calls).flat_map(|one| [(one, true), (one, false)])
    {
        let ended = AtomicU32::new(0);
        for (over, errors) in over_each_owned(PLENTY, 3, |mut group| {
            group.barrier().unwrap();
            let all = ended.load(Ordering::Relaxed) / 2 * 2 + 2;
            if group.rank().index() == 1 {
                if closes {
                    group.close().unwrap();
                } else {
                    drop(group);
                }
                while ended.load(Ordering::Relaxed) < all {
                    thread::sleep(Duration::from_millis(1));
                }
                return String::new();
            }
            let error = wait(&mut group).unwrap_err();
            ended.fetch_add(1, Ordering::Relaxed);
            error.to_string()
        }) {
            for (own, error) in errors.iter().enumerate().filter(|(own, _)| *own != 1) {
                let is_named = (0..3).any(|rank| {
                    let own = if rank == 1 { own } else { rank };
                    let text = "rank 1 called close or dropped its group, rank";
                    error.starts_with(&format!("{text} {own} {call}"))
                });
                assert!(is_named, "{over}: {error}");
            }
        }
    }
}

#[test]
fn ranks_that_wait_for_each_other_in_a_ring_name_their_own_calls_and_what_to_call_instead() {
    type ToAndFrom = fn(&mut Group, u32, u32) -> Result<(), CollectiveError>;
    let right: [ToAndFrom; 2] = [
        |group, to, _| group.send(&[1.0_f64], to),
        |group, _, from| group.receive(&mut [1.0_f64], from),
    ];
    let timeout = longer_than(Duration::from_secs(4), || {
        over_each(3, |group| {
            let own = group.rank().index();
            group.send_receive(&[1.0_f64], (own + 1) % 3, &mut [0.0], (own + 2) % 3).unwrap();
        });
    });
    for (index, call) in right.iter().enumerate() {
        for (over, errors) in over_each_within(timeout, 3, |group| {
            let own = group.rank().index();
            let first = call(group, (own + 1) % 3, (own + 2) % 3).unwrap_err();
            (first, group.barrier().unwrap_err().to_string())
        }) {
            for (own, (error, later)) in errors.iter().enumerate() {
                let (to, from) = ((own + 1) % 3, (own + 2) % 3);
                let waited = match index {
                    0 => format!("waited in send of 1 f64 to rank {to}: "),
                    _ => format!("waited in receive of 1 f64 from rank {from}: "),
                };
                let text = error.to_string();
                assert!(matches!(error, CollectiveError::SomeTimedOut { .. }), "{over}: {text}");
                assert!(text.contains(&waited), "{over}: {text}");
                assert_eq!(
                    text.contains("call send_receive instead"),
                    index == 0,
                    "{over}: {text}"
                );
                assert_eq!(*later, format!("{text} (in an earlier call)"), "{over}");
            }
        }
    }
}

#[test]
fn what_is_wrong_with_arguments_says_what_is_needed() {
    let texts = threads::run(3, PLENTY, |group| {
        let own = group.rank().index();
        [
            group.broadcast(&mut [1_u8], 99).unwrap_err(),
            group.gather(&[1_u8; 2], &mut [0; 3], own).unwrap_err(),
            group.all_to_all_into(&[1_u8; 4], &mut [0; 4]).unwrap_err(),
            group.all_to_all(&[vec![1]]).unwrap_err(),
            group.send(&[1_u8], own).unwrap_err(),
            group.receive(&mut [1_u8], 3).unwrap_err(),
        ]
        .map(|error| error.to_string())
    });
    for (own, texts) in texts.unwrap().into_iter().enumerate() {
        let itself = format!("send: rank {own} is this rank itself: name another one");
        let expected = [
            "broadcast: there is no rank 99: the group has ranks 0 to 2",
            "gather: 3 values where 6 are needed: 2 for each of 3 ranks",
            "all_to_all: 4 values, which 3 ranks cannot share equally",
            "all_to_all: 1 parts where 3 are needed: one for each rank",
            &itself,
            "receive: there is no rank 3: the group has ranks 0 to 2",
        ];
        assert_eq!(texts, expected);
    }
}

/// Checks that no rank returns without an error when one of three makes the call `other` and the
/// others make `one`, and that every error names what differs. Which rank and which transport it
/// is changes from `turn` to turn.
fn check(one: (&str, Made), other: (&str, Made), turn: usize) {
    let (odd, over) = ((turn % 3) as u32, OVER[turn / 3 % OVER.len()]);
    let results = over_one(over, PLENTY, 3, &|mut group: Group| {
        let begun = Instant::now();
        let call = if group.rank().index() == odd { other.1 } else { one.1 };
        (call(&mut group), begun.elapsed())
    });
    let what = format!("{over}: {}, and on rank {odd} {}: {results:?}", one.0, other.0);
    for (result, took) in &results {
        assert!(result.as_ref().is_err_and(is_named) && *took < PLENTY, "{what}");
    }
}

#[test]
fn no_rank_returns_from_a_call_of_which_any_parameter_differs_on_another_rank() {
    let pairs = CALLS.iter().enumerate().flat_map(|(index, one)| {
        // Calls that differ in one parameter stand beside each other: those on every transport.
        let near = CALLS[index + 1..].iter().take(2).flat_map(|other| [other; 9]);
        near.chain(CALLS[index + 1..].iter().skip(2)).map(move |other| (one, other))
    });
    for (turn, (one, other)) in pairs.enumerate() {
        check(*one, *other, turn);
    }
}

#[test]
fn no_rank_returns_from_a_message_where_another_rank_makes_another_call() {
    let pairs = RINGS.iter().enumerate().flat_map(|(index, one)| {
        // Each of three ranks passes messages to both others.
        let others = RINGS[index + 1..].iter().chain(CALLS);
        others.flat_map(move |other| [(one, other), (other, one)])
    });
    for (turn, (one, other)) in pairs.enumerate() {
        check(*one, *other, turn);
    }
}

#[test]
fn no_rank_returns_from_a_broadcast_with_a_different_root_on_each_rank_however_often() {
    for turn in 0..40 {
        for (over, results) in over_each(4, |group| {
            let own = group.rank().index();
            group
                .broadcast(&mut [own as u8; 16], (own + turn) % 4)
                .map_err(|error| error.to_string())
        }) {
            assert!(
                results
                    .iter()
                    .all(|result| matches!(result, Err(error) if error.contains(" called "))),
                "{over}: {results:?}"
            );
        }
    }
}

/// Checks that all other ranks name a rank that hangs in a sum of `length` numbers. `ranks` runs
/// all ranks with a timeout.
pub(crate) fn check_that_a_hung_rank_is_named(
    hung: u32,
    length: usize,
    ranks: impl Fn(
        Duration,
        &(dyn Fn(Group) -> Option<CollectiveError> + Sync),
    ) -> Vec<Option<CollectiveError>>,
) {
    let sum = |group: &mut Group| group.all_reduce_sum(&mut vec![1.0_f32; length]);
    check_that_a_rank_hung_in(&sum, hung, ranks);
}

/// Checks that all other ranks name a rank that passes no messages.
pub(crate) fn check_that_a_rank_without_messages_is_named(
    hung: u32,
    ranks: impl Fn(
        Duration,
        &(dyn Fn(Group) -> Option<CollectiveError> + Sync),
    ) -> Vec<Option<CollectiveError>>,
) {
    let ring = |group: &mut Group| {
        let (own, size) = (group.rank().index(), group.size());
        let (to, from) = ((own + 1) % size, (own + size - 1) % size);
        group.send_receive(&[0_u8; 100], to, &mut [0; 100], from)?;
        // Not every rank has it as a neighbor.
        group.barrier()
    };
    check_that_a_rank_hung_in(&ring, hung, ranks);
}

fn check_that_a_rank_hung_in(
    call: &(dyn Fn(&mut Group) -> Result<(), CollectiveError> + Sync),
    hung: u32,
    ranks: impl Fn(
        Duration,
        &(dyn Fn(Group) -> Option<CollectiveError> + Sync),
    ) -> Vec<Option<CollectiveError>>,
) {
    let ended = AtomicU32::new(0);
    let timeout = longer_than(Duration::from_secs(2), || {
        let make = |mut group: Group| call(&mut group).err();
        assert!(ranks(PLENTY, &make).iter().all(Option::is_none));
    });
    let errors = ranks(timeout, &|mut group| {
        if group.rank().index() == hung {
            while ended.load(Ordering::Relaxed) < group.size() - 1 {
                thread::sleep(Duration::from_millis(10));
            }
            return None;
        }
        let error = call(&mut group).unwrap_err();
        ended.fetch_add(1, Ordering::Relaxed);
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let (CollectiveError::TimedOut { rank, .. } | CollectiveError::Lost { rank, .. }) = error
        else {
            panic!("{error}")
        };
        assert_eq!(rank, hung);
    }
}
