//! Connects every rank with every other, through the rendezvous at the master.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use super::handshake::{self, Absence, Joined};
use super::peer::Peer;
use super::seal::Seal;
use crate::collective::error::{CollectiveError, ConnectError};
use crate::rendezvous::{self, Meeting, Rendezvous};
use crate::value::host::Host;
use crate::value::host_name::host_name;
use crate::value::port::Port;
use crate::value::printable::printable;
use crate::value::rank::Rank;

/// How many connections may wait to be accepted. The system may allow fewer.
const BACKLOG: i32 = 4096;
/// How many keep-alive probes may go unanswered. Together with the pauses between them, they take
/// half the timeout.
const PROBES: u32 = 4;

/// Where the ranks of a job meet.
#[derive(Clone, Debug)]
pub(crate) struct MeetingPoint {
    /// Rank 0's host.
    pub(crate) host: Host,
    /// How this rank meets the others there.
    pub(crate) rendezvous: Rendezvous,
    /// Whether the ranks have a key that others do not, so that messages are encrypted.
    pub(crate) is_secret: bool,
}

/// The connections to all other ranks.
pub(super) struct Mesh {
    /// By rank; `None` for this rank.
    pub(super) peers: Vec<Option<Peer>>,
    /// How many connections were not from ranks of this job. On rank 0, this includes those at the
    /// master's port.
    pub(super) rejected: u64,
}

/// Connects to all other ranks.
pub(super) fn connect(
    rank: Rank,
    place: &MeetingPoint,
    timeout: Duration,
) -> Result<Mesh, ConnectError> {
    if rank.size() == 1 {
        return Ok(Mesh { peers: vec![None], rejected: 0 });
    }
    let listener = listen(&place.host)?;
    let meeting = meet(place, &listener, timeout)?;
    let hosts = hosts(&meeting);
    let lost = |index: usize, reason: String| {
        ConnectError::Collective(CollectiveError::Lost {
            rank: index as u32,
            host: hosts[index].clone(),
            reason,
        })
    };
    let lower = meeting.members().iter().enumerate().take(rank.index() as usize);
    let of_lower = |(index, member)| {
        address(member)
            .ok_or_else(|| lost(index, "its address from the rendezvous cannot be parsed".into()))
    };
    let addresses: Vec<SocketAddr> = lower.map(of_lower).collect::<Result<_, _>>()?;
    let key = meeting.derive_key("collective");
    let deadline = Instant::now() + timeout;
    let mut places: Vec<Option<Joined>> = Vec::new();
    places.resize_with(rank.size() as usize, || None);
    let stop = AtomicBool::new(false);
    // Accept and join at the same time, so that no rank waits for its turn.
    let (accepted, joined) = std::thread::scope(|scope| {
        let places = &mut places;
        let accepted =
            scope.spawn(|| handshake::accept(&listener, rank, &key, places, deadline, &stop));
        let joined = handshake::join(&addresses, rank, &key, deadline);
        stop.store(joined.is_err(), Ordering::Relaxed);
        let accepted = accepted
            .join()
            .unwrap_or_else(|_| Err(Absence::Socket(io::Error::other("a thread panicked"))));
        (accepted, joined)
    });
    let joined = joined
        .map_err(|(index, refusal)| lost(index, format!("{}: {refusal}", addresses[index])))?;
    let rejected = accepted.map_err(|absence| match absence {
        Absence::Rank(index) => ConnectError::Collective(CollectiveError::TimedOut {
            rank: index as u32,
            host: hosts[index].clone(),
            seconds: timeout.as_secs_f64(),
        }),
        Absence::Socket(error) => ConnectError::Socket(error),
        Absence::Stopped => ConnectError::Socket(io::ErrorKind::Interrupted.into()),
    })?;
    for (place, joined) in places.iter_mut().zip(joined) {
        *place = Some(joined);
    }
    let is_sealed = meeting.members().iter().any(|member| member.blob().get(SEALS) == Some(&1));
    let peers = places.into_iter().zip(hosts).map(|(joined, host)| {
        let Some((stream, directions)) = joined else { return Ok(None) };
        stream.set_nodelay(true)?;
        notice_cuts(&stream, timeout)?;
        stream.set_nonblocking(true)?;
        let seal = if is_sealed { Some(Seal::new(&directions)?) } else { None };
        Ok(Some(Peer::new(mio::net::TcpStream::from_std(stream), host, seal)))
    });
    Ok(Mesh {
        peers: peers.collect::<Result<_, ConnectError>>()?,
        rejected: rejected + meeting.rejected(),
    })
}

