//! The board on which the ranks of one process post their calls, and wait for those of the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{HOST, ThreadRank};
use crate::call::{Call, Message};
use crate::error::{CANCELED, CollectiveError, Result};
use crate::value::rank::Rank;

#[derive(Debug)]
pub(super) struct Shared {
    /// Each rank's number in the original group, for errors.
    pub(super) names: Vec<u32>,
    pub(super) board: Mutex<Board>,
    pub(super) changed: Condvar,
    /// The groups that some ranks have not joined yet, by the number of the split and the color.
    pub(super) groups: Mutex<BTreeMap<(u64, u32), Taken>>,
}

/// A group of a split, and the number of ranks that have joined it.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) shared: Arc<Shared>,
    pub(super) ranks: u32,
}

/// The call that a rank makes, and its bytes.
pub(super) type Brought = (Call, Vec<u8>);

/// What ranks contribute to a round, and the result of the previous round.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) round: u64,
    pub(super) brought: Vec<Option<Brought>>,
    pub(super) result: Arc<Vec<Brought>>,
    /// What ranks pass to one another, by sender and receiver: of each message, both post their
    /// call, and take that of the other.
    pub(super) posts: BTreeMap<(u32, u32), VecDeque<Brought>>,
    /// A rank that made another call than the one that it should have answered, and the error.
    pub(super) difference: Option<(u32, String)>,
    /// Why a rank makes no more calls.
    pub(super) gone: Vec<Option<String>>,
}

impl Shared {
    pub(super) fn of(names: Vec<u32>) -> Shared {
        let board = Board {
            round: 0,
            brought: vec![None; names.len()],
            result: Arc::default(),
            posts: BTreeMap::new(),
            difference: None,
            gone: vec![None; names.len()],
        };
        let (board, changed, groups) = (Mutex::new(board), Condvar::new(), Mutex::default());
        Shared { names, board, changed, groups }
    }

    /// The rank's number in the original group.
    pub(super) fn name(&self, rank: Rank) -> u32 {
        self.names[rank.index() as usize]
    }

    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        // No rank panics while it holds the board, and the board is consistent between any two
        // statements.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadRank {
    pub(super) fn try_exchange(&self, call: Call, bytes: Vec<u8>) -> Result<Arc<Vec<Brought>>> {
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
            let is_missing = |rank: &Rank| board.brought[rank.index() as usize].is_none();
            let missing: Vec<Rank> = self.rank.all().filter(is_missing).collect();
            // A rank that sends this one a message, and is not in this call, waits for an answer.
            let post = |rank: &Rank| {
                let post = board.posts.get(&(rank.index(), self.rank.index()))?.front()?;
                Some((rank.index(), post.0))
            };
            if let Some((other, found)) = missing.iter().find_map(post) {
                return Err(self.differs(&mut board, other, found, call));
            }
            board = self.wait(board, &missing, deadline)?;
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

    /// Posts both halves of a call to other ranks, and waits for theirs. Returns what was received.
    pub(super) fn try_pass(
        &self,
        send: Option<(Message, Vec<u8>)>,
        receive: Option<Message>,
    ) -> Result<Vec<u8>> {
        let (deadline, own) = (Instant::now() + self.timeout, self.rank.index());
        let mut board = self.shared.board();
        let mut open: Vec<Message> = Vec::new();
        let posts = send.into_iter().chain(receive.map(|message| (message, Vec::new())));
        for (message, bytes) in posts {
            let to = board.posts.entry((own, message.other)).or_default();
            to.push_back((message.said, bytes));
            open.push(message);
        }
        self.shared.changed.notify_all();
        let mut received = Vec::new();
        loop {
            let mut index = 0;
            while let Some(&message) = open.get(index) {
                let answers = board.posts.get_mut(&(message.other, own));
                let Some(answers) = answers.filter(|answers| !answers.is_empty()) else {
                    index += 1;
                    continue;
                };
                // A rank that sends to this one and receives from it has posted both.
                let at = answers.iter().position(|(call, _)| call.alone() == message.heard);
                let Some((_, bytes)) = at.and_then(|at| answers.remove(at)) else {
                    let found = answers[0].0;
                    return Err(self.differs(&mut board, message.other, found, message.said));
                };
                if Some(message) == receive {
                    received = bytes;
                }
                open.remove(index);
            }
            if open.is_empty() {
                return Ok(received);
            }
            let is_awaited = |rank: &Rank| open.iter().any(|message| message.other == rank.index());
            let awaited: Vec<Rank> = self.rank.all().filter(is_awaited).collect();
            board = self.wait(board, &awaited, deadline)?;
        }
    }

    /// Fails the group because `other` made the call `found`.
    fn differs(&self, board: &mut Board, other: u32, found: Call, call: Call) -> CollectiveError {
        let [other, own] = [other, self.rank.index()].map(|rank| self.shared.names[rank as usize]);
        let error = CollectiveError::different_calls(other, found, own, call);
        board.difference.get_or_insert((other, error.to_string()));
        self.shared.changed.notify_all();
        error
    }

    /// Waits until something has changed, while the ranks `awaited` are missing.
    fn wait<'a>(
        &self,
        mut board: MutexGuard<'a, Board>,
        awaited: &[Rank],
        deadline: Instant,
    ) -> Result<MutexGuard<'a, Board>> {
        if let Some((rank, difference)) = board.difference.clone() {
            return Err(CollectiveError::Disagree { rank, difference });
        }
        if self.cancel.is_set() {
            // What it has contributed must not complete the call of the others.
            board.brought[self.rank.index() as usize] = None;
            drop(board);
            self.leave(CANCELED.to_owned());
            return Err(CollectiveError::Canceled);
        }
        let gone = |rank: &Rank| Some((*rank, board.gone[rank.index() as usize].clone()?));
        let (host, left) = (HOST.to_owned(), deadline.saturating_duration_since(Instant::now()));
        if let Some((rank, reason)) = awaited.iter().find_map(gone) {
            let rank = self.shared.name(rank);
            return Err(CollectiveError::Lost { rank, host, reason });
        }
        if let Some(&rank) = awaited.first().filter(|_| left.is_zero()) {
            let (rank, seconds) = (self.shared.name(rank), self.timeout.as_secs_f64());
            return Err(CollectiveError::TimedOut { rank, host, seconds });
        }
        let waited = self.shared.changed.wait_timeout(board, left);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}
