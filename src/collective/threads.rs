//! Ranks as threads of one process, for tests and for trying a number of ranks.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::call::Call;
use super::element::{Numbers, Reduction, Scratch};
use super::error::CollectiveError;
use super::group::Group;
use super::split;
use super::transport::Transport;
use crate::value::rank::{Rank, RankError};

/// The host that errors name.
const HOST: &str = "this process";

/// One of several ranks in one process, to be moved to its thread and made a [`Group`] there.
#[derive(Debug)]
pub struct Threads {
    rank: Rank,
    timeout: Duration,
    shared: Arc<Shared>,
    /// How many times this rank has split the group.
    splits: u64,
}

#[derive(Debug)]
struct Shared {
    /// Each rank's number in the original group, for errors.
    names: Vec<u32>,
    board: Mutex<Board>,
    changed: Condvar,
    /// The groups that some ranks have not taken yet, by the number of the split and the color.
    groups: Mutex<BTreeMap<(u64, u32), Taken>>,
}

/// A group of a split, and the number of ranks that have taken it.
#[derive(Debug)]
struct Taken {
    shared: Arc<Shared>,
    ranks: usize,
}

/// The call that a rank makes, and its bytes.
type Brought = (Call, Vec<u8>);

/// What ranks contribute to a round, and the result of the previous round.
#[derive(Debug)]
struct Board {
    round: u64,
    brought: Vec<Option<Brought>>,
    result: Arc<Vec<Brought>>,
    gone: Vec<bool>,
}

/// The ranks of a group, each to be moved to its own thread.
///
/// A rank that waits longer than `timeout` for another gets an error.
///
/// ```
/// use std::time::Duration;
/// use mpienv::collective::Group;
/// use mpienv::collective::threads::{self, Threads};
///
/// let only: Threads = threads::group(1, Duration::from_secs(10))?.remove(0);
/// assert_eq!(Group::from(only).size(), 1);
/// # Ok::<(), mpienv::RankError>(())
/// ```
///
/// # Errors
/// If `size` is 0.
pub fn group(size: u32, timeout: Duration) -> Result<Vec<Threads>, RankError> {
    let first = Rank::new(0, size)?;
    let shared = Arc::new(Shared::of((0..size).collect()));
    Ok(first.all().map(|rank| Threads { rank, timeout, shared: Arc::clone(&shared), splits: 0 }).collect())
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
/// # Ok::<(), mpienv::RankError>(())
/// ```
///
/// # Errors
/// If `size` is 0.
///
/// # Panics
/// If `work` panics.
pub fn run<T: Send>(size: u32, timeout: Duration, work: impl Fn(&mut Group) -> T + Sync) -> Result<Vec<T>, RankError> {
    let ranks = group(size, timeout)?;
    Ok(thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || work(&mut rank.into()))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    }))
}

impl Shared {
    fn of(names: Vec<u32>) -> Shared {
        let board = Board {
            round: 0,
            brought: vec![None; names.len()],
            result: Arc::default(),
            gone: vec![false; names.len()],
        };
        Shared { names, board: Mutex::new(board), changed: Condvar::new(), groups: Mutex::default() }
    }

