//! One process in the middle, and others that are each connected to it, for as long as a job runs.
//!
//! Both ends send heartbeats and messages. An end that is silent is lost, and so is one that closes
//! its connection or whose messages were changed. All of this takes one thread at each end.

mod accept;

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Shutdown};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::LONGEST_BLOB;
use super::auth::{Directions, LENGTH, digest};
use super::connections::{Connection, Connections, MOST_READY, read};
use super::frame::{Message, REPLY_HEAD, ReplyHead, ReplyKind};
use super::handshake::Guest;

pub use mio::Waker;

/// How much to read at a time, in bytes.
const SCRATCH: usize = 16 << 10;
/// How often to read from one connection before looking at the others.
const AT_ONCE: usize = 64;
/// The shortest time that a member may take for its first message: it may be busy with others.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

/// A connection whose ends have proven to each other that they have the key.
#[derive(Debug)]
pub struct Channel {
    /// The rank at the other end.
    pub rank: u32,
    /// The connection, after its handshake.
    pub stream: std::net::TcpStream,
    /// The keys for both directions.
    pub directions: Directions,
}

/// What a star heard from a rank.
#[derive(Debug)]
pub enum Heard {
    /// It has proven that it belongs here.
    Came,
    /// It has sent this message.
    Said(Vec<u8>),
    /// Its connection is closed, for this reason.
    Lost(io::Error),
}

/// Who is at the other end of a connection.
#[derive(Debug)]
enum Party {
    Guest(Guest),
    Member(Member),
}

#[derive(Debug)]
struct Member {
    rank: u32,
    directions: Directions,
    /// The part of a message that has arrived.
    part: Vec<u8>,
    heard_at: Instant,
    /// Whether it has sent a message. Until then, it may still connect by another address.
    is_confirmed: bool,
}

/// How often each end sends a heartbeat, and how long it may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The time between two heartbeats.
    pub beat: Duration,
    /// How long an end may send nothing.
    pub silence: Duration,
}

impl Times {
    /// Eight heartbeats in the time that an end may be silent, and at least one in two seconds.
    pub fn of(silence: Duration) -> Times {
        let beat = (silence / 8).clamp(Duration::from_millis(20), Duration::from_secs(2));
        Times { beat, silence }
    }
}

/// One end's connections.
#[derive(Debug)]
pub struct Star {
    connections: Connections<Party>,
    waker: Arc<Waker>,
    times: Times,
    beat_at: Instant,
    /// Connections that may hold more than was read.
    unread: Vec<usize>,
    scratch: Box<[u8]>,
    door: accept::Door,
}

impl Star {
    /// An end without connections.
    pub fn new(times: Times) -> io::Result<Star> {
        let connections = Connections::new()?;
        Ok(Star {
            waker: Arc::new(connections.waker()?),
            connections,
            times,
            beat_at: Instant::now(),
            unread: Vec::new(),
            scratch: vec![0; SCRATCH].into(),
            door: accept::Door::default(),
        })
    }

    /// An end with these connections.
    pub(super) fn connected(channels: Vec<Channel>, silence: Duration) -> io::Result<Star> {
        let mut star = Star::new(Times::of(silence))?;
        channels.into_iter().try_for_each(|channel| star.add(channel))?;
        Ok(star)
    }

    /// What ends a [`Star::turn`] from another thread.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Adds a member that met this end elsewhere.
    pub fn add(&mut self, channel: Channel) -> io::Result<()> {
        let Channel { rank, stream, directions } = channel;
        stream.set_nonblocking(true)?;
        let peer = stream.peer_addr().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        let mut member = Member::new(rank, directions, self.times.silence);
        member.is_confirmed = true;
        let id = self.connections.add(TcpStream::from_std(stream), peer, Party::Member(member))?;
        self.connections.identify(id);
        Ok(())
    }

