//! Every rank but 0: finds rank 0, says hello, waits for the report.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::Meeting;
use super::error::{ConnectFailure, RendezvousError};
use super::frame::{HERE, Hello, LONGEST_TEXT, REPLY_HEAD, ReplyHead, ReplyKind, Version, reply};
use super::table;
use super::{ANSWER, DRAIN, Gathered, LONGEST_BLOB, Rendezvous};
use crate::value::port::Port;
use crate::value::printable::printable;

/// Pause after the first try that failed; it doubles from try to try.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after a name that did not resolve: many ranks share one name server.
const RESOLVE_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for one address to take the connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for the welcome on one connection.
const WELCOME: Duration = Duration::from_secs(10);
/// Shortest time for a look at the other port.
const LOOK: Duration = Duration::from_millis(100);
/// How long after rank 0's deadline its report may arrive.
const GRACE: Duration = ANSWER.saturating_add(DRAIN).saturating_add(Duration::from_secs(2));

/// Joins the meeting: gets the table if asked for, otherwise rank 0's answer.
pub(super) fn join(settings: &Rendezvous, blob: Vec<u8>, wants_table: bool) -> Result<Gathered, RendezvousError> {
    let started = Instant::now();
    let deadline = started + settings.timeout;
    let (rank, size) = (settings.rank.index(), settings.rank.size());
    let hello = Hello { version: Version::OWN, rank, size, wants_table, told: None, blob };
    let complaint = Hello { wants_table: false, told: Some(settings.port), blob: Vec::new(), ..hello };
    let (hello, complaint) = (hello.encode(&settings.token), complaint.encode(&settings.token));
    let mut pause = FIRST_PAUSE;
    let (mut last, mut cut_short) = (None, None);
    loop {
        let limit = match attempt(settings, settings.port, &hello, deadline) {
            Ok(Welcomed { line, left }) => return wait(settings, line, left),
            Err(Failed::Final(error)) => return Err(error),
            Err(Failed::Again(failure)) => {
                let is_unresolved = matches!(failure, ConnectFailure::Unresolved(_));
                last = Some(failure);
                if is_unresolved { RESOLVE_PAUSE } else { LONGEST_PAUSE }
            }
            Err(Failed::CutShort(failure)) => {
                cut_short = Some(failure);
                LONGEST_PAUSE
            }
        };
        let now = Instant::now();
        if let Some((port, before)) = settings.fallback_port()
            && now + before >= deadline
            // The process there may belong to another job, so its refusal means nothing.
            && let Ok(Welcomed { line, left }) = attempt(settings, port, &complaint, deadline.max(now + LOOK))
        {
            return wait(settings, line, left);
        }
        let now = Instant::now();
        if now >= deadline {
            let failure = last.or(cut_short).unwrap_or(ConnectFailure::TimedOut);
            return Err(RendezvousError::NoMaster { rank, master: settings.master(), waited: now - started, failure });
        }
        thread::sleep(pause.min(deadline - now));
        pause = (pause * 2).min(limit);
    }
}

/// How a try failed.
enum Failed {
    Again(ConnectFailure),
    /// The deadline came while it waited. With more time it would have failed otherwise, so an earlier failure says more.
    CutShort(ConnectFailure),
    Final(RendezvousError),
}

struct Welcomed {
    line: Link,
    /// What rank 0's own deadline leaves.
    left: Duration,
}

/// A connection whose reads and writes end at a deadline.
struct Link {
    stream: TcpStream,
    deadline: Instant,
}

impl Link {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Link {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// One try: resolve, connect, say hello, be welcomed.
fn attempt(settings: &Rendezvous, port: Port, hello: &[u8], deadline: Instant) -> Result<Welcomed, Failed> {
    let addresses = resolve(settings, port, deadline)?;
    let stream = connect(&addresses, deadline)?;
    let _ = stream.set_nodelay(true);
    let mut line = Link { stream, deadline: deadline.min(Instant::now() + WELCOME) };
    let failed = |failure| if Instant::now() >= deadline { Failed::CutShort(failure) } else { Failed::Again(failure) };
    // Other programs log what they cannot read, so nothing is sent to them.
    if read_head(&mut line).map_err(failed)?.kind != ReplyKind::Greeting {
        return Err(Failed::Again(ConnectFailure::NotMpienv("it answered out of order".to_owned())));
    }
    // Another version may answer before it has read the whole hello: listen even when the writing fails.
    let written = line.write_all(hello);
    let head = read_head(&mut line).map_err(|failure| match written {
        Err(error) if !is_timeout(&error) => {
            Failed::Again(ConnectFailure::NotMpienv("it closed the connection".to_owned()))
        }
        _ => failed(failure),
    })?;
    match head.kind {
        ReplyKind::Welcome if head.length == 4 => {
            let mut left = [0; 4];
            line.read_exact(&mut left).map_err(|error| {
                let is_cut_short = is_timeout(&error) && Instant::now() >= deadline;
                let failed = if is_cut_short { Failed::CutShort } else { Failed::Again };
                failed(ConnectFailure::NotMpienv("it broke off".to_owned()))
            })?;
            Ok(Welcomed { line, left: Duration::from_millis(u32::from_be_bytes(left).into()) })
        }
        ReplyKind::OtherJob => {
            Err(Failed::Final(RendezvousError::OtherJob { rank: settings.rank.index(), master: settings.master() }))
        }
        ReplyKind::TimedOut | ReplyKind::Mismatch | ReplyKind::Lost => {
            Err(Failed::Final(failure(settings, &mut line, head)))
        }
        _ => Err(Failed::Again(ConnectFailure::NotMpienv("it answered out of order".to_owned()))),
    }
}

/// The host's addresses now; a separate thread resolves a name, since the system's resolver has no timeout.
fn resolve(settings: &Rendezvous, port: Port, deadline: Instant) -> Result<Vec<SocketAddr>, Failed> {
    let name = settings.host.to_string();
    let port = port.get();
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (sender, receiver) = mpsc::channel();
    let ask = move || {
        let answer = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        // After the deadline there is no receiver.
        let _ = sender.send(answer);
    };
    let thread = thread::Builder::new().name("resolve".to_owned()).spawn(ask);
    thread.map_err(|error| Failed::Again(ConnectFailure::Other(error.to_string())))?;
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Ok(Ok(_)) => Err(Failed::Again(ConnectFailure::Unresolved("no address".to_owned()))),
        Ok(Err(error)) => Err(Failed::Again(ConnectFailure::Unresolved(error.to_string()))),
        Err(_) => Err(Failed::CutShort(ConnectFailure::Unresolved("the name server does not answer".to_owned()))),
    }
}

/// Connects to the first address that takes it; else how the last one failed that had its time.
fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, Failed> {
    let mut failure = None;
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, left.min(CONNECT)) {
            // A port without a listener can be this socket's own: it then connects to itself and holds rank 0's port.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                failure = Some(ConnectFailure::Refused)
            }
            Ok(stream) => return Ok(stream),
            Err(error) => match failure_of(&error) {
                ConnectFailure::TimedOut if left < CONNECT => break,
                other => failure = Some(other),
            },
        }
    }
    Err(failure.map_or(Failed::CutShort(ConnectFailure::TimedOut), Failed::Again))
}

