//! Decides which rank is to blame for a failure, so that all ranks name the same one.

use std::time::{Duration, Instant};

use super::super::peer::{Fault, Peer, Progress, Reason, Transfer};
use super::{Culprit, Exchange, Links};
use crate::call::Call;
use crate::error::{CANCELED, CollectiveError, LATE, PANICKED, THIS_PROCESS, aborted, in_group};
use crate::rendezvous::done_within;

/// The bounds of [`attribution`]: of the ranks that time out, the silent one is to blame.
const SHORTEST_ATTRIBUTION: Duration = Duration::from_millis(500);
const LONGEST_ATTRIBUTION: Duration = Duration::from_secs(5);
/// How long the peers may take to read why this rank gave up.
const DELIVERY: Duration = Duration::from_secs(1);
/// How long a busy machine may take from closing the connections of a process to its end.
const EXIT: Duration = Duration::from_millis(50);

/// After a timeout, how long to listen for ranks that gave up too. Busy hosts may need a part of the
/// timeout to report.
fn attribution(timeout: Duration) -> Duration {
    (timeout / 2).clamp(SHORTEST_ATTRIBUTION, LONGEST_ATTRIBUTION).min(timeout)
}

/// How long after a call began a rank that times out in it still needs its connections.
pub(in super::super) fn longest_call(timeout: Duration) -> Duration {
    timeout.saturating_add(attribution(timeout) + 2 * DELIVERY)
}

/// A peer that does not know yet why this rank gives up.
struct Unaware<'a> {
    peer: &'a mut Peer,
    /// What the current transfer sends to it.
    send: Option<(Transfer, &'a [u8])>,
    /// Whether the report has begun.
    is_told: bool,
}