    /// Returns what has arrived. Waits for it until the next heartbeat, which says `sign`.
    ///
    /// # Errors
    /// Nothing can be waited for, or accepted.
    pub fn turn(&mut self, sign: &[u8]) -> io::Result<Vec<(u32, Heard)>> {
        self.accept()?;
        let mut heard = Vec::new();
        let now = Instant::now();
        let is_time = now >= self.beat_at;
        // Before anything is read, so that who takes a new connection finds nothing sent on it.
        if is_time {
            self.beat_at = now + self.times.beat;
            self.try_again();
            let sign = Message::new(ReplyKind::Message, sign);
            // One that reads nothing needs no second sign.
            self.send_to(&sign, Connection::is_flushed);
        }
        let ready = self.wait(if is_time { Duration::ZERO } else { self.beat_at - now })?;
        ready.iter().for_each(|&id| self.read(id, &mut heard));
        // After all that has come is read: this process may have been stopped, and not the others.
        if is_time && ready.len() < MOST_READY {
            self.lose_the_silent(now, &mut heard);
        }
        Ok(heard)
    }

    /// Sends a message of at most [`LONGEST_BLOB`] bytes to all members. One that cannot be reached
    /// is lost, as the next turns find.
    pub fn send_to_all(&mut self, payload: &[u8]) {
        if payload.len() <= LONGEST_BLOB {
            self.send_to(&Message::new(ReplyKind::Message, payload), |_| true);
        }
    }

    fn send_to(&mut self, message: &Message, is_wanted: impl Fn(&Connection<Party>) -> bool) {
        for id in self.connections.ids(is_wanted) {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            if let Some(member) = connection.state.member() {
                let tag = member.directions.outgoing.tag(&message.digest);
                let _ = connection.send_tagged(message, tag);
            }
        }
    }

    /// Waits until the others have read everything and closed their connections, but at most for
    /// this time. To close earlier may lose what was sent last.
    pub fn close(mut self, within: Duration) {
        self.connections.stop_listening();
        self.dismiss_guests();
        let until = Instant::now() + within;
        loop {
            for connection in self.connections.iter().filter(|connection| connection.is_flushed()) {
                // If this fails, the connection is already closed.
                let _ = connection.stream.shutdown(Shutdown::Write);
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.connections.iter().next().is_none() || left.is_zero() {
                return;
            }
            let Ok(ready) = self.wait(left) else { return };
            ready.into_iter().for_each(|id| self.read(id, &mut Vec::new()));
        }
    }

    /// Waits for connections that can be read or written.
    fn wait(&mut self, most: Duration) -> io::Result<Vec<usize>> {
        let most = if self.unread.is_empty() { most } else { Duration::ZERO };
        let mut ready = self.connections.wait(most)?;
        ready.append(&mut self.unread);
        // Each is read once: what follows a hello is for who takes the connection.
        ready.sort_unstable();
        ready.dedup();
        Ok(ready)
    }

    /// Reads and writes what is possible now.
    fn read(&mut self, id: usize, heard: &mut Vec<(u32, Heard)>) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        match &connection.state {
            Party::Guest(_) => self.read_hello(id, heard),
            Party::Member(_) => {
                // If this fails, the read finds why, and what the other end said before.
                let _ = connection.flush();
                if let Err(error) = self.read_messages(id, heard) {
                    self.lose(id, error, heard);
                }
            }
        }
    }