fn failure_of(error: &io::Error) -> ConnectFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectFailure::Refused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
            ConnectFailure::NoRoute(error.to_string())
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ConnectFailure::TimedOut,
        _ => ConnectFailure::Other(error.to_string()),
    }
}

fn read_head(line: &mut Link) -> Result<ReplyHead, ConnectFailure> {
    let mut head = [0; REPLY_HEAD];
    let mut filled = 0;
    while filled < head.len() {
        match line.read(&mut head[filled..]) {
            Ok(0) => return Err(ConnectFailure::NotMpienv("it closed the connection without an answer".to_owned())),
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => {
                return Err(ConnectFailure::NotMpienv("it took the connection and said nothing".to_owned()));
            }
            Err(error) => return Err(ConnectFailure::NotMpienv(error.to_string())),
        }
        // The first wrong byte is enough: a server that greets and then waits is recognized at once.
        let known = filled.min(8);
        if head[..known] != reply(ReplyKind::Done, &[])[..known] {
            return Err(ConnectFailure::NotMpienv(format!("it said {:?}", String::from_utf8_lossy(&head[..filled]))));
        }
    }
    ReplyHead::decode(&head).ok_or_else(|| ConnectFailure::NotMpienv("its answer cannot be read".to_owned()))
}

/// Waits for the report of a rank 0 that has said welcome.
fn wait(settings: &Rendezvous, mut line: Link, left: Duration) -> Result<Gathered, RendezvousError> {
    let started = Instant::now();
    // A rank that started before rank 0 waits on: rank 0's report names what is wrong.
    line.deadline = started + left.min(settings.timeout) + GRACE;
    let reached = line.stream.peer_addr().map_err(|error| settings.lost(error))?;
    let silent = |failure: ConnectFailure, line: &Link| match line.left() {
        Err(_) => RendezvousError::NoVerdict {
            rank: settings.rank.index(),
            master: settings.master(),
            waited: started.elapsed(),
        },
        Ok(_) => settings.lost(match failure {
            ConnectFailure::NotMpienv(reason) => reason,
            other => other.to_string(),
        }),
    };
    let mut head = read_head(&mut line).map_err(|failure| silent(failure, &line))?;
    while head.kind == ReplyKind::Ready {
        line.write_all(&HERE).map_err(|error| settings.lost(error))?;
        head = read_head(&mut line).map_err(|failure| silent(failure, &line))?;
    }
    let mut read = |most| payload(&mut line, head, most).map_err(|error| settings.lost(error));
    match head.kind {
        ReplyKind::Done => Ok(Gathered::Reply(read(LONGEST_BLOB)?)),
        ReplyKind::Table => {
            let bytes = read(table::largest(settings.rank.size()))?;
            let rows = table::decode(&bytes, settings.rank.size());
            let rows = rows.ok_or_else(|| settings.lost("its list of ranks cannot be read"))?;
            Ok(Gathered::All(Meeting::new(rows, reached, 0)))
        }
        ReplyKind::TimedOut | ReplyKind::Mismatch | ReplyKind::Lost => Err(failure(settings, &mut line, head)),
        ReplyKind::Welcome | ReplyKind::OtherJob | ReplyKind::Ready | ReplyKind::Greeting => {
            Err(settings.lost("it answered out of order"))
        }
    }
}

/// The announced bytes, allocated as they come.
fn payload(line: &mut Link, head: ReplyHead, most: usize) -> io::Result<Vec<u8>> {
    let length = usize::try_from(head.length).unwrap_or(usize::MAX);
    if length > most {
        return Err(io::Error::other(format!("it announced {length} bytes")));
    }
    let mut bytes = Vec::new();
    let read = line.take(head.length.into()).read_to_end(&mut bytes)?;
    if read == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn failure(settings: &Rendezvous, line: &mut Link, head: ReplyHead) -> RendezvousError {
    match payload(line, head, LONGEST_TEXT) {
        Ok(text) => {
            let report = printable(&text);
            match head.kind {
                ReplyKind::TimedOut => RendezvousError::Missing { report },
                ReplyKind::Lost => RendezvousError::Lost { report },
                _ => RendezvousError::Mismatch { report },
            }
        }
        Err(error) => settings.lost(error),
    }
}
