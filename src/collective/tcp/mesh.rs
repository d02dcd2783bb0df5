//! Connects every rank with every other, through the rendezvous at the master.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use super::handshake::{self, Joined};
use super::peer::Peer;
use super::seal::Seal;
use super::transfer::longest_call;
use crate::builder::Timeouts;
use crate::error::{CollectiveError, THIS_PROCESS, UNREADABLE};
use crate::rendezvous::listen::on_free_port;
use crate::rendezvous::{self, Meeting, Rendezvous, uses_munge};
use crate::value::host::{Host, host_name};
use crate::value::port::Port;
use crate::value::printable::printable;
use crate::value::rank::Rank;

/// How many keep-alive probes may go unanswered. Together with the pauses between them, they take
/// half the timeout.
const PROBES: u32 = 4;

/// Where and how the ranks of a job meet.
#[derive(Clone, Debug)]
pub(crate) struct MeetingPoint {
    /// Rank 0's host.
    pub(crate) host: Host,
    pub(crate) port: Port,
    /// How this rank meets the others there.
    pub(crate) rendezvous: Rendezvous,
    /// Whether the ranks have a secret, so that messages are encrypted. They are also if MUNGE
    /// gives them a key.
    pub(crate) has_secret: bool,
    /// Whether ranks that share a host share memory, if they can; the same on all ranks.
    pub(crate) shares_memory: bool,
}

/// Connects to all other ranks. Returns the connections by rank, `None` for this rank, and how many
/// others were not from ranks of this job. On rank 0, this includes those at the master's port.
pub(super) fn connect(
    rank: Rank,
    place: &MeetingPoint,
    timeouts: Timeouts,
) -> Result<(Vec<Option<Peer>>, u64), CollectiveError> {
    let timeout = timeouts.connecting;
    let listener = on_free_port(&place.host).map_err(CollectiveError::Socket)?;
    let address = listener.local_addr().map_err(CollectiveError::Socket)?;
    let is_secret = place.has_secret || uses_munge(&place.rendezvous);
    let blob = Contact::blob(address, [is_secret, place.shares_memory]);
    let meeting = place.rendezvous.clone().timeout(timeout).all_gather(blob)?;
    let contacts = Contact::of_all(&meeting)?;
    check_backends(rank, &contacts)?;
    let (joined, rejected) = exchange_hellos(rank, &listener, &meeting, &contacts, timeout)?;
    // If one rank has a secret, all messages are encrypted. All ranks read the same table.
    let is_sealed = contacts.iter().any(|contact| contact.is_secret);
    let peers = joined.into_iter().zip(contacts).map(|(joined, contact)| {
        let peer = |joined| new_peer(joined, contact.host, is_sealed, timeouts.calls);
        joined.map(peer).transpose()
    });
    let peers = peers.collect::<io::Result<_>>().map_err(CollectiveError::Socket)?;
    Ok((peers, rejected + meeting.rejected()))
}

/// Compares the backends of the ranks, which would go on with different calls.
fn check_backends(own: Rank, contacts: &[Contact]) -> Result<(), CollectiveError> {
    let shares = |rank: usize| contacts.get(rank).is_some_and(|contact| contact.shares_memory);
    let called =
        |rank| format!("connect {} shared memory", ["without", "with"][usize::from(shares(rank))]);
    let index = own.index() as usize;
    let Some(other) = (0..contacts.len()).find(|&rank| shares(rank) != shares(index)) else {
        return Ok(());
    };
    Err(CollectiveError::Differs {
        rank: other as u32,
        found: called(other),
        own: own.index(),
        expected: called(index),
        rule: "all ranks must use the same backend",
    })
}

/// The connections between ranks that are threads of this process, of each rank by rank.
pub(super) fn of_this_process(size: usize) -> io::Result<Vec<Vec<Option<Peer>>>> {
    let peer = |stream: UnixStream| -> io::Result<Peer> {
        stream.set_nonblocking(true)?;
        // The system has the same calls for all streams, and these need no network.
        let stream = TcpStream::from(OwnedFd::from(stream));
        Ok(Peer::new(mio::net::TcpStream::from_std(stream), THIS_PROCESS.to_owned(), None))
    };
    let mut all: Vec<Vec<Option<Peer>>> = Vec::new();
    for _ in 0..size {
        let mut own = Vec::new();
        for other in &mut all {
            let (stream, end) = UnixStream::pair()?;
            own.push(Some(peer(stream)?));
            other.push(Some(peer(end)?));
        }
        own.push(None);
        all.push(own);
    }
    Ok(all)
}