/// The offset in a rank's blob of whether it has a secret. If one rank has one, all messages are
/// encrypted.
const SEALS: usize = 3;

/// Meets all ranks. Each rank's blob says where it listens.
fn meet(
    place: &MeetingPoint,
    listener: &TcpListener,
    timeout: Duration,
) -> Result<Meeting, ConnectError> {
    let local = listener.local_addr()?;
    let mut blob = vec![match local.ip() {
        address if !address.is_loopback() => 0,
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 6,
    }];
    blob.extend(local.port().to_be_bytes());
    blob.push(place.is_secret.into());
    blob.extend(host_name().unwrap_or_default().as_bytes());
    Ok(place.rendezvous.clone().timeout(timeout).all_gather(blob)?)
}

/// Makes the system close a connection if the other host is silent for `timeout`, as after a cut
/// cable or a power failure.
///
/// The host of a hung process still answers, so the limit for unacknowledged data is the same as
/// for a rank.
fn notice_cuts(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    // In whole seconds, within the system's limits.
    let seconds =
        |share: u32| (timeout / share).clamp(Duration::from_secs(1), Duration::from_secs(32_000));
    let keepalive = TcpKeepalive::new().with_time(seconds(2)).with_interval(seconds(8));
    #[cfg(not(any(target_os = "openbsd", target_os = "redox", target_os = "solaris")))]
    let keepalive = keepalive.with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(timeout.min(Duration::from_millis(i32::MAX as u64))))?;
    Ok(())
}

/// A socket on a port that the system chooses, bound to loopback only if the master's address is
/// loopback.
fn listen(host: &Host) -> io::Result<TcpListener> {
    if host.is_loopback() {
        return open(host.address().unwrap_or(Ipv4Addr::LOCALHOST.into()));
    }
    open(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| open(Ipv4Addr::UNSPECIFIED.into()))
}

fn open(address: IpAddr) -> io::Result<TcpListener> {
    let address = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // Accept IPv4 on the same socket.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn hosts(meeting: &Meeting) -> Vec<String> {
    let host = |member: &rendezvous::Member| {
        let name = printable(member.blob().get(SEALS + 1..).unwrap_or_default());
        if name.is_empty() {
            member.address().to_string()
        } else {
            format!("{name} ({})", member.address())
        }
    };
    meeting.members().iter().map(host).collect()
}

/// The address at which a member listens.
fn address(member: &rendezvous::Member) -> Option<SocketAddr> {
    let &[family, high, low, ..] = member.blob() else { return None };
    let port = Port::new(u16::from_be_bytes([high, low]))?;
    Some(match family {
        4 => (Ipv4Addr::LOCALHOST, port.get()).into(),
        6 => (Ipv6Addr::LOCALHOST, port.get()).into(),
        _ => member.at(port),
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_that_commands_a_terminal_does_not() {
        // Free a moment ago, and below the usual ports of outgoing connections.
        let free = (20_000..)
            .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
            .and_then(Port::new);
        let meet = move |index: u32| {
            let rank = Rank::new(index, 2).unwrap();
            let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, free.unwrap()).token("names");
            rendezvous.all_gather(b"\0\0\x01\0\x1b[2J\x1b]0;owned\x07host".to_vec()).unwrap()
        };
        let other = std::thread::spawn(move || meet(1));
        for name in hosts(&meet(0)) {
            assert_eq!(name, "\u{fffd}[2J\u{fffd}]0;owned\u{fffd}host (127.0.0.1)");
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
    fn a_timeout_of_a_year_is_taken() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        notice_cuts(&stream, Duration::from_secs(365 * 86400)).unwrap();
    }
}
