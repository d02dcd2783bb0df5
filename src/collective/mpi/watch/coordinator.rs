//! Rank 0's watch, which monitors all ranks and reports a lost or late one to all others.

use std::io;
use std::time::{Duration, Instant};

use super::{LAST_WORD, Message, Own, Progress};
use crate::error::CollectiveError;
use crate::rendezvous::star::{Heard, Star};

struct Coordinator {
    own: Own,
    star: Star,
    /// By rank; `None` for a rank that has not arrived, or that has exited.
    ranks: Vec<Option<Progress>>,
    /// The first rank that ended its group.
    left: Option<u32>,
}

/// Watches until this rank exits. Returns the error if another rank is lost or late before that.
pub(super) fn watch(own: Own, star: Star) -> Option<CollectiveError> {
    let ranks = vec![None; own.hosts.len()];
    let mut coordinator = Coordinator { own, star, ranks, left: None };
    let last = coordinator.run();
    let Coordinator { own, mut star, .. } = coordinator;
    let lost = own.error(&last);
    star.send_to_all(&last.bytes());
    if let Message::Late { rank } = last {
        // It may never read that it is late.
        star.forget(rank);
    }
    star.close(LAST_WORD);
    lost
}

impl Coordinator {
    /// Returns what the others must hear last.
    fn run(&mut self) -> Message {
        loop {
            let beat = self.own.beat();
            // If no file descriptor is free, the next beat tries again.
            let heard = self.star.turn(&beat).unwrap_or_default();
            if self.own.has_ended() {
                return Message::Bye;
            }
            let now = Instant::now();
            for (rank, heard) in heard {
                if let Err(error) = self.hear(rank, heard, now) {
                    return Message::lost(rank, &error);
                }
            }
            if let Some(found) = self.late(now) {
                return found;
            }
        }
    }

    /// Handles what a rank says. Returns the error if it is lost.
    fn hear(&mut self, rank: u32, heard: Heard, now: Instant) -> io::Result<()> {
        let Some(known) = self.ranks.get_mut(rank as usize) else { return Ok(()) };
        match heard {
            Heard::Came => {}
            Heard::Said(bytes) => match Message::of(&bytes)? {
                Message::Beat { calls } if known.is_none_or(|known| known.calls != calls) => {
                    *known = Some(Progress { calls, since: now });
                }
                Message::Beat { .. } => {}
                // The rank has ended its group, or exits on its own.
                last => {
                    *known = None;
                    if last == Message::Bye {
                        self.left.get_or_insert(rank);
                    }
                    self.star.forget(rank);
                }
            },
            // After its last message, the end of its connection means nothing.
            Heard::Lost(error) if known.is_some() || error.kind() == io::ErrorKind::TimedOut => {
                return Err(error);
            }
            Heard::Lost(_) => {}
        }
        Ok(())
    }

    /// Returns what is wrong if a rank has been missing for too long from a call in which others
    /// wait.
    fn late(&self, now: Instant) -> Option<Message> {
        let others = self.ranks.iter().zip(0..).filter_map(|(known, rank)| Some((rank, (*known)?)));
        let all = || others.clone().chain([(self.own.rank.index(), self.own.progress)]);
        let is_waiting = |known: &Progress| {
            known.calls % 2 == 1 && now.duration_since(known.since) >= self.own.times.silence
        };
        let waiting = all().filter(|(_, known)| is_waiting(known));
        if let Some(furthest) = waiting.map(|(_, known)| known.calls).max() {
            // A rank in a call waits too. One that passes messages, or parts of other lengths, makes
            // other numbers of calls than the others: it is late if it makes none.
            let away = |known: &Progress, for_at_least: Duration| {
                known.calls.is_multiple_of(2) && now.duration_since(known.since) >= for_at_least
            };
            let silence = self.own.times.silence;
            let behind = all()
                .filter(|(_, known)| known.calls < furthest && away(known, silence / 2))
                .min_by_key(|&(rank, known)| (known.calls, rank));
            let behind = behind.or_else(|| {
                let idle = all().filter(|(_, known)| away(known, silence));
                idle.min_by_key(|&(rank, known)| (known.since, rank))
            });
            // If all others have come to a call, they wait for the only rank that has never
            // connected.
            let absent = match self.star.absent() {
                &[rank] => Some(rank),
                _ => None,
            };
            if let Some(rank) = behind.map(|(rank, _)| rank).or(absent) {
                return Some(Message::Late { rank });
            }
            // Otherwise, those who wait may wait for one that makes other calls.
            let all_wait = || all().all(|(_, known)| known.calls % 2 == 1);
            if let Some(rank) = self.left.filter(|_| all_wait()) {
                return Some(Message::Left { rank });
            }
        }
        self.own.has_waited_in_vain(now).then_some(Message::GaveUp)
    }
}