impl Links {
    /// Handles a timeout after this rank has `waited`, here or at the accuser. The rank to blame is
    /// a suspect that reports nothing itself.
    ///
    /// If rank 3 hangs, rank 2 waits for it, rank 1 for rank 2, and rank 0 for rank 1: each of them
    /// times out on another rank. All of them report whom they wait for, and rank 3 reports
    /// nothing.
    pub(in super::super) fn attribute_timeout(
        &mut self,
        suspect: usize,
        accusation: Option<(usize, usize)>,
        waited: Duration,
    ) -> CollectiveError {
        let seconds = waited.as_secs_f64();
        self.peers.iter_mut().flatten().for_each(|peer| peer.suspect(suspect as u32, waited));
        let mut alive = vec![false; self.peers.len()];
        let mut blamed = vec![suspect];
        let mut reasons = Vec::new();
        if let Some((accuser, other)) = accusation {
            alive[accuser] = true;
            blamed.push(other);
        }
        let call = self.current.call;
        let passes = call.is_message();
        let until = Instant::now() + attribution(self.timeout);
        while Instant::now() < until {
            let (mut silent, mut unsent) = (0, 0);
            for (index, peer) in self.peers.iter_mut().enumerate() {
                let Some(peer) = peer else { continue };
                unsent += usize::from(!peer.say_rest());
                match peer.last_words() {
                    Some(Fault::Suspect { blamed: other, .. }) => {
                        alive[index] = true;
                        blamed.push(other as usize);
                    }
                    // It did not wait for the timeout: the rank was lost, or made another call.
                    Some(Fault::Abort { blamed: other, reason }) => {
                        alive[index] = true;
                        blamed.push(other as usize);
                        reasons.push((other, reason));
                    }
                    // It waits for this rank, which has not read its message: what it says after it
                    // cannot be read either.
                    _ => alive[index] |= passes && peer.unread_message().is_some(),
                }
                silent += usize::from(!alive[index]);
            }
            // Nothing that the last one could say would change who is to blame, unless each of
            // three or more ranks passes a message to the next.
            let last = if self.peers.len() > 2 && passes { 0 } else { 1 };
            if silent <= last && unsent == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let silent = |index: &&usize| {
            self.peers.get(**index).is_some_and(Option::is_some) && !alive[**index]
        };
        let silent = blamed.iter().find(silent).copied();
        self.hang_up();
        let is_sound = accusation.is_none_or(|(accuser, other)| accuser != other);
        let own = self.own as usize;
        // The others have waited for this rank, which has not waited for them.
        let has_waited = accusation.is_none() || self.long_awaited().is_some();
        let is_late = !has_waited && reasons.is_empty() && blamed.contains(&own);
        let suspect = if is_late { own } else { suspect };
        if silent.is_none() && reasons.is_empty() && is_sound && suspect != own {
            // They wait for each other.
            return self.fail(|links| CollectiveError::SomeTimedOut {
                seconds,
                own: Some(links.name(links.own)),
                call: in_group(call, &links.group),
            });
        }
        let culprit = silent.unwrap_or(suspect) as u32;
        if let Some((_, reason)) = reasons.into_iter().find(|(rank, _)| *rank == culprit) {
            return self.fail(|links| links.failure(culprit, reason.clone()));
        }
        self.time_out_on(culprit, waited)
    }

    /// Fails because a rank did not arrive in time, which may be this one.
    fn time_out_on(&mut self, culprit: u32, waited: Duration) -> CollectiveError {
        let seconds = waited.as_secs_f64();
        self.fail(|links| {
            let (rank, host) = (links.name(culprit), links.host(culprit));
            CollectiveError::TimedOut { rank, host, seconds }
        })
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
        let mut calls = None;
        let (culprit, reason) = match fault {
            Fault::Lost(reason) => match self.reported() {
                Some(blamed) => blamed,
                None if self.no_longer_waits(index) => {
                    self.abort_all(all, self.own, &Reason::Lost(LATE.to_owned()));
                    self.hang_up();
                    return self.time_out_on(self.own, self.timeout);
                }
                None => (index as u32, Reason::Lost(reason)),
            },
            Fault::Suspect { blamed, waited } => {
                // A rank that suspects one that does not exist is itself to blame.
                let exists = (blamed as usize) < self.peers.len();
                let blamed = if exists { blamed as usize } else { index };
                let suspect = self.long_awaited().unwrap_or(blamed);
                return self.attribute_timeout(suspect, Some((index, blamed)), waited);
            }
            Fault::Abort { blamed, reason } => self.blame(index, blamed, reason),
            Fault::Differs(call) => {
                let rank = index as u32;
                let pair = all.get(index).and_then(|one| one.pair);
                let own = pair.map_or(self.current.call, |pair| pair.compared_with(call));
                calls = Some((call, own));
                (rank, Reason::Difference(self.differing(rank, call, own).to_string()))
            }
        };
        self.abort_all(all, culprit, &reason);
        self.hang_up();
        if matches!(&reason, Reason::Lost(reason) if reason == PANICKED) {
            self.await_exit_of(culprit);
        }
        self.fail(|links| match calls {
            Some((found, own)) => links.differing(culprit, found, own),
            None => links.failure(culprit, reason.clone()),
        })
    }

    /// Returns the error for a rank that called `found` where this one called `own`.
    fn differing(&self, rank: u32, found: Call, own: Call) -> CollectiveError {
        CollectiveError::different_calls(self.name(rank), found, self.name(self.own), own)
    }

    /// Gives up because this rank aborts the job, and reports itself to all peers.
    pub(crate) fn abort(&mut self, code: u8, reason: &str) {
        self.leave(&[], aborted("it", code, reason));
    }

    /// Reports that this rank panics. The connections stay open: see [`Links::stay_open`].
    pub(crate) fn leave_panicking(&mut self) {
        self.has_panicked |= self.report_itself(&[], PANICKED.to_owned());
    }

    /// Keeps the connections of a rank that panics open until the process exits, so that its exit
    /// code comes before those of the ranks that fail because of it. A process whose threads are
    /// the ranks may go on.
    pub(super) fn stay_open(&mut self) {
        let is_exiting = |peer: &Peer| peer.host != THIS_PROCESS;
        if self.peers.iter().flatten().any(is_exiting) {
            std::mem::forget(std::mem::take(&mut self.peers));
        }
    }

    /// Gives up because another thread cancels the calls.
    pub(super) fn give_up_canceled(&mut self, all: &[Exchange<'_>]) -> CollectiveError {
        self.leave(all, CANCELED.to_owned());
        CollectiveError::Canceled
    }

    /// Gives up for a reason of this rank's own, and reports itself to all peers.
    fn leave(&mut self, all: &[Exchange<'_>], reason: String) {
        if self.report_itself(all, reason) {
            self.hang_up();
        }
    }

    /// Reports itself to all peers, and lets every later call fail. Returns whether it did.
    fn report_itself(&mut self, all: &[Exchange<'_>], reason: String) -> bool {
        // After a failure, the peers know whom to blame. A forked child would speak for its parent.
        let reports = self.failed.is_none() && self.owner.is_here();
        if reports {
            let reason = Reason::Lost(reason);
            self.abort_all(all, self.own, &reason);
            self.fail(|links| links.failure(links.own, reason.clone()));
        }
        reports
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

    /// Returns which rank was lost, and why, if a peer says so.
    fn reported(&mut self) -> Option<(u32, Reason)> {
        for (other, peer) in self.peers.iter_mut().enumerate() {
            if let Some(Fault::Abort { blamed, reason }) = peer.as_mut().and_then(Peer::last_words)
            {
                return Some(self.blame(other, blamed, reason));
            }
        }
        None
    }

    /// Returns whether a peer has closed its connection because this rank came too late. It made
    /// the call, and could not say that it gives up, because a part of its message was on its way.
    fn no_longer_waits(&self, index: usize) -> bool {
        let peer = self.peers.get(index).and_then(Option::as_ref);
        self.is_late && peer.is_some_and(|peer| peer.has_begun() && peer.has_hung_up())
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
        let transfer = self.current;
        let sends = all.iter().map(|one| one.send.map(|bytes| (one.transfers(transfer)[0], bytes)));
        let peers = self.peers.iter_mut().zip(sends.chain(std::iter::repeat(None)));
        let mut unaware: Vec<_> = peers
            .filter_map(|(peer, send)| Some(Unaware { peer: peer.as_mut()?, send, is_told: false }))
            .collect();
        await_delivery(self.timeout, || {
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
            unaware.is_empty()
        });
    }

    /// Waits until a rank that panics has exited. A launcher names the first rank that fails.
    fn await_exit_of(&mut self, culprit: u32) {
        let Some(Some(peer)) = self.peers.get_mut(culprit as usize) else { return };
        if await_delivery(self.timeout, || peer.discard()) {
            // The system closes the connections of a process before its parent can see it exit.
            std::thread::sleep(EXIT);
        }
    }

    fn hang_up(&mut self) {
        self.peers.iter_mut().flatten().for_each(Peer::hang_up);
    }

    /// Discards what the peers still send, until they have hung up too.
    ///
    /// If a socket is closed while something is unread, the system resets the connection, and the
    /// peer's system then drops what the peer has not yet read: why this rank gave up.
    pub(super) fn linger(&mut self) {
        let mut open: Vec<&mut Peer> = self.peers.iter_mut().flatten().collect();
        await_delivery(self.timeout, || {
            open.retain_mut(|peer| !peer.discard());
            open.is_empty()
        });
    }
}

/// Asks whether something is done, for as long as peers may take to read. Returns whether it is.
fn await_delivery(timeout: Duration, is_done: impl FnMut() -> bool) -> bool {
    done_within(DELIVERY.min(timeout), is_done)
}

#[cfg(test)]
mod tests {
    //! The reason why a rank gives up reaches the others even over a slow network.

    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::thread;

    use super::*;
    use crate::call::Message;
    use crate::element::ElementKind;
    use crate::tcp::handshake::{self, Joined};
    use crate::tcp::peer::{DATA, Fault, HEAD, Peer, Reason, SUSPECT, Transfer, head};
    use crate::tcp::seal::{SEALED_HEAD, Seal};
    use crate::tcp::transfer::Links;
    use crate::tests::PLENTY;
    use crate::value::rank::Rank;

    const REASON: &str = "its memory is full";
    const PAUSE: Duration = Duration::from_millis(100);

    /// Both ends of a connection, each with its socket and keys.
    fn joined() -> [Joined; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, until, key) =
            (listener.local_addr().unwrap(), Instant::now() + PLENTY, [7; 32]);
        let rank = |index| Rank::new(index, 2).unwrap();
        let other = thread::spawn(move || {
            handshake::join(&[address], rank(1), &key, until).unwrap().remove(0)
        });
        let first = handshake::tests::accept_one(&listener, &key, until);
        [first, other.join().unwrap()]
    }

    /// One end of a connection, and the socket at which the test passes on its messages.
    fn end(joined: &Joined, is_sealed: bool) -> (Peer, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let test = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let seal = is_sealed.then(|| Seal::new(&joined.1).unwrap());
        (Peer::new(mio::net::TcpStream::from_std(stream), "host".to_owned(), seal), test)
    }

    /// A rank, the socket to it, and the bytes of another rank that gives up, not yet passed on.
    fn abort(is_sealed: bool) -> (Peer, TcpStream, Vec<u8>) {
        let [zero, one] = joined();
        let ((zero, to_zero), (mut one, mut from_one)) =
            (end(&zero, is_sealed), end(&one, is_sealed));
        one.abort(3, &Reason::Lost(REASON.to_owned()));
        one.hang_up();
        let mut bytes = Vec::new();
        from_one.read_to_end(&mut bytes).unwrap();
        (zero, to_zero, bytes)
    }

    /// Waits until `peer` reports that the other rank gave up. Returns the blamed rank and the
    /// reason.
    fn heard(peer: &mut Peer) -> (u32, Reason) {
        let until = Instant::now() + PLENTY;
        while Instant::now() < until {
            match peer.last_words() {
                Some(Fault::Abort { blamed, reason }) => return (blamed, reason),
                Some(fault) => panic!("{fault:?}"),
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        panic!("nothing was heard");
    }

    /// Repeats a test that needs the machine within a moment, and returns whether that was so and
    /// how long it took, while the machine is too busy.
    #[track_caller]
    fn unless_late(test: impl Fn() -> (bool, Duration)) {
        let has_passed = (0..200).find_map(|_| {
            let (has_passed, took) = test();
            (has_passed || took < 3 * PAUSE).then_some(has_passed)
        });
        assert_eq!(has_passed, Some(true));
    }

    #[test]
    fn a_reason_that_arrives_in_two_pieces_is_whole() {
        for is_sealed in [false, true] {
            unless_late(|| {
                let (mut zero, mut to_zero, bytes) = abort(is_sealed);
                let (first, rest) = bytes.split_at(SEALED_HEAD + 1);
                let begun = Instant::now();
                to_zero.write_all(first).unwrap();
                thread::scope(|scope| {
                    let write = scope.spawn(|| {
                        thread::sleep(PAUSE);
                        to_zero.write_all(rest).unwrap();
                        begun.elapsed()
                    });
                    let is_whole = heard(&mut zero) == (3, Reason::Lost(REASON.to_owned()));
                    (is_whole, write.join().unwrap())
                })
            });
        }
    }

    #[test]
    fn a_reason_that_is_cut_off_is_waited_for_no_longer_than_a_moment() {
        for (is_sealed, text) in [(false, &REASON[..4]), (true, "")] {
            let (mut zero, mut to_zero, bytes) = abort(is_sealed);
            let head = bytes.len() - REASON.len() - if is_sealed { 16 } else { 0 };
            to_zero.write_all(&bytes[..head + 4]).unwrap();
            assert_eq!(heard(&mut zero), (3, Reason::Lost(text.to_owned())));
        }
    }

    #[test]
    fn a_reason_reaches_a_slow_peer_though_its_rank_exits_at_once() {
        unless_late(|| {
            let [joined, _] = joined();
            let (mut one, mut peer) = end(&joined, false);
            socket2::SockRef::from(&*one.stream()).set_send_buffer_size(1 << 16).unwrap();
            // A socket that is closed while something is unread discards what it has not yet sent.
            peer.write_all(&[0; 1000]).unwrap();
            while one.stream().write(&[0; 1 << 16]).is_ok() {}
            let mut links = Links::new(1, vec![Some(one), None], PLENTY).unwrap();
            let begun = Instant::now();
            thread::scope(|scope| {
                let read = scope.spawn(|| {
                    let (mut bytes, mut buffer) = (Vec::new(), [0; 1 << 16]);
                    while let Ok(length @ 1..) = peer.read(&mut buffer) {
                        bytes.extend_from_slice(&buffer[..length]);
                        thread::sleep(Duration::from_millis(1));
                    }
                    drop(peer);
                    bytes
                });
                let error = links.give_up_on(0, Fault::Differs(Call::BARRIER)).to_string();
                drop(links);
                let read = read.join().unwrap();
                (read.ends_with(error.as_bytes()), begun.elapsed())
            })
        });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_reason_is_sent_once_a_full_socket_has_room_again() {
        for is_sealed in [false, true] {
            unless_late(|| {
                let [zero, one] = joined();
                let ((mut zero, mut to_zero), (mut one, mut from_one)) =
                    (end(&zero, is_sealed), end(&one, is_sealed));
                let mut filled = 0;
                loop {
                    match one.stream().write(&[0; 1 << 16]) {
                        Ok(length) => filled += length,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                let begun = Instant::now();
                thread::scope(|scope| {
                    let read = scope.spawn(|| {
                        thread::sleep(PAUSE);
                        let mut bytes = Vec::new();
                        let _ = from_one.read_to_end(&mut bytes);
                        bytes
                    });
                    let mut links = Links::new(1, vec![Some(one), None], PLENTY).unwrap();
                    let error = links.give_up_on(0, Fault::Differs(Call::BARRIER)).to_string();
                    let (bytes, took) = (read.join().unwrap(), begun.elapsed());
                    if bytes.len() <= filled {
                        return (false, took);
                    }
                    to_zero.write_all(&bytes[filled..]).unwrap();
                    to_zero.shutdown(Shutdown::Write).unwrap();
                    (heard(&mut zero) == (0, Reason::Difference(error)), took)
                })
            });
        }
    }

    /// What rank 0 of 3 reports, which waits for the others.
    fn error_of_waiting(links: &mut Links) -> CollectiveError {
        let mut words = [[0; 4]; 3];
        let mut all =
            words.each_mut().map(|word| Exchange { receive: Some(word), ..Exchange::default() });
        links.transfer(Transfer { number: 0, call: Call::BARRIER }, &mut all, None).unwrap_err()
    }

    #[test]
    fn a_rank_that_suspects_one_that_does_not_exist_is_to_blame() {
        let [joined, _] = joined();
        let [(one, mut as_one), (two, _as_two)] = [(); 2].map(|()| end(&joined, false));
        as_one.write_all(&head(SUSPECT, 77, 0, Call::BARRIER)).unwrap();
        let mut links = Links::new(0, vec![None, Some(one), Some(two)], PLENTY).unwrap();
        assert_eq!(error_of_waiting(&mut links).rank(), Some(1));
    }

    /// What rank 0 reports after it has given up on rank 1, which says something more.
    fn error_after(say: impl FnOnce(&mut Peer)) -> CollectiveError {
        let [joined, _] = joined();
        let [(one, mut as_one), (two, _as_two), (mut voice, mut its_words)] =
            [(); 3].map(|()| end(&joined, false));
        say(&mut voice);
        voice.hang_up();
        let mut words = Vec::new();
        its_words.read_to_end(&mut words).unwrap();

        let peers = vec![None, Some(one), Some(two)];
        let mut links = Links::new(0, peers, Duration::from_secs(10)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                as_one.read_exact(&mut [0; HEAD]).unwrap();
                thread::sleep(Duration::from_millis(700));
                as_one.write_all(&words).unwrap();
            });
            error_of_waiting(&mut links)
        })
    }

    #[test]
    fn a_sender_that_is_lost_in_the_middle_of_a_message_is_to_blame_however_late_it_was_awaited() {
        let [joined, _] = joined();
        let (one, mut as_one) = end(&joined, false);
        let Message { heard: call, .. } = Message::tagged(1, ElementKind::U8, 4, 7);
        // The rest of its frame never comes.
        as_one.write_all(&head(DATA, 0, 4, call)).unwrap();
        let timeout = Duration::from_secs(20);
        let mut links = Links::new(0, vec![None, Some(one)], timeout).unwrap();
        links.ended = Instant::now().checked_sub(timeout);
        assert_eq!(links.next_message(1, 0, timeout).unwrap(), call);
        as_one.shutdown(Shutdown::Write).unwrap();
        let mut words = [0; 4];
        let receive = Exchange { receive: Some(&mut words), ..Exchange::default() };
        let transfer = Transfer { number: 0, call };
        let error = links.transfer(transfer, &mut [Exchange::default(), receive], None);
        let error = error.unwrap_err();
        assert!(matches!(error, CollectiveError::Lost { rank: 1, .. }), "{error}");
    }

    #[test]
    fn a_rank_on_a_busy_host_that_reports_late_that_it_waits_too_is_not_blamed() {
        let error = error_after(|one| one.suspect(2, PLENTY));
        assert!(matches!(error, CollectiveError::TimedOut { rank: 2, .. }), "{error}");
    }

    #[test]
    fn a_rank_that_reports_late_which_rank_it_lost_is_not_blamed() {
        let error = error_after(|one| _ = one.abort(2, &Reason::Lost(REASON.to_owned())));
        assert!(
            matches!(&error, CollectiveError::Lost { rank: 2, reason, .. } if reason == REASON),
            "{error}"
        );
    }
}
