//! Decides which rank is to blame for a failure, so that all ranks name the same one.

use std::time::{Duration, Instant};

use super::super::frame::Transfer;
use super::super::peer::{Fault, Peer, Progress, Reason};
use super::{Culprit, Exchange, Links};
use crate::error::{CANCELED, CollectiveError, PANICKED, aborted};

/// After a timeout, how long at least and at most to listen for ranks that gave up too. The silent
/// one is to blame.
const SHORTEST_ATTRIBUTION: Duration = Duration::from_millis(500);
const LONGEST_ATTRIBUTION: Duration = Duration::from_secs(5);
/// How long the peers may take to read why this rank gave up.
const DELIVERY: Duration = Duration::from_secs(1);
/// How long a busy machine may take from closing the connections of a process to its end.
const EXIT: Duration = Duration::from_millis(50);

/// A peer that does not know yet why this rank gives up.
struct Unaware<'a> {
    peer: &'a mut Peer,
    /// What the current transfer sends to it.
    send: Option<(Transfer, &'a [u8])>,
    /// Whether the report has begun.
    is_told: bool,
}

impl Links {
    /// Handles a timeout, here or at the accuser. The rank to blame is a suspect that reports
    /// nothing itself.
    ///
    /// If rank 3 hangs, rank 2 waits for it, rank 1 for rank 2, and rank 0 for rank 1: each of them
    /// times out on another rank. All of them report whom they wait for, and rank 3 reports
    /// nothing.
    pub(in super::super) fn attribute_timeout(
        &mut self,
        suspect: usize,
        accusation: Option<(usize, usize)>,
    ) -> CollectiveError {
        let seconds = self.timeout.as_secs_f64();
        self.peers.iter_mut().flatten().for_each(|peer| peer.suspect(suspect as u32));
        let mut alive = vec![false; self.peers.len()];
        let mut blamed = vec![suspect];
        let mut reasons = Vec::new();
        if let Some((accuser, other)) = accusation {
            alive[accuser] = true;
            blamed.push(other);
        }
        let until = Instant::now() + self.attribution();
        while Instant::now() < until {
            let (mut silent, mut unsent) = (0, 0);
            for (index, peer) in self.peers.iter_mut().enumerate() {
                let Some(peer) = peer else { continue };
                unsent += usize::from(!peer.say_rest());
                match peer.last_words() {
                    Some(Fault::Suspect { blamed: other }) => {
                        alive[index] = true;
                        blamed.push(other as usize);
                    }
                    // It did not wait for the timeout: the rank was lost, or made another call.
                    Some(Fault::Abort { blamed: other, reason }) => {
                        alive[index] = true;
                        blamed.push(other as usize);
                        reasons.push((other, reason));
                    }
                    _ => {}
                }
                silent += usize::from(!alive[index]);
            }
            // Nothing that the last one could say would change who is to blame.
            if silent <= 1 && unsent == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let silent = |index: &&usize| {
            self.peers.get(**index).is_some_and(Option::is_some) && !alive[**index]
        };
        let culprit = blamed.iter().find(silent).copied().unwrap_or(suspect) as u32;
        self.hang_up();
        if let Some((_, reason)) = reasons.into_iter().find(|(rank, _)| *rank == culprit) {
            self.failed = Some((culprit, reason.clone()));
            return self.failure(culprit, reason);
        }
        self.failed = Some((culprit, Reason::Lost(format!("it sent nothing for {seconds} s"))));
        let (rank, host) = (self.name(culprit), self.host(culprit));
        CollectiveError::TimedOut { rank, host, seconds }
    }

    /// How long to listen for ranks that gave up too. Busy hosts may need a part of the timeout to
    /// report.
    fn attribution(&self) -> Duration {
        (self.timeout / 2).clamp(SHORTEST_ATTRIBUTION, LONGEST_ATTRIBUTION).min(self.timeout)
    }

    /// Fails this group: finds the rank to blame and reports it to all peers.
    ///
    /// One lost rank makes all others give up, and each that gives up closes its connections, which
    /// looks like one more loss to those who have not yet noticed the first. So every rank says why
    /// before it closes, and the rank that sees a close first looks for such a report.
    ///
    /// `all` is what the current transfer exchanges.
    pub(super) fn give_up(&mut self, all: &[Exchange<'_>], culprit: Culprit) -> CollectiveError {
        let Culprit(index, fault) = self.earlier_than(culprit);
        let mut found = None;
        let (culprit, reason) = match fault {
            Fault::Lost(reason) => self.first_lost(index, reason),
            Fault::Suspect { blamed } => {
                // A rank that suspects one that does not exist is itself to blame.
                let exists = (blamed as usize) < self.peers.len();
                let blamed = if exists { blamed as usize } else { index };
                let suspect = self.long_awaited().unwrap_or(blamed);
                return self.attribute_timeout(suspect, Some((index, blamed)));
            }
            Fault::Abort { blamed, reason } => self.blame(index, blamed, reason),
            Fault::Differs(call) => {
                let rank = index as u32;
                let pair = all.get(index).and_then(|one| one.pair);
                let own = pair.map_or(self.current.call, |[said, _]| said);
                let named = self.name(rank);
                let error = CollectiveError::different_calls(named, call, self.own_name(), own);
                (rank, Reason::Difference(found.insert(error).to_string()))
            }
        };
        self.abort_all(all, culprit, &reason);
        self.hang_up();
        if matches!(&reason, Reason::Lost(reason) if reason == PANICKED) {
            self.await_exit_of(culprit);
        }
        self.failed = Some((culprit, reason.clone()));
        found.unwrap_or_else(|| self.failure(culprit, reason))
    }

    /// Gives up because this rank aborts the job, and reports itself to all peers.
    pub(in super::super) fn abort(&mut self, code: u8, reason: &str) {
        self.leave(&[], aborted("it", code, reason));
    }

    /// Reports that this rank panics. Its connections stay open until the process exits, so that
    /// its exit code comes before those of the ranks that fail because of it.
    pub(super) fn leave_panicking(&mut self) {
        self.abort_all(&[], self.own, &Reason::Lost(PANICKED.to_owned()));
        std::mem::forget(std::mem::take(&mut self.peers));
    }

    /// Gives up because another thread cancels the calls.
    pub(super) fn give_up_canceled(&mut self, all: &[Exchange<'_>]) -> CollectiveError {
        self.leave(all, CANCELED.to_owned());
        CollectiveError::Canceled
    }

    /// Gives up for a reason of this rank's own, and reports itself to all peers.
    fn leave(&mut self, all: &[Exchange<'_>], reason: String) {
        // After a failure, the peers know whom to blame. A forked child would speak for its parent.
        if self.failed.is_none() && self.owner.is_here() {
            let reason = Reason::Lost(reason);
            self.abort_all(all, self.own, &reason);
            self.hang_up();
            self.failed = Some((self.own, reason));
        }
    }

    /// Returns the peer that was noted earlier, unless its fault says less: a close says less than
    /// a report.
    fn earlier_than(&mut self, culprit: Culprit) -> Culprit {
        // A peer whose connection fails has often given up because of another, whose close this
        // rank may see too.
        if self.noted.is_none()
            && matches!(culprit.1, Fault::Lost(_))
            && let Some(suspecting) = self.sleep(Duration::ZERO, true, &|| false)
        {
            return suspecting;
        }
        match self.noted.take() {
            Some((noted, _))
                if matches!(culprit.1, Fault::Lost(_)) || !matches!(noted.1, Fault::Lost(_)) =>
            {
                noted
            }
            _ => culprit,
        }
    }

    /// The peer that this rank itself has awaited for at least half the timeout. What it saw itself
    /// is better evidence than another rank's suspicion, which may be of a rank that waits too.
    fn long_awaited(&self) -> Option<usize> {
        self.awaited
            .filter(|(_, since)| since.elapsed() >= self.timeout / 2)
            .map(|(awaited, _)| awaited)
    }

    /// Returns why a peer closed its connection: another rank was lost, if any peer says so, or
    /// this peer was.
    fn first_lost(&mut self, index: usize, reason: String) -> (u32, Reason) {
        for (other, peer) in self.peers.iter_mut().enumerate() {
            if let Some(Fault::Abort { blamed, reason }) = peer.as_mut().and_then(Peer::last_words)
            {
                return self.blame(other, blamed, reason);
            }
        }
        (index as u32, Reason::Lost(reason))
    }

    /// Whom to blame if the peer `by` blames a rank. Of a peer that blames this rank, all that is
    /// known is that it has left.
    fn blame(&self, by: usize, blamed: u32, reason: Reason) -> (u32, Reason) {
        let own = self.peers.get(blamed as usize).is_none_or(Option::is_none);
        match reason {
            Reason::Lost(text) if own => {
                (by as u32, Reason::Lost(format!("it gave up on this rank: {text}")))
            }
            reason => (if own { by as u32 } else { blamed }, reason),
        }
    }

    /// Reports the rank to blame to all peers that still read.
    ///
    /// Completes half-sent frames first: the peer would take the report for their bytes.
    fn abort_all(&mut self, all: &[Exchange<'_>], culprit: u32, reason: &Reason) {
        let (transfer, until) = (self.current, Instant::now() + DELIVERY.min(self.timeout));
        let sends = all.iter().map(|one| one.send.map(|bytes| (one.transfers(transfer)[0], bytes)));
        let peers = self.peers.iter_mut().zip(sends.chain(std::iter::repeat(None)));
        let mut unaware: Vec<_> = peers
            .filter_map(|(peer, send)| Some(Unaware { peer: peer.as_mut()?, send, is_told: false }))
            .collect();
        loop {
            unaware.retain_mut(|Unaware { peer, send, is_told }| {
                if *is_told {
                    return !peer.say_rest();
                }
                if let Some((transfer, bytes)) = send.filter(|_| peer.is_half_sent()) {
                    match peer.push(transfer, bytes) {
                        Ok(Progress { done: true, .. }) => {}
                        Ok(_) => return true,
                        Err(_) => return false,
                    }
                }
                *is_told = true;
                !peer.abort(culprit, reason)
            });
            if unaware.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a rank that panics has exited. A launcher names the first rank that fails.
    fn await_exit_of(&mut self, culprit: u32) {
        let until = Instant::now() + DELIVERY.min(self.timeout);
        let Some(Some(peer)) = self.peers.get_mut(culprit as usize) else { return };
        while !peer.discard() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // The system closes the connections of a process before its parent can see it exit.
        std::thread::sleep(EXIT);
    }

    fn hang_up(&mut self) {
        self.peers.iter_mut().flatten().for_each(Peer::hang_up);
    }

    /// Discards what the peers still send, until they have hung up too.
    ///
    /// If a socket is closed while something is unread, the system resets the connection, and the
    /// peer's system then drops what the peer has not yet read: why this rank gave up.
    pub(super) fn linger(&mut self) {
        let until = Instant::now() + DELIVERY.min(self.timeout);
        let mut open: Vec<&mut Peer> = self.peers.iter_mut().flatten().collect();
        loop {
            open.retain_mut(|peer| !peer.discard());
            if open.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
