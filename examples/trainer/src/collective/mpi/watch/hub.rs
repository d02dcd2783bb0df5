//! Rank 0's watch: it hears all ranks, and tells all who is lost.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

use super::line::{Line, Message};
use super::{Own, Socket, WAKE, host, reason};
use crate::collective::CollectiveError;

const LISTENER: Token = Token(usize::MAX - 1);
/// Connections that have not said yet which rank they are; more are closed.
const MOST_UNKNOWN: usize = 4096;
/// How long a connection may take to say which rank it is.
const GREETING: Duration = Duration::from_secs(5);
/// How long ranks may take to hear the last word: a connection that is closed before may lose it.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A connection.
struct Caller {
    line: Line,
    /// Its rank, once it said so.
    rank: Option<u32>,
    heard: Instant,
    calls: u64,
    since: Instant,
}

struct Hub<'a> {
    own: Own,
    hosts: &'a [String],
    token: String,
    listener: TcpListener,
    poll: Poll,
    callers: BTreeMap<usize, Caller>,
    next: usize,
}

/// Watches until this rank ends; returns who is lost.
pub(super) fn watch(own: Own, socket: Socket, poll: Poll, hosts: &[String]) -> Option<CollectiveError> {
    let Socket { listener, token } = socket;
    listener.set_nonblocking(true).ok()?;
    let mut listener = TcpListener::from_std(listener);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).ok()?;
    let mut hub = Hub { own, hosts, token, listener, poll, callers: BTreeMap::new(), next: 0 };
    let lost = hub.run();
    let (message, late) = match &lost {
        Some(CollectiveError::Lost { rank, reason, .. }) => {
            (Message::Lost { rank: *rank, reason: reason.clone() }, None)
        }
        Some(CollectiveError::TimedOut { rank, .. }) => (Message::Late { rank: *rank }, Some(*rank)),
        _ => (Message::Bye, None),
    };
    hub.tell(&message);
    hub.part(late);
    lost
}

impl Hub<'_> {
    fn run(&mut self) -> Option<CollectiveError> {
        let mut events = Events::with_capacity(1024);
        let mut beat = Instant::now();
        loop {
            let now = Instant::now();
            if self.poll.poll(&mut events, Some(beat.saturating_duration_since(now))).is_err() {
                // Interrupted: the next turn waits for what is left.
                events.clear();
            }
            if self.own.has_ended() {
                return None;
            }
            let now = Instant::now();
            for event in &events {
                match event.token() {
                    WAKE => {}
                    LISTENER => self.accept(now),
                    Token(id) => {
                        if let Some(lost) = self.hear(id, now) {
                            return Some(lost);
                        }
                    }
                }
            }
            if now >= beat {
                beat = now + self.own.times.beat;
                let calls = self.own.look(now);
                self.tell(&Message::Beat { calls });
                if let Some(late) = self.late(now) {
                    return Some(late);
                }
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            // The last word is not to wait for an answer to the one before.
            let _ = stream.set_nodelay(true);
            let unknown = self.callers.values().filter(|caller| caller.rank.is_none()).count();
            let token = Token(self.next);
            if unknown >= MOST_UNKNOWN || self.poll.registry().register(&mut stream, token, Interest::READABLE).is_err()
            {
                continue;
            }
            let caller = Caller { line: Line::new(stream), rank: None, heard: now, calls: 0, since: now };
            self.callers.insert(self.next, caller);
            self.next += 1;
        }
    }

    /// Takes what a connection says; returns the rank whose connection came to an end.
    fn hear(&mut self, id: usize, now: Instant) -> Option<CollectiveError> {
        let caller = self.callers.get_mut(&id)?;
        let mut messages = Vec::new();
        let received = caller.line.receive(&mut messages);
        let mut stays = true;
        for message in messages {
            caller.heard = now;
            match (message, caller.rank) {
                (Message::Hello { token, rank }, None) if token == self.token && (rank as usize) < self.hosts.len() => {
                    caller.rank = Some(rank);
                    let calls = self.own.calls;
                    // It learns by this that it has come to the right place.
                    stays = caller.line.send(&Message::Beat { calls }).is_ok();
                }
                (Message::Beat { calls }, Some(_)) => {
                    if calls != caller.calls {
                        caller.calls = calls;
                        caller.since = now;
                    }
                }
                // A stranger, or a rank that ends as it should.
                _ => stays = false,
            }
        }
        let rank = caller.rank;
        if !stays {
            self.callers.remove(&id);
            return None;
        }
        let error: io::Error = received.err()?;
        self.callers.remove(&id);
        rank.map(|rank| CollectiveError::Lost { rank, host: host(rank, self.hosts), reason: reason(&error) })
    }

    /// Says it to all ranks; who cannot be told is seen to be lost when it is heard.
    fn tell(&mut self, message: &Message) {
        for caller in self.callers.values_mut().filter(|caller| caller.rank.is_some()) {
            let _ = caller.line.send(message);
        }
    }

    /// Waits until all ranks have closed their connections, but for one that is late and will not.
    fn part(&mut self, late: Option<u32>) {
        self.callers.retain(|_, caller| caller.rank.is_some() && caller.rank != late);
        for caller in self.callers.values() {
            let _ = caller.line.stream.shutdown(Shutdown::Write);
        }
        let begun = Instant::now();
        while !self.callers.is_empty() && begun.elapsed() < LAST_WORD {
            self.callers.retain(|_, caller| caller.line.receive(&mut Vec::new()).is_ok());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Who is silent, or has not begun a call in which others wait, for too long.
    fn late(&mut self, now: Instant) -> Option<CollectiveError> {
        let timeout = self.own.times.timeout;
        self.callers.retain(|_, caller| caller.rank.is_some() || now - caller.heard < GREETING);
        let others = || self.callers.values().filter_map(|caller| caller.rank.map(|rank| (rank, caller)));
        if let Some((rank, _)) = others().find(|(_, caller)| now - caller.heard >= timeout) {
            return Some(self.own.late(rank, self.hosts));
        }
        let own = (self.own.rank.index(), self.own.calls, self.own.since);
        let all = || others().map(|(rank, caller)| (rank, caller.calls, caller.since)).chain([own]);
        let waiting = all().filter(|&(_, calls, since)| calls % 2 == 1 && now - since >= timeout);
        if let Some(furthest) = waiting.map(|(_, calls, _)| calls).max() {
            let behind = all().filter(|&(_, calls, _)| calls < furthest).min_by_key(|&(rank, calls, _)| (calls, rank));
            if let Some((rank, ..)) = behind {
                return Some(self.own.late(rank, self.hosts));
            }
        }
        self.own.has_waited_in_vain(now).then(|| self.own.nobody_is_known_to_be_late())
    }
}
