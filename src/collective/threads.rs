//! Ranks as threads of one process, for tests and experiments.
//!
//! They share memory, as processes of one host do, and no variable of a launcher is read. Each pair
//! of ranks takes two of the process's open files.

use std::hint::black_box;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Barrier, OnceLock, PoisonError, RwLock};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use super::error::{CollectiveError, Result};
use super::group::Group;
use super::hosts;
use super::tcp::Tcp;
use crate::rendezvous::LONGEST_TIMEOUT;
use crate::value::rank::Rank;

/// Memory in bytes, set aside so that started threads can exit if no further thread can be started.
const RESERVE: usize = 8 << 20;
/// Memory in bytes that must be free to start a thread. Of more than 32 MiB, glibc keeps nothing
/// when it is freed.
const ROOM: usize = 33 << 20;

/// One of several ranks in one process. Move it to its thread and convert it to a [`Group`] there.
#[derive(Debug)]
pub struct ThreadRank(Group);

impl From<ThreadRank> for Group {
    fn from(rank: ThreadRank) -> Group {
        rank.0
    }
}

/// Returns the ranks of a group, each to be moved to its own thread.
///
/// A rank gets an error if it waits for another longer than `timeout`, which is capped at ten
/// years.
///
/// ```
/// use std::time::Duration;
/// use mpienv::collective::Group;
/// use mpienv::collective::threads::{self, ThreadRank};
///
/// let only: ThreadRank = threads::group(1, Duration::from_secs(10))?.remove(0);
/// assert_eq!(Group::from(only).size(), 1);
/// # Ok::<(), mpienv::collective::CollectiveError>(())
/// ```
///
/// # Errors
/// If `size` or `timeout` is 0, or the process can open no more files.
pub fn group(size: u32, timeout: Duration) -> Result<Vec<ThreadRank>> {
    let first = Rank::new(0, size).map_err(|error| CollectiveError::Argument {
        call: "threads::group",
        reason: format!("the number of ranks {error}"),
    })?;
    if size == 1 {
        return Ok(vec![ThreadRank(Group::alone())]);
    }
    if timeout.is_zero() {
        return Err(CollectiveError::no_time("threads::group"));
    }
    let ranks = Tcp::of_this_process(first, timeout.min(LONGEST_TIMEOUT));
    let ranks = hosts::join_here(ranks.map_err(CollectiveError::Socket)?);
    Ok(ranks.into_iter().map(|rank| ThreadRank(Group::new(rank))).collect())
}

/// Runs `work` on every rank of a group, each in its own thread. Returns the results in rank order.
///
/// ```
/// use std::time::Duration;
/// use mpienv::collective::threads;
///
/// let sums = threads::run(4, Duration::from_secs(10), |group| {
///     let mut sum = [group.rank().index()];
///     group.all_reduce_sum(&mut sum).map(|()| sum)
/// })?;
/// assert!(sums.into_iter().all(|sum| sum.is_ok_and(|sum| sum == [6])));
/// # Ok::<(), mpienv::collective::CollectiveError>(())
/// ```
///
/// # Errors
/// As [`group`], or if a thread cannot be started, for which 33 MiB must be free. Then `work` has
/// run on none of the ranks.
///
/// # Panics
/// If `work` panics, with the first panic: those of other ranks may follow from it.
pub fn run<T: Send>(
    size: u32,
    timeout: Duration,
    work: impl Fn(&mut Group) -> T + Sync,
) -> Result<Vec<T>> {
    let ranks = group(size, timeout)?;
    let first_panic = OnceLock::new();
    // Ranks start to work only after every thread has started. If memory runs out while threads are
    // being started, a working rank would run out of memory too, which aborts the process.
    let all_started = RwLock::new(true);
    let mut starting = all_started.write().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let (work, first_panic, all_started) = (&work, &first_panic, &all_started);
        let reserve = black_box(Vec::<u8>::with_capacity(RESERVE));
        let mut threads = Vec::new();
        let started: Result<()> = ranks.into_iter().enumerate().try_for_each(|(index, rank)| {
            let run = move || {
                let mut group = rank.into();
                // Dropped before the group, from which the other ranks learn of the panic.
                let _noting = NotingPanic { index, first_panic };
                let is_ready = *all_started.read().unwrap_or_else(PoisonError::into_inner);
                is_ready.then(|| work(&mut group))
            };
            let thread = start(scope, run).map_err(|error| CollectiveError::Argument {
                call: "threads::run",
                reason: format!("rank {index} of {size} cannot be started: {error}"),
            });
            threads.push(thread?);
            Ok(())
        });
        *starting = started.is_ok();
        drop((reserve, starting));
        let mut results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        started?;
        if let Some(&first) = first_panic.get() {
            results.swap(0, first);
        }
        let result =
            |result: thread::Result<_>| result.unwrap_or_else(|panic| resume_unwind(panic));
        Ok(results.into_iter().filter_map(result).collect())
    })
}

