//! Checks which ranks are still there once all have arrived: a rank may be cut off or stopped while
//! it waits for the others.

use std::time::Instant;

use super::{Joined, Server};
use crate::ANSWER;
use crate::frame::{Message, ReplyKind};

/// Whether a rank that joined is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Not asked yet.
    Unknown,
    Asked,
    Confirmed,
}

/// Counts the ranks by presence.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    unknown: usize,
    asked: usize,
    /// When ranks were asked for the first and for the last time.
    since: Option<(Instant, Instant)>,
}

impl Liveness {
    pub(super) fn count_joined(&mut self) {
        self.unknown += 1;
    }

    pub(super) fn count_lost(&mut self, presence: Presence) {
        match presence {
            Presence::Unknown => self.unknown -= 1,
            Presence::Asked => self.asked -= 1,
            Presence::Confirmed => {}
        }
    }

    /// Returns whether all ranks that joined have confirmed that they are still there.
    pub(super) fn is_done(&self) -> bool {
        self.unknown == 0 && self.asked == 0
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
        if self.liveness.unknown == 0 {
            return;
        }
        let question = Message::new(ReplyKind::Ready, &[]);
        let unknown = |joined: &&mut Joined| joined.presence == Presence::Unknown;
        let mut ids = Vec::with_capacity(self.liveness.unknown);
        for joined in self.joined.values_mut().filter(unknown) {
            joined.presence = Presence::Asked;
            ids.push(joined.id);
        }
        let now = Instant::now();
        let since = Some((self.liveness.since.map_or(now, |(first, _)| first), now));
        self.liveness = Liveness { unknown: 0, asked: self.liveness.asked + ids.len(), since };
        for id in ids {
            self.say(id, &question);
        }
    }

    /// Notes that a rank has confirmed that it is still there.
    pub(super) fn confirm(&mut self, rank: u32) {
        if let Some(joined) =
            self.joined.get_mut(&rank).filter(|joined| joined.presence == Presence::Asked)
        {
            joined.presence = Presence::Confirmed;
            self.liveness.asked -= 1;
        }
    }

    /// Adds the ranks that did not answer to the problems.
    pub(super) fn note_the_silent(&mut self) {
        let silent = self.joined.iter().filter(|(_, joined)| joined.presence == Presence::Asked);
        for (&rank, joined) in silent {
            if let Some(connection) = self.connections.get(joined.id) {
                self.problems.unanswered.insert(rank, connection.peer);
            }
        }
    }
}
