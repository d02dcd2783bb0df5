//! Groups split from all ranks.

use std::sync::Barrier;

use super::*;
use crate::tests::measured::longer_than;

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

#[cfg(target_os = "linux")]
#[test]
fn ranks_that_wait_in_a_group_sleep_though_another_rank_has_exited() {
    const WAIT: Duration = Duration::from_secs(1);
    /// How long this thread has run on any processor.
    fn on_processor() -> Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }
    ranks(3, |mut tcp| {
        let own = tcp.rank().index();
        let mut pair = tcp.split(u32::from(own == 2), 0).unwrap();
        if own == 2 {
            return;
        }
        drop(tcp);
        pair.meet(Call::BARRIER).unwrap();
        if own == 0 {
            thread::sleep(WAIT);
        }
        let before = on_processor();
        pair.meet(Call::BARRIER).unwrap();
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
        let heard = if own == 1 { group.meet(Call::BARRIER) } else { world.meet(Call::BARRIER) };
        Some(heard.unwrap_err())
    });
    for error in errors.iter().flatten() {
        assert!(error.to_string().starts_with("rank 3 on "), "{error}");
    }
    assert_eq!(errors.iter().flatten().count(), 3);
}

#[test]
fn a_rank_that_hangs_in_a_group_is_named_by_its_rank_in_the_world() {
    let timeout = longer_than(Duration::from_secs(2), || {
        ranks(4, |mut world| {
            let own = world.rank().index();
            world.split(own / 2, 0).unwrap().all_reduce_sum(&mut [1.0]).unwrap();
            world.meet(Call::BARRIER).unwrap();
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
        Some(first.unwrap_or_else(|| world.meet(Call::BARRIER).unwrap_err()))
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
            if difference.contains("brought 4 numbers to a reduction of 5") => {}
        _ => panic!("{error}"),
    }
}

#[test]
fn calls_on_different_groups_are_distinguished() {
    let errors = ranks(2, |mut world| {
        let mut groups = [world.split(0, 0).unwrap(), world.split(1, 0).unwrap()];
        let turn = world.rank().index() as usize;
        groups[turn].meet(Call::BARRIER).err().map(|error| error.to_string())
    });
    assert!(
        errors.iter().flatten().any(|error| error.contains("do not make the same calls")),
        "{errors:?}"
    );
}