/// Starts a thread if it has enough memory to start: one that has only its stack aborts the
/// process.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(ROOM)?;
    drop(black_box(room));
    let has_started = Arc::new(Barrier::new(2));
    let started = Arc::clone(&has_started);
    let thread = thread::Builder::new().spawn_scoped(scope, move || {
        started.wait();
        run()
    })?;
    // The check for the next thread must see what this one has allocated to start.
    has_started.wait();
    Ok(thread)
}

/// Notes the rank whose thread panics first.
struct NotingPanic<'a> {
    index: usize,
    first_panic: &'a OnceLock<usize>,
}

impl Drop for NotingPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.first_panic.get_or_init(|| self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::PLENTY;

    #[test]
    fn a_split_makes_groups_ordered_by_key() {
        let sums = run(6, PLENTY, |rank| {
            let own = rank.rank().index();
            // The same colors twice, in reverse rank order: 4 2 0 and 5 3 1.
            let mut groups =
                [rank.split(own % 2, 9 - own).unwrap(), rank.split(own % 2, 9 - own).unwrap()];
            let mut sum = [0.0_f32];
            for group in &mut groups {
                sum = [own as f32];
                group.all_reduce_sum(&mut sum).unwrap();
            }
            rank.barrier().unwrap();
            let inner = groups[0].split(0, 0).unwrap();
            (
                groups[1].rank().index(),
                sum[0],
                groups[0].all_gather(&[own as u8]).unwrap().concat(),
                inner.rank(),
            )
        })
        .unwrap();
        for (own, (position, sum, all, inner)) in (0..6).zip(sums) {
            let expected = if own % 2 == 0 { (6.0, [4, 2, 0]) } else { (9.0, [5, 3, 1]) };
            assert_eq!(
                (position, sum, all.as_slice()),
                (2 - own / 2, expected.0, &expected.1[..]),
                "{own}"
            );
            assert_eq!(inner, Rank::new(position, 3).unwrap());
        }
    }

    #[test]
    fn a_rank_that_ends_is_named_by_its_first_number_in_a_split_group() {
        // What ends a rank ends the calls of all groups, so the even ranks make theirs before.
        let even_ranks_are_done = std::sync::Barrier::new(4);
        let results = run(4, PLENTY, |rank| {
            let own = rank.rank().index();
            let mut group = rank.split(own % 2, own).unwrap();
            let first = if own % 2 == 0 { group.barrier() } else { Ok(()) };
            even_ranks_are_done.wait();
            if own == 1 { group.barrier() } else { first }
        })
        .unwrap();
        assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
        assert_eq!(
            results[1].as_ref().unwrap_err().to_string(),
            "rank 3 called close or dropped its group, rank 1 barrier: \
             a rank that leaves early has returned, closed its group, or failed and printed why"
        );
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let mut ranks = group(2, Duration::from_millis(50)).unwrap();
        let mut first = Group::from(ranks.remove(0));
        assert_eq!(
            first.barrier().unwrap_err().to_string(),
            "rank 1 on a thread of this process did not arrive within 0.05 s: it hangs, waits in another call, is cut off, or needs a longer timeout"
        );
    }

    #[test]
    fn the_others_learn_that_a_rank_has_panicked() {
        let mut ranks = group(2, PLENTY).unwrap();
        let mut first = Group::from(ranks.remove(0));
        let second = Group::from(ranks.remove(0));
        let panics = std::thread::spawn(move || {
            let _group = second;
            panic!("the matrix is singular");
        });
        let error = first.barrier().unwrap_err();
        assert_eq!(error.to_string(), "rank 1 on a thread of this process is lost: it panicked");
        assert!(panics.join().is_err());
    }

    #[test]
    fn a_run_panics_as_the_rank_that_panicked_first() {
        for first in [0, 1, 2] {
            let panic = std::panic::catch_unwind(|| {
                run(3, PLENTY, |group| {
                    assert!(group.rank().index() != first, "the matrix is singular");
                    group.barrier().unwrap();
                })
            });
            let panic = panic.unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"the matrix is singular"), "{first}");
        }
    }

    #[test]
    fn a_group_of_no_ranks_is_an_error() {
        let error = group(0, PLENTY).unwrap_err();
        assert_eq!(error.to_string(), "threads::group: the number of ranks must be at least 1");
    }
}
