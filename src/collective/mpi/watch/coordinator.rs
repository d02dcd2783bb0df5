//! Rank 0's watch, which monitors all ranks and reports a lost or late one to all others.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::channel::{Channel, Message};
use super::{LAST_WORD, Own, Socket, WAKE, host, reason};
use crate::collective::error::CollectiveError;
use crate::rendezvous::handshake::{ConnectionKey, Guest, Purpose};

const LISTENER: Token = Token(usize::MAX - 1);
/// How many connections, besides one for each rank, may wait before they identify themselves.
const MOST_UNKNOWN: usize = 256;
/// How many connections to accept before reading from the existing ones.
const AT_ONCE: usize = 64;
/// How long a connection may take to identify its rank.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A connection, before and after its hello.
enum Line {
    Unknown(TcpStream, Guest),
    Known(Channel),
}

struct Caller {
    line: Line,
    /// Its rank, once known.
    rank: Option<u32>,
    /// Whether the rank has sent a beat. Until then, it may still switch to another address.
    is_confirmed: bool,
    heard: Instant,
    calls: u64,
    since: Instant,
}

struct Coordinator<'a> {
    own: Own,
    hosts: &'a [String],
    key: ConnectionKey,
    /// Open until all ranks are connected.
    listener: Option<TcpListener>,
    poll: Poll,
    callers: BTreeMap<usize, Caller>,
    next: usize,
    /// The ranks that have connected, whether or not they have exited since.
    came: BTreeSet<u32>,
}

/// Watches until this rank exits. Returns the error if another rank is lost or late before that.
pub(super) fn watch(
    own: Own,
    socket: Socket,
    poll: Poll,
    hosts: &[String],
) -> Option<CollectiveError> {
    let Socket { listener, key } = socket;
    listener.set_nonblocking(true).ok()?;
    let mut listener = TcpListener::from_std(listener);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).ok()?;
    let mut coordinator = Coordinator {
        own,
        hosts,
        key: ConnectionKey::new(&key, Purpose::Watch, 0),
        listener: Some(listener),
        poll,
        callers: BTreeMap::new(),
        next: 0,
        came: BTreeSet::new(),
    };
    let lost = coordinator.run();
    let (message, late) = match &lost {
        Some(CollectiveError::Lost { rank, reason, .. }) => {
            (Message::Lost { rank: *rank, reason: reason.clone() }, None)
        }
        Some(CollectiveError::TimedOut { rank, .. }) => {
            (Message::Late { rank: *rank }, Some(*rank))
        }
        _ => (Message::Bye, None),
    };
    coordinator.send_to_all(&message);
    coordinator.drain(late);
    lost
}

