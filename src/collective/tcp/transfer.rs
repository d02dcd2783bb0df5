//! Sends and receives frames at the same time, so that no two ranks wait for each other.

mod blame;
mod waiting;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};

use super::mesh::notice_cuts;
use super::peer::{Fault, Peer, Reason, Transfer};
use crate::call::Call;
use crate::cancel::Cancel;
use crate::error::{CollectiveError, OWN_HOST, Result};
use mpienv_ask::seam::Owner;

pub(super) use self::blame::longest_call;
pub(crate) use self::waiting::Beside;

/// How long a rank polls before it sleeps, if there are at least as many processors as ranks.
const SPIN: Duration = Duration::from_micros(50);
/// The event that wakes a call; those of the peers have their numbers.
const WAKER: Token = Token(usize::MAX);
/// After the loss of a rank that has done its part in a call, how long the call waits while nothing
/// else arrives.
const GRACE: Duration = Duration::from_millis(400);

/// What goes to a peer and comes from it in one transfer; `None` if nothing does.
#[derive(Default)]
pub(crate) struct Exchange<'b> {
    pub(crate) send: Option<&'b [u8]>,
    pub(crate) receive: Option<&'b mut [u8]>,
    /// For a message between two ranks, or two that they exchange.
    pub(crate) pair: Option<Pair>,
}

/// What two ranks that pass messages say to each other.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) said: Call,
    /// What the other rank must say.
    pub(crate) heard: Call,
    /// This rank's call that the other one answers.
    pub(crate) answered: Call,
}

impl Pair {
    /// This rank's call that differs from that of the other.
    fn compared_with(&self, found: Call) -> Call {
        if found.operation == self.heard.operation { self.answered } else { self.said }
    }
}

impl<'b> Exchange<'b> {
    pub(super) fn both(send: &'b [u8], receive: &'b mut [u8]) -> Exchange<'b> {
        Exchange { send: Some(send), receive: Some(receive), pair: None }
    }

    /// What this rank's frames say and those of the other must say.
    fn transfers(&self, current: Transfer) -> [Transfer; 2] {
        let of = |Pair { said, heard, .. }| [said, heard].map(|call| Transfer { call, ..current });
        self.pair.map_or([current; 2], of)
    }
}

/// The connections to all peers.
#[derive(Debug)]
pub(crate) struct Links {
    /// This rank's number in the world.
    own: u32,
    /// By their numbers in the world; `None` for this rank.
    peers: Vec<Option<Peer>>,
    /// What errors call each rank, if they do not call it by its number in the world.
    pub(super) names: Vec<u32>,
    /// The numbers in the job of the ranks of the group that makes the current call.
    pub(super) group: Arc<[u32]>,
    poll: Poll,
    events: Events,
    pub(crate) timeout: Duration,
    spin: Duration,
    /// The current or last transfer.
    current: Transfer,
    /// When this rank's last call ended, if it went over the connections.
    pub(crate) ended: Option<Instant>,
    /// Whether the current transfer began later than its peers wait.
    is_late: bool,
    /// The peer that this rank waits for, and since when.
    awaited: Option<(usize, Instant)>,
    /// The number of messages between two ranks that come from a rank that has not made the current
    /// call.
    pub(super) watched: Option<u32>,
    pub(crate) cancel: Arc<Cancel>,
    /// A peer that was lost or gave up after its part in the current call, and when. The next call
    /// fails.
    noted: Option<(Culprit, Instant)>,
    /// Whether the current call goes on in a part of the group. What is noted then waits until it
    /// ends.
    pub(super) is_joining: bool,
    /// The first failure. Every later call fails in the same way.
    failed: Option<Arc<CollectiveError>>,
    /// Whether that is a panic of this rank.
    has_panicked: bool,
    /// The process that connected: in a forked child, the connections are still those of its
    /// parent.
    owner: Owner,
}

/// A peer and its fault.
#[derive(Debug)]
struct Culprit(usize, Fault);

