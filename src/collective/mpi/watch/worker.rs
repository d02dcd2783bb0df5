//! The watch of every rank except 0, which monitors rank 0 and receives its reports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use super::channel::{Channel, Message};
use super::{Own, host, reason};
use crate::collective::error::CollectiveError;
use crate::collective::host_info::Listener;
use crate::rendezvous::handshake::{ConnectionKey, Joining, Purpose, Refusal};
use crate::value::rank::Rank;

/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);
/// How long each of rank 0's addresses may take to answer.
const ANSWER: Duration = Duration::from_secs(1);
const FIRST: Token = Token(0);

/// Watches until this rank exits. Returns the error if another rank is lost or late before that.
pub(super) fn watch(
    mut own: Own,
    listens: Option<Listener>,
    mut poll: Poll,
    hosts: &[String],
) -> Option<CollectiveError> {
    let mut channel = listens.and_then(|listens| connect(&own, &listens, hosts, &poll));
    let mut events = Events::with_capacity(8);
    let mut beat = Instant::now();
    let mut heard = Instant::now();
    loop {
        let wait = beat.saturating_duration_since(Instant::now());
        if poll.poll(&mut events, Some(wait)).is_err() {
            // Interrupted: the next iteration waits for the rest of the time.
            events.clear();
        }
        if own.has_ended() {
            // If this fails, rank 0 sees the connection close.
            channel.map(|mut channel| channel.send(&Message::Bye));
            return None;
        }
        let now = Instant::now();
        let mut messages = Vec::new();
        let received = channel.as_mut().map_or(Ok(()), |channel| channel.receive(&mut messages));
        if !messages.is_empty() {
            heard = now;
        }
        for message in messages {
            match message {
                Message::Lost { rank, reason } => {
                    return Some(CollectiveError::Lost { rank, host: host(rank, hosts), reason });
                }
                Message::Late { rank } => return Some(own.late(rank, hosts)),
                // Rank 0 is done, and the others soon will be.
                Message::Bye => channel = None,
                Message::Beat { .. } => {}
            }
        }
        if channel.is_some() {
            if let Err(error) = received {
                return Some(CollectiveError::Lost {
                    rank: 0,
                    host: host(0, hosts),
                    reason: reason(&error),
                });
            }
            if now - heard >= own.times.timeout {
                return Some(own.late(0, hosts));
            }
        }
        if now >= beat {
            beat = now + own.times.beat;
            let calls = own.look(now);
            if let Some(channel) = &mut channel {
                // If sending fails, the next read finds the connection closed.
                let _ = channel.send(&Message::Beat { calls });
            }
            if own.has_waited_in_vain(now) {
                // This rank exits on its own: rank 0 must not report it as lost.
                channel.map(|mut channel| channel.send(&Message::Bye));
                return Some(own.some_rank_is_late());
            }
        }
    }
}

/// Connects to rank 0 at the first of its addresses that answers within the timeout.
fn connect(own: &Own, listens: &Listener, hosts: &[String], poll: &Poll) -> Option<Channel> {
    let here: &[IpAddr] = &[IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let is_here = host(0, hosts) == host(own.rank.index(), hosts);
    let here = if is_here { here } else { &[] };
    let deadline = Instant::now() + own.times.timeout;
    let key = ConnectionKey::new(&listens.key, Purpose::Watch, 0);
    while Instant::now() < deadline && !own.has_ended() {
        for &address in here.iter().chain(&listens.addresses) {
            let address = SocketAddr::new(address, listens.port);
            if let Ok(mut channel) = shake_hands(address, &key, own.rank) {
                poll.registry().register(&mut channel.stream, FIRST, Interest::READABLE).ok()?;
                return Some(channel);
            }
        }
        thread::sleep(RETRY);
    }
    None
}

/// Connects and waits for rank 0's welcome: seen from here, the address may belong to another
/// machine.
pub(super) fn shake_hands(
    address: SocketAddr,
    key: &ConnectionKey,
    rank: Rank,
) -> Result<Channel, Refusal> {
    let stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_nodelay(true)?;
    let joining = Joining::new(stream, Instant::now() + ANSWER);
    let (stream, directions) = joining.say_hello(key, rank)?.welcomed()?;
    stream.set_nonblocking(true)?;
    Ok(Channel::new(mio::net::TcpStream::from_std(stream), directions))
}
