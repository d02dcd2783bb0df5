//! Checks which ranks are still there once all have arrived: a rank may be cut off or stopped while
//! it waits for the others.

use std::collections::BTreeSet;
use std::mem;
use std::time::Instant;

use super::{Joined, Server};
use crate::ANSWER;
use crate::frame::{Message, ReplyKind};

/// The ranks that joined and have not confirmed that they are still there.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Those that were not asked yet.
    pub(super) unasked: BTreeSet<u32>,
    asked: BTreeSet<u32>,
    /// When ranks were asked for the first and for the last time.
    since: Option<(Instant, Instant)>,
}

impl Liveness {
    /// Notes that a rank is lost.
    pub(super) fn forget(&mut self, rank: u32) {
        self.unasked.remove(&rank);
        self.asked.remove(&rank);
    }

    /// Notes that a rank has confirmed that it is still there.
    pub(super) fn confirm(&mut self, rank: u32) {
        self.asked.remove(&rank);
    }

    /// Returns whether all ranks that joined have confirmed that they are still there.
    pub(super) fn is_done(&self) -> bool {
        self.unasked.is_empty() && self.asked.is_empty()
    }

    /// When rank 0 stops waiting for answers.
    pub(super) fn ends_at(&self, deadline: Instant) -> Instant {
        // A rank that is lost and comes again and again does not keep the others waiting.
        self.since.map_or(deadline, |(first, last)| {
            deadline.max(last + ANSWER).min(deadline.max(first) + ANSWER)
        })
    }
}

impl Server<'_> {
    /// Asks the ranks that were not asked yet.
    pub(super) fn probe_liveness(&mut self) {
        let unasked = mem::take(&mut self.liveness.unasked);
        if unasked.is_empty() {
            return;
        }
        let question = Message::new(ReplyKind::Ready, &[]);
        let now = Instant::now();
        self.liveness.since = Some((self.liveness.since.map_or(now, |(first, _)| first), now));
        self.liveness.asked.extend(&unasked);
        for rank in unasked {
            let Some(&Joined { id, .. }) = self.joined.get(&rank) else { continue };
            self.say(id, &question);
        }
    }

    /// Adds the ranks that did not answer to the problems.
    pub(super) fn note_the_silent(&mut self) {
        for &rank in &self.liveness.asked {
            let joined = self.joined.get(&rank);
            if let Some(connection) = joined.and_then(|joined| self.connections.get(joined.id)) {
                self.problems.unanswered.insert(rank, connection.peer);
            }
        }
    }
}