impl Links {
    pub(super) fn new(
        own: u32,
        mut peers: Vec<Option<Peer>>,
        timeout: Duration,
    ) -> io::Result<Links> {
        let poll = Poll::new()?;
        let both = Interest::READABLE | Interest::WRITABLE;
        for (index, peer) in peers.iter_mut().enumerate() {
            if let Some(peer) = peer {
                poll.registry().register(peer.stream(), Token(index), both)?;
            }
        }
        let (cancel, waker) = (Arc::new(Cancel::default()), Waker::new(poll.registry(), WAKER)?);
        // A call that is not woken notices at the end of its sleep.
        cancel.wake_by(move || _ = waker.wake());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if peers.len() <= processors { SPIN } else { Duration::ZERO };
        let events = Events::with_capacity(2 * peers.len().max(1));
        let current = Transfer { number: 0, call: Call::BARRIER };
        Ok(Links {
            own,
            peers,
            names: Vec::new(),
            group: Arc::default(),
            poll,
            events,
            timeout,
            spin,
            current,
            ended: Some(Instant::now()),
            is_late: false,
            awaited: None,
            watched: None,
            cancel,
            noted: None,
            is_joining: false,
            failed: None,
            has_panicked: false,
            owner: Owner::current(),
        })
    }

    /// What errors call a rank.
    pub(super) fn name(&self, rank: u32) -> u32 {
        self.names.get(rank as usize).copied().unwrap_or(rank)
    }

    pub(super) fn size(&self) -> usize {
        self.peers.len()
    }

