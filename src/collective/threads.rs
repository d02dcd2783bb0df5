//! Ranks as threads of one process, for tests and experiments.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::call::Call;
use super::element::{Numbers, Reduction};
use super::error::{CollectiveError, Result, UNREADABLE, aborted};
use super::group::Group;
use super::split;
use super::transport::Transport;
use crate::rendezvous::LONGEST_TIMEOUT;
use crate::value::rank::{Rank, RankError};
use mpienv_core::seam::Owner;

/// The host that errors name.
const HOST: &str = "this process";

/// One of several ranks in one process. Move it to its thread and convert it to a [`Group`] there.
#[derive(Debug)]
pub struct Threads {
    rank: Rank,
    timeout: Duration,
    shared: Arc<Shared>,
    /// How many times this rank has split the group.
    splits: u64,
    /// The rank that made an earlier call fail, and why.
    failed: Option<(u32, String)>,
    /// The process of the threads: a forked child has only one of them.
    owner: Owner,
}

#[derive(Debug)]
struct Shared {
    /// Each rank's number in the original group, for errors.
    names: Vec<u32>,
    board: Mutex<Board>,
    changed: Condvar,
    /// The groups that some ranks have not joined yet, by the number of the split and the color.
    groups: Mutex<BTreeMap<(u64, u32), Taken>>,
}

/// A group of a split, and the number of ranks that have joined it.
#[derive(Debug)]
struct Taken {
    shared: Arc<Shared>,
    ranks: u32,
}

/// The call that a rank makes, and its bytes.
type Brought = (Call, Vec<u8>);

/// What ranks contribute to a round, and the result of the previous round.
#[derive(Debug)]
struct Board {
    round: u64,
    brought: Vec<Option<Brought>>,
    result: Arc<Vec<Brought>>,
    /// Why a rank makes no more calls.
    gone: Vec<Option<String>>,
}