    fn read_messages(&mut self, id: usize, heard: &mut Vec<(u32, Heard)>) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
            let Some(length) = read(&mut connection.stream, &mut self.scratch)? else {
                return Ok(());
            };
            let Some(member) = connection.state.member() else { return Ok(()) };
            member.part.extend(&self.scratch[..length]);
            let (rank, was_confirmed) = (member.rank, member.is_confirmed);
            while let Some(payload) = member.next()? {
                (member.heard_at, member.is_confirmed) = (Instant::now(), true);
                if !payload.is_empty() {
                    heard.push((rank, Heard::Said(payload)));
                }
            }
            if member.is_confirmed && !was_confirmed {
                self.confirm(rank);
            }
        }
        self.unread.push(id);
        Ok(())
    }

    /// Drops the earlier connections of a rank that has sent a message on another, and that it has
    /// closed, although the close has not arrived.
    fn confirm(&mut self, rank: u32) {
        let is_stale = |member: &Member| member.rank == rank && !member.is_confirmed;
        for id in self.members(is_stale) {
            self.connections.remove(id);
        }
        self.has_come(rank);
    }

    fn lose(&mut self, id: usize, error: io::Error, heard: &mut Vec<(u32, Heard)>) {
        if let Some(Connection { state: Party::Member(member), .. }) = self.connections.remove(id)
            && (member.is_confirmed || error.kind() == io::ErrorKind::TimedOut)
        {
            heard.push((member.rank, Heard::Lost(error)));
        }
    }

    fn lose_the_silent(&mut self, now: Instant, heard: &mut Vec<(u32, Heard)>) {
        let silence = self.times.silence;
        for id in self.members(|member| now.saturating_duration_since(member.heard_at) >= silence) {
            self.lose(id, io::ErrorKind::TimedOut.into(), heard);
        }
    }

    /// The numbers of the connections to these members.
    fn members(&self, is_wanted: impl Fn(&Member) -> bool) -> Vec<usize> {
        self.connections.ids(
            |connection| matches!(&connection.state, Party::Member(member) if is_wanted(member)),
        )
    }
}

impl Party {
    fn member(&mut self) -> Option<&mut Member> {
        match self {
            Party::Guest(_) => None,
            Party::Member(member) => Some(member),
        }
    }
}

impl Member {
    fn new(rank: u32, directions: Directions, silence: Duration) -> Member {
        let heard_at = Instant::now() + FIRST_MESSAGE.saturating_sub(silence);
        let part = Vec::new();
        Member { rank, directions, part, heard_at, is_confirmed: false }
    }

    /// Takes the next message out of what has arrived, if it is complete.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(&raw) = self.part.first_chunk::<REPLY_HEAD>() else { return Ok(None) };
        let head = ReplyHead::decode(raw).filter(|head| head.kind == ReplyKind::Message);
        let length = head.and_then(|head| usize::try_from(head.length).ok());
        let length = length.filter(|&length| length <= LONGEST_BLOB).ok_or_else(altered)?;
        let end = REPLY_HEAD + length;
        if self.part.len() < end + LENGTH {
            return Ok(None);
        }
        let rest = self.part.split_off(end + LENGTH);
        let message = mem::replace(&mut self.part, rest);
        let (signed, tag) = message.split_at(end);
        if !self.directions.incoming.verify(&digest(&[signed]), tag) {
            return Err(altered());
        }
        Ok(Some(signed[REPLY_HEAD..].to_vec()))
    }
}