    /// The rank's number in the original group.
    fn name(&self, rank: Rank) -> u32 {
        self.names[rank.index() as usize]
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        // No rank panics while it holds the board, and the board is consistent between any two statements.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Threads {
    /// Contributes bytes, waits for those of all others, and returns all in rank order.
    fn exchange(&mut self, call: Call, bytes: Vec<u8>) -> Result<Arc<Vec<Brought>>, CollectiveError> {
        let deadline = Instant::now() + self.timeout;
        let mut board = self.shared.board();
        let round = board.round;
        board.brought[self.rank.index() as usize] = Some((call, bytes));
        if board.brought.iter().all(Option::is_some) {
            board.result = Arc::new(board.brought.iter_mut().filter_map(Option::take).collect());
            board.round += 1;
            self.shared.changed.notify_all();
        }
        // The result stays until all have taken it: the next round ends only after all ranks have joined it.
        while board.round == round {
            let missing = |rank: &Rank| board.brought[rank.index() as usize].is_none();
            if let Some(rank) = self.rank.all().filter(missing).find(|rank| board.gone[rank.index() as usize]) {
                let reason = "it exited".to_owned();
                return Err(CollectiveError::Lost { rank: self.shared.name(rank), host: HOST.to_owned(), reason });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(rank) = self.rank.all().find(missing).filter(|_| left.is_zero()) {
                let seconds = self.timeout.as_secs_f64();
                return Err(CollectiveError::TimedOut { rank: self.shared.name(rank), host: HOST.to_owned(), seconds });
            }
            board = self.shared.changed.wait_timeout(board, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let result = Arc::clone(&board.result);
        drop(board);
        for (&rank, &(found, _)) in self.shared.names.iter().zip(result.iter()) {
            if found != call {
                return Err(CollectiveError::different_calls(rank, found, self.shared.name(self.rank), call));
            }
        }
        Ok(result)
    }

    fn reduce(&mut self, call: Call, numbers: &mut Numbers<'_>, by: Reduction) -> Result<(), CollectiveError> {
        let kind = numbers.kind();
        let all = self.exchange(call, numbers.bytes().to_vec())?;
        // A vector of bytes may lie at any address; numbers may not.
        let mut row = Scratch::default();
        for (rank, (_, brought)) in all.iter().enumerate() {
            let row = row.bytes(brought.len());
            row.copy_from_slice(brought);
            match rank {
                0 => numbers.bytes().copy_from_slice(row),
                _ => kind.combine(by, numbers.bytes(), row),
            }
        }
        Ok(())
    }
}

impl From<Threads> for Group {
    fn from(rank: Threads) -> Group {
        Group::new(Box::new(rank))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.board().gone[self.rank.index() as usize] = true;
        self.shared.changed.notify_all();
    }
}

impl Transport for Threads {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn describe(&self) -> String {
        "threads".to_owned()
    }

    fn all_reduce(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<(), CollectiveError> {
        let call = Call::all_reduce(by, numbers.kind(), numbers.count());
        self.reduce(call, &mut numbers, by)
    }

    fn reduce_scatter(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<(), CollectiveError> {
        let call = Call::reduce_scatter(by, numbers.kind(), numbers.count());
        self.reduce(call, &mut numbers, by)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let all = self.exchange(Call::ALL_GATHER, bytes.to_vec())?;
        Ok(all.iter().map(|(_, bytes)| bytes.clone()).collect())
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let length = parts.first().map_or(0, Vec::len);
        let all = self.exchange(Call::all_to_all(length), parts.concat())?;
        let start = length * self.rank.index() as usize;
        Ok(all.iter().map(|(_, bytes)| bytes[start..start + length].to_vec()).collect())
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        let own = if self.rank.index() == root { std::mem::take(bytes) } else { Vec::new() };
        let all = self.exchange(Call::broadcast(root), own)?;
        if let Some((_, sent)) = all.get(root as usize) {
            bytes.clone_from(sent);
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.exchange(Call::BARRIER, Vec::new()).map(drop)
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>, CollectiveError> {
        let all = self.exchange(Call::SPLIT, split::request(color, key))?;
        let members = split::members(color, all.iter().map(|(_, request)| request));
        let position = members.iter().position(|&rank| rank == self.rank.index() as usize).unwrap_or_default();
        let names: Vec<u32> = members.iter().map(|&rank| self.shared.names[rank]).collect();
        let size = names.len();

        let place = (self.splits, color);
        self.splits += 1;
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups.entry(place).or_insert_with(|| Taken { shared: Arc::new(Shared::of(names)), ranks: 0 });
        group.ranks += 1;
        let (shared, complete) = (Arc::clone(&group.shared), group.ranks == size);
        if complete {
            groups.remove(&place);
        }
        drop(groups);
        // The position is below the size, so this cannot fail.
        let rank = Rank::new(position as u32, size as u32).unwrap_or(Rank::ALONE);
        Ok(Box::new(Threads { rank, timeout: self.timeout, shared, splits: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn sums_are_the_same_bits_on_every_rank() {
        let sums = run(4, LONG, |rank| {
            let own = rank.rank().index() as f32;
            let mut last = Vec::new();
            for round in 0..100 {
                last = vec![0.1 + own * 1e7, own, round as f32];
                rank.all_reduce_sum(&mut last).unwrap();
            }
            last
        })
        .unwrap();
        assert_eq!(sums[0][1..], [6.0, 396.0]);
        assert!(sums.iter().all(|sum| sum == &sums[0]));
    }

    #[test]
    fn every_rank_gets_what_the_others_bring() {
        let seen = run(3, LONG, |rank| {
            let own = rank.rank().index() as u8;
            let all = rank.all_gather(&vec![own; usize::from(own)]).unwrap();
            let mut word = if own == 2 { b"from two".to_vec() } else { Vec::new() };
            rank.broadcast(&mut word, 2).unwrap();
            rank.barrier().unwrap();
            (all, word)
        })
        .unwrap();
        let expected = (vec![vec![], vec![1], vec![2, 2]], b"from two".to_vec());
        assert!(seen.iter().all(|one| *one == expected), "{seen:?}");
    }

    #[test]
    fn a_split_makes_groups_ordered_by_key() {
        let sums = run(6, LONG, |rank| {
            let own = rank.rank().index();
            // Twice the same colors, in turned order: 4 2 0 and 5 3 1.
            let mut groups = [rank.split(own % 2, 9 - own).unwrap(), rank.split(own % 2, 9 - own).unwrap()];
            let mut sum = [0.0_f32];
            for group in &mut groups {
                sum = [own as f32];
                group.all_reduce_sum(&mut sum).unwrap();
            }
            rank.barrier().unwrap();
            let inner = groups[0].split(0, 0).unwrap();
            (groups[1].rank().index(), sum[0], groups[0].all_gather(&[own as u8]).unwrap().concat(), inner.rank())
        })
        .unwrap();
        for (own, (position, sum, all, inner)) in (0..6).zip(sums) {
            let expected = if own % 2 == 0 { (6.0, [4, 2, 0]) } else { (9.0, [5, 3, 1]) };
            assert_eq!((position, sum, all.as_slice()), (2 - own / 2, expected.0, &expected.1[..]), "{own}");
            assert_eq!(inner, Rank::new(position, 3).unwrap());
        }
    }

    #[test]
    fn a_rank_that_ends_is_named_by_its_first_number_in_a_split_group() {
        let results = run(4, LONG, |rank| {
            let own = rank.rank().index();
            let mut group = rank.split(own % 2, own).unwrap();
            if own == 3 { Ok(()) } else { group.barrier() }
        })
        .unwrap();
        assert!(results[0].is_ok() && results[2].is_ok());
        assert_eq!(results[1].as_ref().unwrap_err().to_string(), "rank 3 on this process is lost: it exited");
    }

    #[test]
    fn a_reduce_scatter_gives_each_rank_its_part_of_the_sum() {
        let parts = run(2, LONG, |rank| {
            let own = rank.rank().index() as f32;
            rank.reduce_scatter_sum(&[1.0_f32, 2.0 + own, 3.0, 4.0 + own]).unwrap()
        })
        .unwrap();
        assert_eq!(parts, [[2.0, 5.0], [6.0, 9.0]]);
    }

    #[test]
    fn an_all_to_all_brings_every_rank_its_parts() {
        let parts = run(3, LONG, |rank| {
            let own = rank.rank().index() as u8;
            rank.all_to_all(&(0..3).map(|to| vec![own, to]).collect::<Vec<_>>()).unwrap()
        })
        .unwrap();
        for (own, parts) in (0..3).zip(parts) {
            assert_eq!(parts, [[0, own], [1, own], [2, own]]);
        }
    }

    #[test]
    fn a_rank_that_ends_is_named() {
        let results = run(3, LONG, |rank| if rank.rank().index() == 1 { Ok(()) } else { rank.barrier() }).unwrap();
        for result in [&results[0], &results[2]] {
            assert_eq!(result.as_ref().unwrap_err().to_string(), "rank 1 on this process is lost: it exited");
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let mut ranks = group(2, Duration::from_millis(50)).unwrap();
        let error = Transport::barrier(&mut ranks[0]).unwrap_err().to_string();
        assert_eq!(
            error,
            "rank 1 on this process did not come within 0.05 s: it hangs, is cut off, or was never started"
        );
    }

    #[test]
    fn a_rank_that_brings_another_length_is_named() {
        let results =
            run(2, LONG, |rank| rank.all_reduce_sum(&mut vec![1.0_f32; 3 + rank.rank().index() as usize])).unwrap();
        let error = results[0].as_ref().unwrap_err().to_string();
        assert_eq!(
            error,
            "rank 1 brought 4 numbers to a sum of 3: all ranks must run the same program with the same options"
        );
    }
}