/// Returns the ranks of a group, each to be moved to its own thread.
///
/// A rank gets an error if it waits for another longer than `timeout`, which is capped at ten
/// years.
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
    let timeout = timeout.min(LONGEST_TIMEOUT);
    let (shared, owner) = (Arc::new(Shared::of((0..size).collect())), Owner::current());
    let thread = |rank| {
        let shared = Arc::clone(&shared);
        Threads { rank, timeout, shared, splits: 0, failed: None, owner }
    };
    Ok(first.all().map(thread).collect())
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
pub fn run<T: Send>(
    size: u32,
    timeout: Duration,
    work: impl Fn(&mut Group) -> T + Sync,
) -> Result<Vec<T>, RankError> {
    let ranks = group(size, timeout)?;
    Ok(thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            ranks.into_iter().map(|rank| scope.spawn(move || work(&mut rank.into()))).collect();
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
            gone: vec![None; names.len()],
        };
        let (board, changed, groups) = (Mutex::new(board), Condvar::new(), Mutex::default());
        Shared { names, board, changed, groups }
    }

    /// The rank's number in the original group.
    fn name(&self, rank: Rank) -> u32 {
        self.names[rank.index() as usize]
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        // No rank panics while it holds the board, and the board is consistent between any two
        // statements.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Threads {
    /// Like [`Threads::try_exchange`], but fails if an earlier call failed.
    fn exchange(&mut self, call: Call, bytes: Vec<u8>) -> Result<Arc<Vec<Brought>>> {
        CollectiveError::check_owner(self.owner)?;
        if let Some((rank, reason)) = &self.failed {
            let (rank, reason) = (*rank, format!("{reason} (in an earlier call)"));
            return Err(CollectiveError::Lost { rank, host: HOST.to_owned(), reason });
        }
        let result = self.try_exchange(call, bytes);
        if let Err(error) = &result
            && let Some(rank) = error.rank()
        {
            self.failed = Some((rank, error.to_string()));
        }
        result
    }

    /// Contributes bytes, waits for all other ranks, and returns all ranks' bytes in rank order.
    fn try_exchange(&self, call: Call, bytes: Vec<u8>) -> Result<Arc<Vec<Brought>>> {
        let deadline = Instant::now() + self.timeout;
        let mut board = self.shared.board();
        let round = board.round;
        board.brought[self.rank.index() as usize] = Some((call, bytes));
        if board.brought.iter().all(Option::is_some) {
            board.result = Arc::new(board.brought.iter_mut().filter_map(Option::take).collect());
            board.round += 1;
            self.shared.changed.notify_all();
        }
        // The result stays until all ranks have taken it: the next round completes only after all
        // have joined it.
        while board.round == round {
            let missing = |rank: &Rank| board.brought[rank.index() as usize].is_none();
            let gone = |rank: Rank| Some((rank, board.gone[rank.index() as usize].clone()?));
            let (host, left) =
                (HOST.to_owned(), deadline.saturating_duration_since(Instant::now()));
            if let Some((rank, reason)) = self.rank.all().filter(missing).find_map(gone) {
                let rank = self.shared.name(rank);
                return Err(CollectiveError::Lost { rank, host, reason });
            }
            if let Some(rank) = self.rank.all().find(missing).filter(|_| left.is_zero()) {
                let (rank, seconds) = (self.shared.name(rank), self.timeout.as_secs_f64());
                return Err(CollectiveError::TimedOut { rank, host, seconds });
            }
            let waited = self.shared.changed.wait_timeout(board, left);
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let result = Arc::clone(&board.result);
        drop(board);
        let own = self.shared.name(self.rank);
        match self.shared.names.iter().zip(result.iter()).find(|(_, (found, _))| *found != call) {
            Some((&rank, &(found, _))) => {
                Err(CollectiveError::different_calls(rank, found, own, call))
            }
            None => Ok(result),
        }
    }

    /// Makes no more calls, and tells the others why unless they know.
    fn leave(&self, reason: String) {
        if !self.owner.is_here() {
            // Another thread may have held the board when the process forked.
            return;
        }
        self.shared.board().gone[self.rank.index() as usize].get_or_insert(reason);
        self.shared.changed.notify_all();
    }

    fn reduce(&mut self, call: Call, numbers: &mut Numbers<'_>, by: Reduction) -> Result<()> {
        let all = self.exchange(call, numbers.bytes().to_vec())?;
        numbers.reduce(by, all.iter().map(|(_, brought)| &brought[..]));
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
        self.leave("it exited".to_owned());
    }
}

impl Transport for Threads {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn describe(&self) -> String {
        "threads".to_owned()
    }

    fn all_reduce(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.reduce(Call::all_reduce(&numbers, by), &mut numbers, by)
    }

    fn reduce_scatter(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.reduce(Call::reduce_scatter(&numbers, by), &mut numbers, by)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.exchange(Call::ALL_GATHER, bytes.to_vec())?;
        Ok(all.iter().map(|(_, bytes)| bytes.clone()).collect())
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let own = self.rank.index() as usize;
        let length = parts[own].len();
        let all = self.exchange(Call::all_to_all(length), parts.concat())?;
        Ok(all.iter().map(|(_, bytes)| bytes[length * own..length * (own + 1)].to_vec()).collect())
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()> {
        let own = if self.rank.index() == root { std::mem::take(bytes) } else { Vec::new() };
        let all = self.exchange(Call::broadcast(root), own)?;
        bytes.clone_from(&all[root as usize].1);
        Ok(())
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        self.exchange(call, Vec::new()).map(drop)
    }

    fn abort(&mut self, code: u8, _last_words: &mut dyn FnMut()) {
        let reason = aborted(code);
        self.leave(reason.clone());
        self.failed.get_or_insert((self.shared.name(self.rank), reason));
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        let all = self.exchange(Call::SPLIT, split::request(color, key))?;
        let own = self.rank.index() as usize;
        let part = split::part(own, all.iter().map(|(_, request)| request));
        let part = part.map_err(|rank| CollectiveError::Lost {
            rank: self.shared.names[rank],
            host: HOST.to_owned(),
            reason: UNREADABLE.to_owned(),
        })?;
        let names: Vec<u32> = part.members.iter().map(|&rank| self.shared.names[rank]).collect();

        let place = (self.splits, color);
        self.splits += 1;
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups
            .entry(place)
            .or_insert_with(|| Taken { shared: Arc::new(Shared::of(names)), ranks: 0 });
        group.ranks += 1;
        let (shared, is_complete) = (Arc::clone(&group.shared), group.ranks == part.rank.size());
        if is_complete {
            groups.remove(&place);
        }
        drop(groups);
        Ok(Box::new(Threads { rank: part.rank, shared, splits: 0, failed: None, ..*self }))
    }
}
