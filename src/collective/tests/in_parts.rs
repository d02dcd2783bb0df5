//! Reductions of values that ranks compute part by part.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn a_sum_in_parts_has_the_bits_of_one_at_once_whatever_the_parts_of_each_rank() {
    // Two ranks reduce up to 512 KiB while they compute; four, 128 KiB together.
    let lengths = [0, 1, 7_852, 1 << 17, (1 << 17) + 1];
    let all = lengths.map(|length| (2, length)).into_iter().chain([(3, 7_852), (4, 20_000)]);
    for (size, length) in all {
        let expected = sum_in_order(0..size, length);
        for (over, sums) in over_each(size, |group| {
            let own = group.rank().index();
            let numbers = numbers(own, length);
            let mut sums = Vec::new();
            for turn in 0..4 {
                let mut values = vec![f32::NAN; length];
                if own == 0 && turn == 3 {
                    values.copy_from_slice(&numbers);
                    group.all_reduce_sum(&mut values).unwrap();
                } else {
                    let part = [length + 1, 3_920, 1_000 + own as usize, 4_096][turn];
                    let compute = |first: usize, part: &mut [f32]| {
                        part.copy_from_slice(&numbers[first..][..part.len()]);
                        if own as usize == turn {
                            // The others have long completed their parts, or not begun.
                            thread::sleep(Duration::from_micros(200));
                        }
                    };
                    group.all_reduce_in_parts(&mut values, Reduction::Sum, part, compute).unwrap();
                }
                sums.push(bits(&values));
            }
            sums
        }) {
            for sum in sums.into_iter().flatten() {
                assert!(sum == expected, "{over}: {size} ranks, {length} numbers");
            }
        }
    }
}

#[test]
fn other_work_is_done_once_after_the_last_part() {
    // Parts of 7,852 numbers are reduced early, those of more than 512 KiB are not.
    for length in [0, 1, 7_852, (1 << 17) + 1] {
        for (over, sums) in over_each(2, |group| {
            let mut values = vec![f32::NAN; length];
            let (mut computed, mut done) = (0, Vec::new());
            let computed = Cell::from_mut(&mut computed);
            let compute = |_, part: &mut [f32]| {
                part.fill(1.0);
                computed.set(computed.get() + part.len());
            };
            let other_work = || done.push(computed.get());
            group
                .all_reduce_in_parts_while(&mut values, Reduction::Sum, 1_000, compute, other_work)
                .unwrap();
            (values, done)
        }) {
            for (sum, done) in sums {
                assert!(sum == vec![2.0; length], "{over}: {length} numbers");
                assert_eq!(done, [length], "{over}: {length} numbers");
            }
        }
    }
}

#[test]
fn all_others_name_a_rank_that_panics_in_its_other_work() {
    for (over, errors) in over_each(3, |group| {
        let own = group.rank().index();
        let sum = |group: &mut Group| {
            let (values, fill) = (&mut [0.0; 7_850], |_, part: &mut [f32]| part.fill(1.0));
            group.all_reduce_in_parts_while(values, Reduction::Sum, 785, fill, || {
                assert!(own != 1, "a panic that this test expects");
            })
        };
        if own == 1 {
            assert!(catch_unwind(AssertUnwindSafe(|| sum(group))).is_err());
            return group.barrier().unwrap_err().to_string();
        }
        // Over shared memory, the others already have what they need from the rank.
        sum(group).and_then(|()| group.barrier()).unwrap_err().to_string()
    }) {
        assert_eq!(errors[1], CollectiveError::Canceled.to_string(), "{over}");
        for error in [&errors[0], &errors[2]] {
            let is_named = error.starts_with("rank 1 on ");
            assert!(is_named && error.contains("its calls were canceled"), "{over}: {error}");
        }
    }
}

#[test]
fn all_others_name_a_rank_that_panics_while_it_computes_a_part() {
    for (over, errors) in over_each(3, |group| {
        let own = group.rank().index();
        let sum = |group: &mut Group| {
            group.all_reduce_in_parts(&mut [0.0; 7_850], Reduction::Sum, 785, |first, part| {
                assert!(own != 1 || first < 1_570, "a panic that this test expects");
                part.fill(1.0);
            })
        };
        if own == 1 {
            assert!(catch_unwind(AssertUnwindSafe(|| sum(group))).is_err());
            return group.barrier().unwrap_err().to_string();
        }
        sum(group).unwrap_err().to_string()
    }) {
        assert_eq!(errors[1], CollectiveError::Canceled.to_string(), "{over}");
        for error in [&errors[0], &errors[2]] {
            let is_named = error.starts_with("rank 1 on ");
            assert!(is_named && error.contains("its calls were canceled"), "{over}: {error}");
        }
    }
}
