//! Mismatched calls and hung ranks, over every transport that does not need a launcher.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::tcp::tests::ranks_within;
use super::{CollectiveError, Group, hosts, threads};

#[cfg(target_os = "linux")]
mod agreement;
#[cfg(target_os = "linux")]
mod calls;

const PLENTY: Duration = Duration::from_secs(1200);

/// How long ranks wait for one that hangs: much longer than this machine now takes for `work`, in
/// which none hangs.
pub(super) fn longer_than(least: Duration, work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    least.max(50 * begun.elapsed())
}

/// Checks that all other ranks name a rank that hangs in a sum of `length` numbers. `ranks` runs
/// all ranks with a timeout.
pub(super) fn check_that_a_hung_rank_is_named(
    hung: u32,
    length: usize,
    ranks: impl Fn(
        Duration,
        &(dyn Fn(Group) -> Option<CollectiveError> + Sync),
    ) -> Vec<Option<CollectiveError>>,
) {
    let ended = AtomicU32::new(0);
    let timeout = longer_than(Duration::from_secs(2), || {
        let sum = |mut group: Group| group.all_reduce_sum(&mut vec![1.0_f32; length]).err();
        assert!(ranks(PLENTY, &sum).iter().all(Option::is_none));
    });
    let errors = ranks(timeout, &|mut group| {
        if group.rank().index() == hung {
            while ended.load(Ordering::Relaxed) < group.size() - 1 {
                thread::sleep(Duration::from_millis(10));
            }
            return None;
        }
        let error = group.all_reduce_sum(&mut vec![1.0_f32; length]).unwrap_err();
        ended.fetch_add(1, Ordering::Relaxed);
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let (CollectiveError::TimedOut { rank, .. } | CollectiveError::Lost { rank, .. }) = error
        else {
            panic!("{length} numbers: {error}")
        };
        assert_eq!(rank, hung, "{length} numbers");
    }
}

/// What `run` returns on `size` ranks, by transport.
fn over_each<T: Send>(
    size: u32,
    run: impl Fn(&mut Group) -> T + Sync,
) -> Vec<(&'static str, Vec<T>)> {
    vec![
        ("threads", threads::run(size, PLENTY, |group| run(group)).unwrap()),
        ("TCP", ranks_within(PLENTY, size, |tcp| run(&mut Group::new(Box::new(tcp))))),
        (
            "joined",
            ranks_within(PLENTY, size, |tcp| run(&mut Group::new(hosts::join(tcp).unwrap()))),
        ),
    ]
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
fn numbers_of_another_type_or_reduction_or_root_are_another_call() {
    type Call = fn(&mut Group) -> Result<(), CollectiveError>;
    let calls: [Call; 6] = [
        |group| group.all_reduce_sum(&mut [1.0_f32; 4]),
        |group| group.all_reduce_sum(&mut [1.0_f64; 2]),
        |group| group.all_reduce_max(&mut [1.0_f32; 4]),
        |group| group.reduce_scatter_sum(&[1.0_f32; 4]).map(drop),
        |group| group.broadcast(&mut vec![1; 8], 0),
        |group| group.broadcast(&mut vec![1; 8], 1),
    ];
    for (one, other) in [(0, 1), (0, 2), (0, 3), (4, 5), (3, 2)] {
        for (over, errors) in over_each(2, |group| {
            let call = if group.rank().is_first() { calls[one] } else { calls[other] };
            // The root of a broadcast hears of the difference in its next call.
            call(group).and_then(|()| group.barrier()).err().map(|error| error.to_string())
        }) {
            let named = errors.iter().flatten().any(|error| error.contains(" called "));
            assert!(
                named && errors.iter().all(Option::is_some),
                "{over}: {one} {other}: {errors:?}"
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
        let names = |error: &String| error.contains("100001 numbers to a sum of 100000");
        assert!(errors.iter().any(names), "{over}: {errors:?}");
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
            group.broadcast(&mut vec![1], 2).unwrap_err(),
            group.all_to_all(&[vec![1]]).unwrap_err(),
            group.all_to_all(&[vec![1], vec![1, 2]]).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, CollectiveError::Argument { .. })));
        assert_eq!(errors[0].to_string(), "broadcast: rank 2 of a group of 2");
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
            group.broadcast(&mut word, size - 1).unwrap();
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
