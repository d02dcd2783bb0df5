//! Groups split from all ranks.

use std::sync::Barrier;

use super::*;
use crate::collective::tests::longer_than;
use crate::collective::threads;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What a rank receives in two groups that cross each other, in the world, and in a group split
/// from a group.
fn heard(world: &mut Group, length: usize) -> Vec<Vec<u8>> {
    let own = world.rank().index();
    // By columns in reverse rank order, by rows in rank order: 4 2 0 and 5 3 1; 0 1 2 and 3 4 5.
    let mut column = world.split(own % 2, 9 - own).unwrap();
    let mut row = world.split(own / 3, 0).unwrap();
    // 4 0 and 2; 5 1 and 3.
    let mut inner = column.split(column.rank().index() % 2, 7).unwrap();
    let mut heard = Vec::new();
    for _ in 0..3 {
        for group in [&mut column, &mut row, &mut inner] {
            let rank = group.rank();
            heard.push(vec![rank.index() as u8, rank.size() as u8]);
            let mut sum = numbers(own, length);
            group.all_reduce_sum(&mut sum).unwrap();
            heard.push(bytemuck::cast_slice(&sum).to_vec());
            heard.extend(group.all_gather(&vec![own as u8; 1000 * own as usize]).unwrap());
            let mut word = vec![own as u8; 3];
            group.broadcast(&mut word, rank.size() - 1).unwrap();
            heard.push(word);
            let parts: Vec<_> = (0..rank.size()).map(|to| vec![own as u8, to as u8]).collect();
            heard.extend(group.all_to_all(&parts).unwrap());
            let part = group.reduce_scatter_sum(&numbers(own, 13)).unwrap();
            heard.push(bytemuck::cast_slice(&part).to_vec());
            group.barrier().unwrap();
        }
        heard.extend(world.all_gather(&[own as u8]).unwrap());
    }
    heard
}

#[test]
fn ranks_hear_in_their_groups_what_threads_hear_bit_by_bit() {
    for length in [0, 1, 300] {
        let by_tcp = ranks(6, |tcp| heard(&mut Group::new(Box::new(tcp)), length));
        let by_threads = threads::run(6, PLENTY, |rank| heard(rank, length)).unwrap();
        assert!(by_tcp == by_threads, "sums of {length}");
    }
}

#[test]
fn large_sums_are_cut_in_each_group() {
    for length in [40_000, PIECE / 4 * 3 + 1] {
        let sums = ranks(5, |tcp| {
            let own = tcp.rank().index();
            let mut world = tcp;
            // 3 1 and 4 2 0.
            let mut group = world.split(own % 2, 9 - own).unwrap();
            let mut sum = numbers(own, length);
            group.all_reduce_sum(&mut sum).unwrap();
            sum
        });
        for members in [&[1, 3][..], &[0, 2, 4]] {
            let first = &sums[members[0]];
            assert!(members.iter().all(|&rank| bits(&sums[rank]) == bits(first)), "{members:?}");
            let all: Vec<_> = members.iter().map(|&rank| numbers(rank as u32, length)).collect();
            for (i, &sum) in first.iter().enumerate() {
                let exact: f64 = all.iter().map(|values| f64::from(values[i])).sum();
                let size: f64 = all.iter().map(|values| f64::from(values[i].abs())).sum();
                assert!(
                    (f64::from(sum) - exact).abs() <= 1e-6 * size,
                    "number {i}: {sum} for {exact}"
                );
            }
        }
    }
}

#[test]
fn a_group_outlives_the_one_that_it_is_split_from() {
    let all = ranks(4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own / 2, 0).unwrap();
        drop(world);
        group.all_gather(&[own as u8]).unwrap().concat()
    });
    assert_eq!(all, [[0, 1], [0, 1], [2, 3], [2, 3]]);
}

/// How long this thread has run on any processor.
#[cfg(target_os = "linux")]
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_that_wait_in_a_group_sleep_though_another_rank_has_exited() {
    const WAIT: Duration = Duration::from_secs(1);
    ranks(3, |mut tcp| {
        let own = tcp.rank().index();
        let mut pair = tcp.split(u32::from(own == 2), 0).unwrap();
        if own == 2 {
            return;
        }
        drop(tcp);
        pair.barrier().unwrap();
        if own == 0 {
            thread::sleep(WAIT);
        }
        let before = on_processor();
        pair.barrier().unwrap();
        assert!(on_processor() - before < WAIT / 4);
    });
}

#[test]
fn a_rank_that_is_lost_in_a_group_is_named_by_its_rank_in_the_world() {
    let all_are_split = Barrier::new(4);
    let errors = ranks(4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own % 2, own).unwrap();
        all_are_split.wait();
        if own == 3 {
            world.members.fail_silently();
            return None;
        }
        let heard = if own == 1 { group.barrier() } else { world.barrier() };
        Some(heard.unwrap_err())
    });
    for error in errors.iter().flatten() {
        assert!(error.to_string().starts_with("rank 3 on "), "{error}");
    }
    assert_eq!(errors.iter().flatten().count(), 3);
}

#[test]
fn a_rank_that_hangs_in_a_group_is_named_by_its_rank_in_the_world() {
    let timeout = longer_than(Duration::from_millis(600), || {
        ranks(4, |mut world| {
            let own = world.rank().index();
            world.split(own / 2, 0).unwrap().all_reduce_sum(&mut [1.0]).unwrap();
            world.barrier().unwrap();
        });
    });
    let errors = ranks_within(timeout, 4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own / 2, 0).unwrap();
        if own == 2 {
            thread::sleep(5 * timeout);
            return None;
        }
        // The other group works, and waits for this one later.
        let first = group.all_reduce_sum(&mut [1.0]).err();
        assert_eq!(first.is_some(), own == 3);
        Some(first.unwrap_or_else(|| world.barrier().unwrap_err()))
    });
    for error in errors.iter().flatten() {
        assert!(
            matches!(
                error,
                CollectiveError::TimedOut { rank: 2, .. } | CollectiveError::Lost { rank: 2, .. }
            ),
            "{error}"
        );
    }
    assert_eq!(errors.iter().flatten().count(), 3);
}

#[test]
fn lengths_that_differ_in_a_group_are_named_by_the_rank_in_the_world() {
    let others_are_through = Barrier::new(4);
    let errors = ranks(4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own / 2, 0).unwrap();
        let mut sum = |length| group.all_reduce_sum(&mut vec![1.0; length]).err();
        if own < 2 {
            // A rank that still waits for others reports what it hears, and would be named for
            // that.
            assert!(sum(4).is_none());
            others_are_through.wait();
            return None;
        }
        others_are_through.wait();
        sum(if own == 3 { 5 } else { 4 }).filter(|_| own == 2)
    });
    let error = errors[2].as_ref().unwrap();
    match error {
        CollectiveError::Length { rank: 3, found: 5, expected: 4 } => {}
        // The other rank noticed first and reported it.
        CollectiveError::Disagree { rank: 3, difference }
            if difference.contains("brought 4 numbers to a sum of 5") => {}
        _ => panic!("{error}"),
    }
}

#[test]
fn calls_on_different_groups_are_distinguished() {
    let errors = ranks(2, |mut world| {
        let mut groups = [world.split(0, 0).unwrap(), world.split(1, 0).unwrap()];
        let turn = world.rank().index() as usize;
        groups[turn].barrier().err().map(|error| error.to_string())
    });
    assert!(
        errors.iter().flatten().any(|error| error.contains("do not make the same calls")),
        "{errors:?}"
    );
}