/// A connection that has been made, ready for calls.
pub(super) fn new_peer(
    (stream, directions): Joined,
    host: String,
    is_sealed: bool,
    timeout: Duration,
) -> io::Result<Peer> {
    // Nagle's algorithm would hold a short message back until the one before it is acknowledged,
    // for up to 40 ms.
    stream.set_nodelay(true)?;
    notice_cuts(&stream, longest_call(timeout))?;
    stream.set_nonblocking(true)?;
    let seal = if is_sealed { Some(Seal::new(&directions)?) } else { None };
    Ok(Peer::new(mio::net::TcpStream::from_std(stream), host, seal))
}

/// Connects to all lower ranks and accepts all higher ones, at the same time, so that no rank waits
/// for its turn. Also returns how many other connections were rejected.
fn exchange_hellos(
    rank: Rank,
    listener: &TcpListener,
    meeting: &Meeting,
    contacts: &[Contact],
    timeout: Duration,
) -> Result<(Vec<Option<Joined>>, u64), CollectiveError> {
    let key = meeting.derive_key("collective");
    let lower = &contacts[..rank.index() as usize];
    let addresses: Vec<SocketAddr> = lower.iter().map(|contact| contact.address).collect();
    let deadline = Instant::now() + timeout;
    let mut places: Vec<Option<Joined>> = contacts.iter().map(|_| None).collect();
    let stop = AtomicBool::new(false);
    let late = |rank| {
        let (host, seconds) = (contacts[rank as usize].host.clone(), timeout.as_secs_f64());
        CollectiveError::TimedOut { rank, host, seconds }
    };
    let (accepted, joined) = thread::scope(|scope| {
        let places = &mut places;
        let accept = || handshake::accept(listener, rank, &key, places, deadline, &stop, late);
        let accepted = thread::Builder::new().spawn_scoped(scope, accept)?;
        let joined = handshake::join(&addresses, rank, &key, deadline);
        stop.store(joined.is_err(), Ordering::Relaxed);
        let accepted = accepted.join().unwrap_or_else(|_| {
            Err(CollectiveError::Socket(io::Error::other("a thread panicked")))
        });
        Ok((accepted, joined))
    })
    .map_err(CollectiveError::Socket)?;
    let joined = joined.map_err(|(index, refusal)| {
        let Contact { host, address, .. } = &contacts[index];
        lost(index, host.clone(), format!("{address}: {refusal}"))
    })?;
    let rejected = accepted?;
    for (place, joined) in places.iter_mut().zip(joined) {
        *place = Some(joined);
    }
    Ok((places, rejected))
}

fn lost(index: usize, host: String, reason: String) -> CollectiveError {
    CollectiveError::Lost { rank: index as u32, host, reason }
}

/// What a rank brings to the meeting: how to reach it, whether it has a secret, and its backend.
struct Contact {
    address: SocketAddr,
    is_secret: bool,
    shares_memory: bool,
    /// Its host's name and address, for errors.
    host: String,
}

impl Contact {
    /// Where this rank listens: only on a loopback address (4 or 6), or on every address (0); its
    /// port; whether it has a secret, and whether it shares memory; the host's name.
    fn blob(local: SocketAddr, flags: [bool; 2]) -> Vec<u8> {
        let family = match local.ip() {
            address if !address.is_loopback() => 0,
            IpAddr::V4(_) => 4,
            IpAddr::V6(_) => 6,
        };
        let [high, low] = local.port().to_be_bytes();
        let name = host_name().unwrap_or_default();
        let [is_secret, shares_memory] = flags.map(u8::from);
        [&[family, high, low, is_secret, shares_memory], name.as_bytes()].concat()
    }

    /// The contacts of all ranks.
    fn of_all(meeting: &Meeting) -> Result<Vec<Contact>, CollectiveError> {
        let read = |(index, member): (usize, &rendezvous::Member)| {
            let unreadable = || lost(index, member.address().to_string(), UNREADABLE.to_owned());
            Contact::read(member).ok_or_else(unreadable)
        };
        meeting.members().iter().enumerate().map(read).collect()
    }

