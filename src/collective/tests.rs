//! What every transport that needs no launcher must do alike.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::cast_slice;

use super::tcp::PIECE;
use super::tcp::tests::{numbers, ranks_within, results_of_ranks};
use super::{CollectiveError, Element, Group, Reduction, half, threads};
use measured::longer_than;

mod calls;
mod errors;
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
    results_of_ranks(size, |keep| {
        start_ranks(over, size, &|mut group| {
            // A busy machine may take longer to connect than a test lets a call wait.
            group.set_timeout(timeout);
            let rank = group.rank();
            keep(rank, run(group));
        });
    })
}

fn start_ranks(over: &str, size: u32, run: &(dyn Fn(Group) + Sync)) {
    match over {
        SHARED => thread::scope(|scope| {
            let ranks = threads::group(size, PLENTY).unwrap().into_iter();
            let start = |rank| scope.spawn(|| run(Group::from(rank)));
            let ranks: Vec<_> = ranks.map(start).collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        }),
        #[cfg(target_os = "linux")]
        TWO_LEVELS => {
            let hosts: Vec<u8> = (0..size).map(|rank| (rank / 2) as u8).collect();
            super::two_level::tests::ranks(PLENTY, &hosts, run);
        }
        _ => {
            ranks_within(PLENTY, size, |tcp| run(Group::new(Box::new(tcp))));
        }
    }
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
            let reason = "it aborted with exit code 9: the loss is NaN \u{fffd}[2J";
            assert!(is_named && error.contains(reason), "{over}: {error}");
        }
    }
}

#[test]
fn a_rank_that_aborts_with_a_code_of_0_is_named_with_that_of_a_failure() {
    for (over, errors) in over_each(2, |group| {
        if group.rank().index() == 1 {
            // What is left of it in a byte is 0.
            group.abort(256_u32 as u8, "");
        }
        group.barrier().unwrap_err().to_string()
    }) {
        for error in errors {
            assert!(error.contains("it aborted with exit code 3"), "{over}: {error}");
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
    // Three ranks add in another way from 5,462 numbers on over shared memory and from 16,385 over
    // TCP, and in several pieces from 131,073 or 786,433 numbers on.
    let few = (1..=16).flat_map(|size| [0, 1, 7, 7850].map(|length| (size, length)));
    let many = [
        5_461,
        5_462,
        16_384,
        16_385,
        43_691,
        1 << 17,
        (1 << 17) + 1,
        (3 << 18) - 1,
        (3 << 18) + 1,
    ];
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
    group.broadcast_vec(&mut word, size - 1).unwrap();
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
            group.broadcast_vec(&mut bytes, 1).unwrap();
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
fn nothing_and_single_numbers_and_groups_of_one_are_no_special_case() {
    for size in [1, 2, 3] {
        for (over, results) in over_each(size, |group| {
            group.all_reduce_sum::<f32>(&mut []).unwrap();
            let nothing = group.reduce_scatter_sum::<f64>(&[]).unwrap().len();
            let empty = group.all_gather::<u8>(&[]).unwrap().concat().len();
            let parts =
                group.all_to_all(&vec![Vec::<u8>::new(); size as usize]).unwrap().concat().len();
            let mut word = Vec::<u8>::new();
            group.broadcast_vec(&mut word, size - 1).unwrap();
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