    /// Sets how long later calls wait for a peer.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        // If it is shorter, the connections outlast the calls all the more.
        if timeout > self.timeout {
            for peer in self.peers.iter_mut().flatten() {
                // A stream within this process has no such limit, and that of a lost peer no use.
                let _ = notice_cuts(peer.stream(), longest_call(timeout));
            }
        }
        self.timeout = timeout;
    }

    /// Sends to and receives from all peers at once: `all` has an entry for each of them.
    pub(super) fn transfer(
        &mut self,
        transfer: Transfer,
        all: &mut [Exchange<'_>],
        mut beside: Option<&mut Beside<'_>>,
    ) -> Result<()> {
        self.check()?;
        (self.current, self.awaited) = (transfer, None);
        for peer in self.peers.iter_mut().flatten() {
            peer.begin();
        }
        let mut moved_at = Instant::now();
        self.is_late = self.ended.is_some_and(|ended| moved_at - ended >= self.timeout);
        loop {
            let (waits_for, mut moved) = match self.advance(all) {
                Ok(progress) => progress,
                Err(culprit) => return Err(self.give_up(all, culprit)),
            };
            let Some(waits_for) = waits_for else {
                self.ended = Some(Instant::now());
                return Ok(());
            };
            let mut patience = self.timeout;
            match beside.as_mut().map(|beside| beside()) {
                Some(Err(difference)) => return Err(self.give_up_differing(all, difference)),
                Some(Ok(progress)) => {
                    moved |= progress.moved;
                    if !progress.done {
                        patience = waiting::NAP;
                    }
                }
                None => {}
            }
            if self.cancel.is_set() {
                return Err(self.give_up_canceled(all));
            }
            if moved {
                moved_at = Instant::now();
                continue;
            }
            self.wait(waits_for, moved_at, self.timeout, patience, all)?;
        }
    }

    /// Waits until something may have come from a peer, for which this rank waits since `since`, for
    /// at most `longest` in all and at most `patience` now. `all` is what the current transfer
    /// exchanges.
    fn wait(
        &mut self,
        peer: usize,
        since: Instant,
        longest: Duration,
        patience: Duration,
        all: &[Exchange<'_>],
    ) -> Result<()> {
        let waited = since.elapsed();
        // The answer to a small message takes less time than the system takes to put this thread to
        // sleep and to wake it.
        if waited < self.spin {
            std::hint::spin_loop();
            return Ok(());
        }
        if waited >= longest {
            return Err(self.attribute_timeout(peer, None, longest));
        }
        self.awaited = Some((peer, since));
        let is_due = |index: usize| all.get(index).is_some_and(|one| one.receive.is_some());
        if let Some(culprit) = self.out_of_order(&is_due) {
            return Err(self.give_up(all, culprit));
        }
        if self.cancel.ends_wait() {
            return Err(self.give_up_canceled(all));
        }
        let nap = if self.noted.is_some() { GRACE } else { longest };
        let nap = nap.min(self.cancel.patience().unwrap_or(nap)).min(patience);
        let culprit = self.sleep(nap.min(longest - waited), false, &|| true);
        let culprit = culprit.or_else(|| self.noted_since(since, &is_due));
        culprit.map_or(Ok(()), |culprit| Err(self.give_up(all, culprit)))
    }

    /// Fails if an earlier call failed, or if a peer was lost after its part in the last call.
    fn check(&mut self) -> Result<()> {
        self.is_late = false;
        self.check_earlier()?;
        let noted = self.noted.take_if(|_| !self.is_joining);
        noted.map_or(Ok(()), |(culprit, _)| Err(self.give_up(&[], culprit)))
    }

    /// Fails if an earlier call failed, or if calls are canceled.
    pub(super) fn check_earlier(&mut self) -> Result<()> {
        if !self.owner.is_here() {
            return Err(CollectiveError::Forked { connected: self.owner.id() });
        }
        if self.cancel.is_set() {
            return Err(self.give_up_canceled(&[]));
        }
        match &self.failed {
            Some(earlier) => Err(CollectiveError::Earlier(Arc::clone(earlier))),
            None => Ok(()),
        }
    }

    /// Fails as [`Links::check_earlier`], or if a peer has given up since this rank's last call. A
    /// peer that has exited without a goodbye has not: its last call may be this rank's, too.
    pub(crate) fn check_last(&mut self) -> Result<()> {
        self.check_earlier()?;
        let suspecting = self.sleep(Duration::ZERO, true, &|| false);
        match suspecting.or_else(|| self.noted.take().map(|(culprit, _)| culprit)) {
            None | Some(Culprit(_, Fault::Lost(_))) => Ok(()),
            Some(culprit) => Err(self.give_up(&[], culprit)),
        }
    }

    /// Returns a peer that sends this rank a message where it should make the call that this rank
    /// makes. `is_due` tells from which peers frames of this call are due: what comes from those is
    /// read anyway.
    fn out_of_order(&self, is_due: &dyn Fn(usize) -> bool) -> Option<Culprit> {
        let number = self.watched?;
        (0..self.peers.len()).filter(|&index| !is_due(index)).find_map(|index| {
            let (found, call) = self.peers[index].as_ref()?.unread_message()?;
            (found == number).then_some(Culprit(index, Fault::Differs(call)))
        })
    }

    /// Takes the noted peer once nothing has arrived for `GRACE`, counted from the note and from
    /// `moved_at`. In a part of the group, only a peer from which something `is_due` counts.
    fn noted_since(
        &mut self,
        moved_at: Instant,
        is_due: &dyn Fn(usize) -> bool,
    ) -> Option<Culprit> {
        let is_any = !self.is_joining;
        let is_over = |noted: Instant| moved_at.max(noted).elapsed() >= GRACE;
        self.noted
            .take_if(|(culprit, noted)| is_over(*noted) && (is_any || is_due(culprit.0)))
            .map(|(culprit, _)| culprit)
    }

    /// Gives up on `peer`.
    pub(super) fn give_up_on(&mut self, peer: usize, fault: Fault) -> CollectiveError {
        self.give_up(&[], Culprit(peer, fault))
    }

    /// How many bytes were written to all peers, in all groups, including heads.
    pub(crate) fn written(&self) -> u64 {
        self.peers.iter().flatten().map(|peer| peer.written).sum()
    }

    /// Closes all connections without a goodbye, as when a process is killed.
    #[cfg(test)]
    pub(crate) fn fail_silently(&mut self) {
        self.peers.clear();
    }

    /// Moves all bytes that can move now. Returns the first unfinished peer, and whether any byte
    /// moved.
    fn advance(&mut self, all: &mut [Exchange<'_>]) -> Result<(Option<usize>, bool), Culprit> {
        let (mut waits_for, mut moved) = (None, false);
        for (index, (peer, exchange)) in self.peers.iter_mut().zip(all).enumerate() {
            let Some(peer) = peer else { continue };
            let [said, heard] = exchange.transfers(self.current);
            let mut through = true;
            if let Some(bytes) = exchange.send {
                let progress = match peer.push(said, bytes) {
                    Ok(progress) => progress,
                    // The system refuses to send once the peer has closed, but still has what the
                    // peer sent before: why it gave up says more than the close.
                    Err(close) => {
                        let receive = exchange.receive.as_deref_mut();
                        let due = receive.and_then(|bytes| peer.pull(heard, bytes).err());
                        let is_known = |fault: &Fault| !matches!(fault, Fault::Lost(_));
                        let fault =
                            due.filter(is_known).or_else(|| peer.last_words().filter(is_known));
                        let has_left = || peer.has_said_goodbye().then(|| Fault::left(said.call));
                        return Err(Culprit(index, fault.or_else(has_left).unwrap_or(close)));
                    }
                };
                through &= progress.done;
                moved |= progress.moved;
            }
            if let Some(bytes) = exchange.receive.as_deref_mut() {
                let progress = peer.pull(heard, bytes).map_err(|fault| Culprit(index, fault))?;
                through &= progress.done;
                moved |= progress.moved;
            }
            peer.is_through = through;
            if !through && waits_for.is_none() {
                waits_for = Some(index);
            }
        }
        Ok((waits_for, moved))
    }

    /// Sleeps until a socket is ready. Returns a peer's fault if it affects this call: the peer
    /// suspects another rank, or has not done its part and this rank still waits. Notes any other
    /// fault for the next call. Peers that gave up without closing are noticed only if `is_idle`,
    /// when no data is due over the connections.
    fn sleep(
        &mut self,
        longest: Duration,
        is_idle: bool,
        still_waits: &dyn Fn() -> bool,
    ) -> Option<Culprit> {
        // The poll is edge-triggered: the system reports a close only once, perhaps while there is
        // still data to read. What was reported before must not be slept through.
        let is_news = self.noted.is_none() && self.peers.iter().flatten().any(Peer::has_last_words);
        let longest = if is_news { Duration::ZERO } else { longest };
        if let Err(error) = self.poll.poll(&mut self.events, Some(longest))
            && error.kind() != io::ErrorKind::Interrupted
        {
            // Not a peer's fault: this rank can no longer wait for any peer.
            return Some(Culprit(self.own as usize, Fault::Lost(error.to_string())));
        }
        // In the order in which peers closed: a rank that gives up because of another closes after
        // it.
        let mut news: Vec<usize> = Vec::new();
        for event in &self.events {
            let Token(index) = event.token();
            let Some(Some(peer)) = self.peers.get_mut(index) else { continue };
            peer.is_closed |= event.is_read_closed() || event.is_error();
            if is_idle || peer.is_closed {
                news.push(index);
            }
        }
        let is_closed =
            |index: &usize| self.peers[*index].as_ref().is_some_and(|peer| peer.is_closed);
        news.extend((0..self.peers.len()).filter(is_closed));
        for index in news {
            let Some(Some(peer)) = self.peers.get_mut(index) else { continue };
            let Some(fault) = peer.last_words() else { continue };
            // Check this after reading the last words: a peer does its part in a call before it
            // sends them.
            let ends_call =
                matches!(fault, Fault::Suspect { .. }) || !peer.is_through && still_waits();
            if ends_call {
                return Some(Culprit(index, fault));
            }
            // A reason says more than a close.
            if matches!(
                (&self.noted, &fault),
                (None, _) | (Some((Culprit(_, Fault::Lost(_)), _)), Fault::Abort { .. })
            ) {
                self.noted = Some((Culprit(index, fault), Instant::now()));
            }
        }
        None
    }

    /// Returns the error of the call that fails, and keeps it for later ones.
    fn fail(&mut self, error: impl Fn(&Links) -> CollectiveError) -> CollectiveError {
        self.failed = Some(Arc::new(error(self)));
        error(self)
    }

    fn failure(&self, rank: u32, reason: Reason) -> CollectiveError {
        match reason {
            Reason::Lost(reason) => {
                CollectiveError::Lost { rank: self.name(rank), host: self.host(rank), reason }
            }
            Reason::Difference(difference) => {
                CollectiveError::Disagree { rank: self.name(rank), difference }
            }
        }
    }

    fn host(&self, rank: u32) -> String {
        let peer = self.peers.get(rank as usize);
        peer.and_then(Option::as_ref).map_or_else(|| OWN_HOST.to_owned(), |peer| peer.host.clone())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // A goodbye here would be one of the parent, which goes on.
            return;
        }
        if self.has_panicked && std::thread::panicking() {
            self.stay_open();
        } else if self.failed.is_some() {
            self.linger();
        } else {
            self.peers.iter_mut().flatten().for_each(Peer::bye);
        }
    }
}