impl Coordinator<'_> {
    fn run(&mut self) -> Option<CollectiveError> {
        let mut events = Events::with_capacity(1024);
        let mut beat = Instant::now();
        // Connections may be waiting that the system will not report again.
        let mut more = false;
        loop {
            let longest =
                if more { Duration::ZERO } else { beat.saturating_duration_since(Instant::now()) };
            if self.poll.poll(&mut events, Some(longest)).is_err() {
                // Interrupted: the next iteration waits for the rest of the time.
                events.clear();
            }
            if self.own.has_ended() {
                return None;
            }
            let now = Instant::now();
            for event in &events {
                match event.token() {
                    WAKE => {}
                    LISTENER => more = true,
                    Token(id) => {
                        if let Some(lost) = self.receive(id, now) {
                            return Some(lost);
                        }
                    }
                }
            }
            // On each beat, retry connections that found no free file descriptor.
            if more || now >= beat {
                more = self.accept(now);
            }
            if now >= beat {
                beat = now + self.own.times.beat;
                let calls = self.own.look(now);
                self.send_to_all(&Message::Beat { calls });
                if let Some(late) = self.late(now) {
                    return Some(late);
                }
            }
        }
    }

    /// Accepts some connections, so that a flood does not delay the ranks. Returns whether more may
    /// be waiting.
    fn accept(&mut self, now: Instant) -> bool {
        for _ in 0..AT_ONCE {
            let Some(listener) = &self.listener else { return false };
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // No file descriptor is free, or the connection is already closed.
                Err(_) if self.make_room() => continue,
                Err(_) => return false,
            };
            // The last message must not wait for the acknowledgment of the previous one.
            let _ = stream.set_nodelay(true);
            if self
                .poll
                .registry()
                .register(&mut stream, Token(self.next), Interest::READABLE)
                .is_err()
            {
                continue;
            }
            let Ok((guest, greeting)) = Guest::new(&self.key) else { return false };
            if stream.write_all(&greeting).is_err() {
                continue;
            }
            let line = Line::Unknown(stream, guest);
            let caller =
                Caller { line, rank: None, is_confirmed: false, heard: now, calls: 0, since: now };
            self.callers.insert(self.next, caller);
            self.next += 1;
            if self.callers.len() > self.hosts.len() + MOST_UNKNOWN {
                self.make_room();
            }
        }
        true
    }

    /// Closes the oldest connection without a known rank. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        let oldest =
            self.callers.iter().find(|(_, caller)| caller.rank.is_none()).map(|(&id, _)| id);
        oldest.and_then(|id| self.callers.remove(&id)).is_some()
    }

    /// Notes a rank that has connected. Once all have, stops listening.
    fn note_connected(&mut self, rank: u32) {
        self.came.insert(rank);
        if self.came.len() + 1 >= self.hosts.len() {
            self.listener = None;
            self.callers.retain(|_, caller| caller.rank.is_some());
        }
    }

    /// Reads what has arrived of a connection's hello. Returns false if the sender is not a rank.
    fn hear_hello(&mut self, id: usize, now: Instant) -> bool {
        let Some(caller) = self.callers.get_mut(&id) else { return true };
        let size = self.hosts.len() as u32;
        while let Line::Unknown(stream, guest) = &mut caller.line {
            let mut bytes = [0; Guest::LONGEST];
            let length = match stream.read(&mut bytes[..guest.due()]) {
                Ok(0) => return false,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            let Ok(admitted) = guest.feed(&bytes[..length], &self.key, size) else { return false };
            let Some(admitted) = admitted else { continue };
            // The welcome confirms to the rank that this is the right address.
            if stream.write_all(&admitted.welcome).is_err() {
                return false;
            }
            (caller.rank, caller.heard) = (Some(admitted.rank), now);
            let Some(Caller {
                line: Line::Unknown(stream, _),
                rank,
                is_confirmed,
                heard,
                calls,
                since,
            }) = self.callers.remove(&id)
            else {
                return false;
            };
            let line = Line::Known(Channel::new(stream, admitted.directions));
            self.callers.insert(id, Caller { line, rank, is_confirmed, heard, calls, since });
            return true;
        }
        true
    }

    /// Handles a connection's messages. Returns the error if the rank is lost.
    fn receive(&mut self, id: usize, now: Instant) -> Option<CollectiveError> {
        if !self.hear_hello(id, now) {
            self.callers.remove(&id);
            return None;
        }
        let caller = self.callers.get_mut(&id)?;
        let Line::Known(channel) = &mut caller.line else { return None };
        let mut messages = Vec::new();
        let received = channel.receive(&mut messages);
        let (mut stays, mut is_new) = (true, false);
        for message in messages {
            caller.heard = now;
            match (message, caller.rank) {
                (Message::Beat { calls }, Some(_)) => {
                    is_new |= !caller.is_confirmed;
                    caller.is_confirmed = true;
                    if calls != caller.calls {
                        caller.calls = calls;
                        caller.since = now;
                    }
                }
                // The rank exits normally.
                _ => stays = false,
            }
        }
        let rank = caller.rank.filter(|_| caller.is_confirmed);
        if let Some(rank) = rank.filter(|_| is_new) {
            // Drop this rank's earlier connections, whose close has not arrived.
            self.callers.retain(|&other, caller| {
                other == id || caller.is_confirmed || caller.rank != Some(rank)
            });
            self.note_connected(rank);
        }
        if !stays {
            self.callers.remove(&id);
            return None;
        }
        let error: io::Error = received.err()?;
        self.callers.remove(&id);
        rank.map(|rank| CollectiveError::Lost {
            rank,
            host: host(rank, self.hosts),
            reason: reason(&error),
        })
    }

    /// Sends a message to all ranks. If sending fails, the next read reports the rank as lost.
    fn send_to_all(&mut self, message: &Message) {
        for caller in self.callers.values_mut() {
            if let Line::Known(channel) = &mut caller.line {
                let _ = channel.send(message);
            }
        }
    }

    /// Waits briefly until all ranks except the late one have closed their connections.
    fn drain(&mut self, late: Option<u32>) {
        self.callers.retain(|_, caller| caller.rank.is_some() && caller.rank != late);
        let is_open = |caller: &mut Caller| match &mut caller.line {
            Line::Known(channel) => channel.receive(&mut Vec::new()).is_ok(),
            Line::Unknown(..) => false,
        };
        for caller in self.callers.values() {
            if let Line::Known(channel) = &caller.line {
                let _ = channel.stream.shutdown(Shutdown::Write);
            }
        }
        let begun = Instant::now();
        while !self.callers.is_empty() && begun.elapsed() < LAST_WORD {
            self.callers.retain(|_, caller| is_open(caller));
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the error if a rank has been silent, or missing from a call in which others wait,
    /// for too long.
    fn late(&mut self, now: Instant) -> Option<CollectiveError> {
        let timeout = self.own.times.timeout;
        self.callers.retain(|_, caller| caller.rank.is_some() || now - caller.heard < HANDSHAKE);
        let others =
            || self.callers.values().filter_map(|caller| caller.rank.map(|rank| (rank, caller)));
        if let Some((rank, _)) = others().find(|(_, caller)| now - caller.heard >= timeout) {
            return Some(self.own.late(rank, self.hosts));
        }
        let own = (self.own.rank.index(), self.own.calls, self.own.since);
        let all = || others().map(|(rank, caller)| (rank, caller.calls, caller.since)).chain([own]);
        let waiting = all().filter(|&(_, calls, since)| calls % 2 == 1 && now - since >= timeout);
        if let Some(furthest) = waiting.map(|(_, calls, _)| calls).max() {
            let behind = all()
                .filter(|&(_, calls, _)| calls < furthest)
                .min_by_key(|&(rank, calls, _)| (calls, rank));
            if let Some(rank) = behind.map(|(rank, ..)| rank).or_else(|| self.only_absent()) {
                return Some(self.own.late(rank, self.hosts));
            }
        }
        self.own.has_waited_in_vain(now).then(|| self.own.some_rank_is_late())
    }
    /// The only rank that has never connected. If all others have come to a call, they wait for
    /// this one.
    fn only_absent(&self) -> Option<u32> {
        let mut absent = (1..self.hosts.len() as u32).filter(|rank| !self.came.contains(rank));
        absent.next().filter(|_| absent.next().is_none())
    }
}