    fn read(member: &rendezvous::Member) -> Option<Contact> {
        let [family, high, low, is_secret @ (0 | 1), shares @ (0 | 1), name @ ..] = member.blob()
        else {
            return None;
        };
        let port = Port::new(u16::from_be_bytes([*high, *low]))?;
        let address = match family {
            0 => member.at(port),
            4 => (Ipv4Addr::LOCALHOST, port.get()).into(),
            6 => (Ipv6Addr::LOCALHOST, port.get()).into(),
            _ => return None,
        };
        let host = match (printable(name), member.address()) {
            (name, address) if name.is_empty() => address.to_string(),
            (name, address) => format!("{name} ({address})"),
        };
        let [is_secret, shares_memory] = [is_secret, shares].map(|flag| *flag == 1);
        Some(Contact { address, is_secret, shares_memory, host })
    }
}

/// Makes the system close a connection if the other host is silent for `timeout`, as after a cut
/// cable or a power failure.
///
/// Keep-alive probes notice this while nothing is sent. They are not sent while data is
/// unacknowledged, which the system otherwise repeats for about 15 minutes: for that there is the
/// user timeout. It also ends a connection to a rank that does not read, once the buffers are full:
/// a rank that waits would look lost. So `timeout` is longer than any call.
pub(super) fn notice_cuts(stream: &impl AsFd, timeout: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    // In whole seconds, within the system's limits.
    let seconds =
        |share: u32| (timeout / share).clamp(Duration::from_secs(1), Duration::from_secs(32_000));
    let keepalive = TcpKeepalive::new().with_time(seconds(2)).with_interval(seconds(8));
    socket.set_tcp_keepalive(&keepalive.with_retries(PROBES))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(timeout.min(Duration::from_millis(i32::MAX as u64))))?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::tcp::tests::free_port;
    use crate::tcp::transfer::Links;
    use crate::tcp::{Members, Tcp};
    use crate::tests::PLENTY;
    use crate::transport::Transport as _;

    #[test]
    fn a_host_name_that_commands_a_terminal_does_not() {
        let port = free_port();
        let meet = move |index: u32| {
            let rank = Rank::new(index, 2).unwrap();
            let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, port).token("names");
            rendezvous.all_gather(b"\0\0\x01\0\0\x1b[2J\x1b]0;owned\x07host".to_vec()).unwrap()
        };
        let other = std::thread::spawn(move || meet(1));
        for Contact { host, .. } in Contact::of_all(&meet(0)).unwrap() {
            assert_eq!(host, "\u{fffd}[2J\u{fffd}]0;owned\u{fffd}host (127.0.0.1)");
        }
        other.join().unwrap();
    }

    #[test]
    fn the_system_ends_a_silent_connection_within_the_timeout() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for (timeout, probing) in [(60, 30 + 4 * 7), (2, 1 + 4)] {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            notice_cuts(&stream, Duration::from_secs(timeout)).unwrap();
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().unwrap());
            let interval =
                socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
            assert_eq!((socket.tcp_keepalive_time().unwrap() + interval).as_secs(), probing);
            // If set, this limit and not that of the probes closes a connection without answers.
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(timeout)));
        }
    }

    #[test]
    fn a_connection_outlasts_a_call_whose_timeout_was_set_longer_after_connecting() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, key) = (listener.local_addr().unwrap(), [7; 32]);
        let until = Instant::now() + PLENTY;
        let rank = |index| Rank::new(index, 2).unwrap();
        let other = thread::spawn(move || handshake::join(&[address], rank(1), &key, until));
        let (stream, directions) = handshake::tests::accept_one(&listener, &key, until);
        let socket = stream.try_clone().unwrap();
        let [short, long] = [30, 1800].map(Duration::from_secs);
        let peer = new_peer((stream, directions), "host".to_owned(), false, short).unwrap();
        let links = Links::new(0, vec![None, Some(peer)], short).unwrap();
        let mut tcp = Tcp::of(rank(0), Members::world(links));
        for (timeout, longest) in [(short, short), (long, long), (short, long)] {
            tcp.set_timeout(timeout);
            let limit = SockRef::from(&socket).tcp_user_timeout().unwrap();
            assert_eq!(limit, Some(longest_call(longest)));
        }
        drop(other.join().unwrap().unwrap());
    }

    #[test]
    fn a_timeout_of_a_year_is_taken() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        notice_cuts(&stream, Duration::from_secs(365 * 86400)).unwrap();
    }
}