fn altered() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message was changed, repeated or left out on the way",
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;
    use crate::auth::{JobKey, Role, Run};

    const LONG: Duration = Duration::from_secs(1200);

    /// Both ends of a connection, rank 0's first, and the bare socket of the other.
    fn ends() -> (Star, Star, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let zero = listener.accept().unwrap().0;
        let both = JobKey::new(b"secret", Role::Launches, Run::default()).directions(b"g", b"h");
        let bare = one.try_clone().unwrap();
        let star = |rank, stream, directions| {
            let mut star = Star::new(Times { beat: LONG, silence: LONG }).unwrap();
            // No heartbeat disturbs what the tests count.
            star.beat_at += LONG;
            star.add(Channel { rank, stream, directions }).unwrap();
            star
        };
        (star(1, zero, both.clone()), star(0, one, both.reversed()), bare)
    }

    /// What the other end said until it was lost, and why it was.
    fn until_lost(star: &mut Star) -> (Vec<Vec<u8>>, io::Error) {
        let mut all = Vec::new();
        loop {
            for (_, heard) in star.turn(&[]).unwrap() {
                match heard {
                    Heard::Said(said) => all.push(said),
                    Heard::Lost(error) => return (all, error),
                    Heard::Came => panic!("no rank can come"),
                }
            }
        }
    }

    /// What rank 1 sends, byte by byte.
    fn recorded(payload: &[u8]) -> Vec<u8> {
        let (mut zero, mut one, _) = ends();
        one.send_to_all(payload);
        let Some(connection) = zero.connections.remove(0) else {
            panic!("rank 0 has no connection")
        };
        let mut bytes = vec![0; REPLY_HEAD + payload.len() + LENGTH];
        let mut stream = TcpStream::from(connection.stream);
        stream.set_nonblocking(false).unwrap();
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn messages_go_both_ways_and_have_a_limit() {
        let (mut zero, mut one, _) = ends();
        let long = vec![7; LONGEST_BLOB];
        one.send_to_all(b"order");
        let sent = long.clone();
        let sender = std::thread::spawn(move || {
            zero.send_to_all(b"event");
            zero.send_to_all(&sent);
            // It is not sent.
            zero.send_to_all(&[&sent[..], b"1"].concat());
            let heard = zero.turn(&[]).unwrap();
            assert!(matches!(&heard[..], [(1, Heard::Said(said))] if said == b"order"));
            // The last message arrives whole although its sender closes.
            zero.close(LONG);
        });
        let (said, error) = until_lost(&mut one);
        assert!(said == [b"event".to_vec(), long]);
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(one);
        sender.join().unwrap();
    }

    #[test]
    fn who_is_silent_is_lost() {
        let (mut zero, _one, _) = ends();
        zero.times = Times { beat: Duration::from_millis(1), silence: Duration::from_millis(50) };
        zero.beat_at = Instant::now();
        assert_eq!(until_lost(&mut zero).1.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn who_spoke_while_this_process_was_stopped_is_not_lost() {
        let (mut zero, mut one, _) = ends();
        zero.times = Times { beat: Duration::from_millis(1), silence: Duration::from_millis(50) };
        zero.beat_at = Instant::now();
        let member =
            zero.connections.get_mut(0).and_then(|connection| connection.state.member()).unwrap();
        member.heard_at = Instant::now();
        one.send_to_all(b"event");
        std::thread::sleep(Duration::from_millis(100));
        let heard = zero.turn(&[]).unwrap();
        assert!(matches!(&heard[..], [(1, Heard::Said(said))] if said == b"event"), "{heard:?}");
    }

    #[test]
    fn a_message_that_is_repeated_reflected_or_announced_too_long_is_refused() {
        let refuse = |star: &mut Star, said: &[&[u8]]| {
            let (all, error) = until_lost(star);
            assert_eq!(
                (all, error.to_string()),
                (said.iter().map(|said| said.to_vec()).collect(), altered().to_string())
            );
        };
        let once = recorded(b"event");
        let (mut zero, _one, mut bare) = ends();
        bare.write_all(&[&once[..], &once].concat()).unwrap();
        refuse(&mut zero, &[b"event"]);
        let (mut zero, _one, mut bare) = ends();
        zero.send_to_all(b"event");
        let mut reflected = vec![0; once.len()];
        bare.set_nonblocking(false).unwrap();
        bare.read_exact(&mut reflected).unwrap();
        bare.write_all(&reflected).unwrap();
        refuse(&mut zero, &[]);
        let (mut zero, _one, mut bare) = ends();
        bare.write_all(&[&once[..17], &[0xff; 4]].concat()).unwrap();
        refuse(&mut zero, &[]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_is_not_what_the_other_end_sent_is_refused(
            payload in proptest::collection::vec(any::<u8>(), 1..200), at: prop::sample::Index, change in 1..=255u8,
        ) {
            let mut bytes = recorded(&payload);
            let place = at.index(bytes.len());
            bytes[place] ^= change;
            let (mut zero, _one, mut bare) = ends();
            bare.write_all(&bytes).unwrap();
            bare.shutdown(Shutdown::Write).unwrap();
            prop_assert_eq!(until_lost(&mut zero).0, Vec::<Vec<u8>>::new());
        }

        #[test]
        fn noise_is_refused(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (mut zero, _one, mut bare) = ends();
            bare.write_all(&noise).unwrap();
            bare.shutdown(Shutdown::Write).unwrap();
            prop_assert_eq!(until_lost(&mut zero).0, Vec::<Vec<u8>>::new());
        }
    }
}
