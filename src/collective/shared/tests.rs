use super::*;
use crate::collective::group::Group;
use crate::collective::tcp::tests::{numbers, ranks_within};
use crate::collective::tests::check_that_a_hung_rank_is_named;
use crate::collective::threads;

const PLENTY: Duration = Duration::from_secs(1200);

/// Runs `run` on every rank, each in its own thread, over shared memory.
fn ranks<T: Send>(size: u32, run: impl Fn(Shared) -> T + Sync) -> Vec<T> {
    sharing_within(PLENTY, size, run)
}

fn sharing_within<T: Send>(
    timeout: Duration,
    size: u32,
    run: impl Fn(Shared) -> T + Sync,
) -> Vec<T> {
    ranks_within(timeout, size, |tcp| run(Shared::new(tcp, false).unwrap().unwrap()))
}

fn group(shared: Shared) -> Group {
    Group::new(Box::new(shared))
}

/// What a rank gets from every call.
fn results(group: &mut Group, length: usize) -> Vec<Vec<u8>> {
    let (own, size) = (group.rank().index(), group.size());
    let mut results = Vec::new();
    for _ in 0..2 {
        let mut sum = numbers(own, length);
        group.all_reduce_sum(&mut sum).unwrap();
        results.push(bytemuck::cast_slice(&sum).to_vec());
        let mut least: Vec<f64> = numbers(own, length).into_iter().map(f64::from).collect();
        group.all_reduce_min(&mut least).unwrap();
        results.push(bytemuck::cast_slice(&least).to_vec());
        let mut most: Vec<i64> = (0..length as i64).map(|i| i * (i64::from(own) - 1)).collect();
        group.all_reduce_max(&mut most).unwrap();
        results.push(bytemuck::cast_slice(&most).to_vec());
        let part = group.reduce_scatter_sum(&numbers(own, length)).unwrap();
        results.push(bytemuck::cast_slice(&part).to_vec());
        results.extend(group.all_gather(&vec![own as u8; length * own as usize]).unwrap());
        let mut word = vec![own as u8; length * own as usize];
        group.broadcast(&mut word, size - 1).unwrap();
        results.push(word);
        let parts: Vec<_> = (0..size).map(|to| vec![(16 * own + to) as u8; length]).collect();
        results.extend(group.all_to_all(&parts).unwrap());
        group.barrier().unwrap();
    }
    results
}

#[test]
fn ranks_that_share_memory_get_what_threads_get_bit_by_bit() {
    // In the larger cases, the numbers do not fit in one round.
    for (size, length) in
        [(2, 0), (2, 1), (2, 7850), (2, 100_000), (3, 7), (3, 40_000), (4, 7850), (5, 70_001)]
    {
        let shared = ranks(size, |shared| results(&mut group(shared), length));
        let by_threads = threads::run(size, PLENTY, |group| results(group, length)).unwrap();
        assert!(shared == by_threads, "{size} ranks, {length} numbers");
    }
}

#[test]
fn split_groups_share_memory_of_their_own() {
    let all = ranks(6, |shared| {
        let mut world = group(shared);
        let own = world.rank().index();
        // By columns in reverse rank order, by rows in rank order, and each rank by itself.
        let mut groups = [
            world.split(own % 2, 9 - own).unwrap(),
            world.split(own / 3, 0).unwrap(),
            world.split(own, 0).unwrap(),
        ];
        let described = groups.each_ref().map(Group::describe);
        assert_eq!(described, ["shared memory", "shared memory", "TCP"]);
        let mut sums = Vec::new();
        for _ in 0..50 {
            for group in &mut groups {
                let mut sum = [own];
                group.all_reduce_sum(&mut sum).unwrap();
                sums.push(sum[0]);
            }
            world.barrier().unwrap();
        }
        sums
    });
    for (own, sums) in (0..).zip(all) {
        let expected = [[6, 9][own % 2], [3, 12][own / 3], own as u32];
        assert!(sums.chunks(3).all(|sums| sums == expected), "{own}");
    }
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    for length in [10, 1 << 20] {
        let errors = ranks(4, |mut shared| {
            let mut values = vec![1.0_f32; length];
            shared.all_reduce(Numbers::new(&mut values), Reduction::Sum).unwrap();
            if shared.rank().index() == 2 {
                // As when a process is killed: its connections close.
                shared.tcp.members().fail_silently();
                return None;
            }
            let begun = Instant::now();
            let error = shared.all_reduce(Numbers::new(&mut values), Reduction::Sum).unwrap_err();
            assert!(begun.elapsed() < PLENTY / 2);
            let again = shared.barrier().unwrap_err();
            assert!(again.to_string().starts_with("rank 2 on "), "{again}");
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(&error, CollectiveError::Lost { rank: 2, .. }), "{error}");
        }
    }
}

#[test]
fn a_rank_that_exits_too_early_is_named() {
    let errors = ranks(3, |shared| {
        let mut group = group(shared);
        group.barrier().unwrap();
        if group.rank().index() == 1 {
            None
        } else {
            Some(group.barrier().unwrap_err().to_string())
        }
    });
    for error in errors.into_iter().flatten() {
        assert!(
            error.starts_with("rank 1 on ") && error.contains("it exited before this rank did"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_hangs_is_named_by_all_others() {
    check_that_a_hung_rank_is_named(1, 1, |timeout, run| {
        sharing_within(timeout, 4, |shared| run(group(shared)))
    });
}

#[test]
fn a_rank_that_calls_something_else_is_named_with_both_calls() {
    let errors = ranks(2, |shared| {
        let mut group = group(shared);
        match group.rank().index() {
            0 => group.all_reduce_sum(&mut [1.0_f32; 10]).unwrap_err().to_string(),
            _ => group.barrier().unwrap_err().to_string(),
        }
    });
    let same = "all ranks must make the same calls in the same order";
    assert_eq!(
        errors[0],
        format!("rank 1 called barrier, rank 0 all_reduce_sum of 10 f32: {same}")
    );
    assert_eq!(
        errors[1],
        format!("rank 0 called all_reduce_sum of 10 f32, rank 1 barrier: {same}")
    );
}

#[test]
fn the_reason_why_memory_is_not_shared_is_the_same_on_all_ranks() {
    let reasons = ranks_within(PLENTY, 3, |mut tcp| {
        // A rank other than 0 fails to map the memory.
        let mapped = if tcp.rank().index() == 2 { Err("no such file".to_owned()) } else { Ok(()) };
        let reasons =
            tcp.gather(Call::ALL_GATHER, mapped.err().unwrap_or_default().as_bytes()).unwrap();
        first_reason(&reasons)
    });
    assert!(
        reasons
            .iter()
            .all(|reason| reason.as_deref() == Some("rank 2 cannot share memory: no such file"))
    );
}
