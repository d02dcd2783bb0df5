//! Ranks as threads of one process, for tests and experiments.

mod board;
#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use self::board::{Brought, Shared, Taken};
use super::call::{Call, Message};
use super::cancel::Cancel;
use super::error::{CANCELED, CollectiveError, PANICKED, Result, UNREADABLE, aborted};
use super::group::Group;
use super::numbers::Numbers;
use super::reduction::Reduction;
use super::split;
use super::transport::Transport;
use crate::rendezvous::LONGEST_TIMEOUT;
use crate::value::rank::{Rank, RankError};
use mpienv_ask::seam::Owner;

/// The host that errors name.
const HOST: &str = "this process";

/// One of several ranks in one process. Move it to its thread and convert it to a [`Group`] there.
#[derive(Debug)]
pub struct ThreadRank {
    rank: Rank,
    timeout: Duration,
    shared: Arc<Shared>,
    cancel: Arc<Cancel>,
    /// How many times this rank has split the group.
    splits: u64,
    /// The rank that made an earlier call fail, and why.
    failed: Option<(u32, String)>,
    /// The process of the threads: a forked child has only one of them.
    owner: Owner,
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
/// # Ok::<(), mpienv::RankError>(())
/// ```
///
/// # Errors
/// If `size` is 0.
pub fn group(size: u32, timeout: Duration) -> Result<Vec<ThreadRank>, RankError> {
    let first = Rank::new(0, size)?;
    let timeout = timeout.min(LONGEST_TIMEOUT);
    let (shared, owner) = (Arc::new(Shared::of((0..size).collect())), Owner::current());
    let thread = |rank| {
        let shared = Arc::clone(&shared);
        ThreadRank { rank, timeout, shared, cancel: Arc::default(), splits: 0, failed: None, owner }
            .canceled_by_waking()
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

impl ThreadRank {
    /// Lets what cancels the calls wake this rank.
    fn canceled_by_waking(self) -> ThreadRank {
        let shared = Arc::clone(&self.shared);
        self.cancel.wake_by(move || {
            // A rank that looks at the board and then waits keeps it until it waits.
            drop(shared.board());
            shared.changed.notify_all();
        });
        self
    }

    fn canceled(&self) -> Result<()> {
        if !self.cancel.is_set() {
            return Ok(());
        }
        self.leave(CANCELED.to_owned());
        Err(CollectiveError::Canceled)
    }

    /// Contributes bytes, waits for all other ranks, and returns all ranks' bytes in rank order.
    fn exchange(&mut self, call: Call, bytes: Vec<u8>) -> Result<Arc<Vec<Brought>>> {
        self.unless_failed(|own| own.try_exchange(call, bytes))
    }

    /// Makes a call, or fails if an earlier call failed.
    fn unless_failed<T>(&mut self, call: impl FnOnce(&ThreadRank) -> Result<T>) -> Result<T> {
        CollectiveError::check_owner(self.owner)?;
        self.canceled()?;
        if let Some((rank, reason)) = &self.failed {
            let (rank, reason) = (*rank, format!("{reason} (in an earlier call)"));
            return Err(CollectiveError::Lost { rank, host: HOST.to_owned(), reason });
        }
        let result = call(self);
        if let Err(error) = &result
            && let Some(rank) = error.rank()
        {
            self.failed = Some((rank, error.to_string()));
        }
        result
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
}

impl From<ThreadRank> for Group {
    fn from(rank: ThreadRank) -> Group {
        Group::new(Box::new(rank))
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() { PANICKED } else { "it exited" };
        self.leave(reason.to_owned());
    }
}

impl Transport for ThreadRank {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn describe(&self) -> String {
        "threads".to_owned()
    }

    fn reduce(
        &mut self,
        call: Call,
        mut numbers: Numbers<'_>,
        by: Reduction,
        root: Option<u32>,
    ) -> Result<()> {
        let all = self.exchange(call, numbers.bytes().to_vec())?;
        if root.is_none_or(|root| root == self.rank.index()) {
            numbers.reduce(by, all.iter().map(|(_, brought)| &brought[..]));
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        call: Call,
        values: &[u8],
        mut part: Numbers<'_>,
        by: Reduction,
    ) -> Result<()> {
        let all = self.exchange(call, values.to_vec())?;
        let (kind, own, ranks) =
            (part.kind(), self.rank.index() as usize, self.rank.size() as usize);
        let share = kind.part(values.len() / kind.size(), own, ranks);
        part.reduce(by, all.iter().map(|(_, brought)| &brought[share.clone()]));
        Ok(())
    }

    fn gather(
        &mut self,
        call: Call,
        bytes: &[u8],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()> {
        let all = self.exchange(call, bytes.to_vec())?;
        if root.is_some_and(|root| root != self.rank.index()) {
            return Ok(());
        }
        for (into, (_, bytes)) in into.iter_mut().zip(all.iter()) {
            into.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn scatter(
        &mut self,
        call: Call,
        parts: &[&[u8]],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()> {
        let all = self.exchange(call, parts.concat())?;
        let own = self.rank.index() as usize;
        for (rank, (into, (_, bytes))) in (0..).zip(into.iter_mut().zip(all.iter())) {
            if root.is_none_or(|root| root == rank) {
                let length = into.len();
                into.copy_from_slice(&bytes[length * own..length * (own + 1)]);
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, call: Call, bytes: &mut [u8], root: u32) -> Result<()> {
        let is_root = self.rank.index() == root;
        let all = self.exchange(call, if is_root { bytes.to_vec() } else { Vec::new() })?;
        if !is_root {
            bytes.copy_from_slice(&all[root as usize].1);
        }
        Ok(())
    }

    fn pass(
        &mut self,
        send: Option<(Message, &[u8])>,
        receive: Option<(Message, &mut [u8])>,
    ) -> Result<()> {
        let (message, into) = receive.unzip();
        let send = send.map(|(message, bytes)| (message, bytes.to_vec()));
        let bytes = self.unless_failed(|own| own.try_pass(send, message))?;
        if let Some(into) = into {
            into.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError {
        let own = self.rank.index() as usize;
        let left = format!("it gave up on another rank: {reason}");
        self.shared.board().gone[own].get_or_insert(left);
        self.shared.changed.notify_all();
        let rank = self.shared.names[rank as usize];
        self.failed.get_or_insert((rank, reason.clone()));
        CollectiveError::Lost { rank, host: HOST.to_owned(), reason }
    }

    fn meet(&mut self, call: Call) -> Result<()> {
        self.exchange(call, Vec::new()).map(drop)
    }

    fn abort(&mut self, code: u8, reason: &str) {
        let reason = aborted("it", code, reason);
        self.leave(reason.clone());
        self.failed.get_or_insert((self.shared.name(self.rank), reason));
    }

    fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel)
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
        let (cancel, timeout, owner) = (self.cancel(), self.timeout, self.owner);
        let part =
            ThreadRank { rank: part.rank, timeout, shared, cancel, splits: 0, failed: None, owner };
        Ok(Box::new(part.canceled_by_waking()))
    }
}
