//! Every rank but 0: finds rank 0, says hello, waits for the verdict.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::Meeting;
use super::error::{Error, Met};
use super::frame::{HERE, Hello, Kind, LONGEST_TEXT, REPLY_HEAD, ReplyHead, Version, reply};
use super::table;
use super::{ANSWER, FAREWELL, Gathered, LONGEST_BLOB, Rendezvous};
use crate::port::Port;
use crate::printable::printable;

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
/// How long after rank 0's deadline its verdict may come.
const GRACE: Duration = ANSWER.saturating_add(FAREWELL).saturating_add(Duration::from_secs(2));

/// Joins the meeting: the table when it was wanted, else rank 0's answer.
pub(super) fn join(settings: &Rendezvous, blob: Vec<u8>, wants_table: bool) -> Result<Gathered, Error> {
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
            Err(Failed::Again(met)) => {
                let is_unresolved = matches!(met, Met::Unresolved(_));
                last = Some(met);
                if is_unresolved { RESOLVE_PAUSE } else { LONGEST_PAUSE }
            }
            Err(Failed::CutShort(met)) => {
                cut_short = Some(met);
                LONGEST_PAUSE
            }
        };
        let now = Instant::now();
        if let Some((port, before)) = settings.last_call()
            && now + before >= deadline
            // Whoever is there may be of another job: that it turns this rank away says nothing.
            && let Ok(Welcomed { line, left }) = attempt(settings, port, &complaint, deadline.max(now + LOOK))
        {
            return wait(settings, line, left);
        }
        let now = Instant::now();
        if now >= deadline {
            let met = last.or(cut_short).unwrap_or(Met::TimedOut);
            return Err(Error::NoMaster { rank, master: settings.master(), waited: now - started, met });
        }
        thread::sleep(pause.min(deadline - now));
        pause = (pause * 2).min(limit);
    }
}

/// How a try failed.
enum Failed {
    Again(Met),
    /// The deadline came while it waited: it would have met something else with more time, so that what an earlier try
    /// met says more.
    CutShort(Met),
    Final(Error),
}

struct Welcomed {
    line: Line,
    /// What rank 0's own deadline leaves.
    left: Duration,
}

/// A connection whose reads and writes end at a deadline.
struct Line {
    stream: TcpStream,
    deadline: Instant,
}

impl Line {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Line {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Line {
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
    let mut line = Line { stream, deadline: deadline.min(Instant::now() + WELCOME) };
    let failed = |met| if Instant::now() >= deadline { Failed::CutShort(met) } else { Failed::Again(met) };
    // Other programs log what they cannot read, so nothing is sent to them.
    if read_head(&mut line).map_err(failed)?.kind != Kind::Greeting {
        return Err(Failed::Again(Met::NotMpienv("it answered out of order".to_owned())));
    }
    // Another version may answer before it has read the whole hello: listen even when the writing fails.
    let written = line.write_all(hello);
    let head = read_head(&mut line).map_err(|met| match written {
        Err(error) if !is_timeout(&error) => Failed::Again(Met::NotMpienv("it closed the connection".to_owned())),
        _ => failed(met),
    })?;
    match head.kind {
        Kind::Welcome if head.length == 4 => {
            let mut left = [0; 4];
            line.read_exact(&mut left).map_err(|error| {
                let is_cut_short = is_timeout(&error) && Instant::now() >= deadline;
                let failed = if is_cut_short { Failed::CutShort } else { Failed::Again };
                failed(Met::NotMpienv("it broke off".to_owned()))
            })?;
            Ok(Welcomed { line, left: Duration::from_millis(u32::from_be_bytes(left).into()) })
        }
        Kind::OtherJob => {
            Err(Failed::Final(Error::OtherJob { rank: settings.rank.index(), master: settings.master() }))
        }
        Kind::TimedOut | Kind::Mismatch | Kind::Lost => Err(Failed::Final(failure(settings, &mut line, head))),
        _ => Err(Failed::Again(Met::NotMpienv("it answered out of order".to_owned()))),
    }
}

/// The host's addresses now; a name is asked in a thread of its own, since the system's resolver knows no deadline.
fn resolve(settings: &Rendezvous, port: Port, deadline: Instant) -> Result<Vec<SocketAddr>, Failed> {
    let name = settings.host.to_string();
    let port = port.get();
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (sender, receiver) = mpsc::channel();
    let ask = move || {
        let answer = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        // Nobody listens any more when the deadline came first.
        let _ = sender.send(answer);
    };
    let thread = thread::Builder::new().name("resolve".to_owned()).spawn(ask);
    thread.map_err(|error| Failed::Again(Met::Other(error.to_string())))?;
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Ok(Ok(_)) => Err(Failed::Again(Met::Unresolved("no address".to_owned()))),
        Ok(Err(error)) => Err(Failed::Again(Met::Unresolved(error.to_string()))),
        Err(_) => Err(Failed::CutShort(Met::Unresolved("the name server does not answer".to_owned()))),
    }
}

/// Connects to the first address that takes it; else what the last one met that had its time.
fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, Failed> {
    let mut met = None;
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, left.min(CONNECT)) {
            // A port that nobody listens on can be this socket's own: then it talks to itself, and holds rank 0's port.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => met = Some(Met::Refused),
            Ok(stream) => return Ok(stream),
            Err(error) => match met_by(&error) {
                Met::TimedOut if left < CONNECT => break,
                other => met = Some(other),
            },
        }
    }
    Err(met.map_or(Failed::CutShort(Met::TimedOut), Failed::Again))
}

fn met_by(error: &io::Error) -> Met {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Met::Refused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
            Met::NoRoute(error.to_string())
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Met::TimedOut,
        _ => Met::Other(error.to_string()),
    }
}

fn read_head(line: &mut Line) -> Result<ReplyHead, Met> {
    let mut head = [0; REPLY_HEAD];
    let mut filled = 0;
    while filled < head.len() {
        match line.read(&mut head[filled..]) {
            Ok(0) => return Err(Met::NotMpienv("it closed the connection without an answer".to_owned())),
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => {
                return Err(Met::NotMpienv("it took the connection and said nothing".to_owned()));
            }
            Err(error) => return Err(Met::NotMpienv(error.to_string())),
        }
        // The first wrong byte is enough: a server that greets and then waits is told at once.
        let known = filled.min(8);
        if head[..known] != reply(Kind::Done, &[])[..known] {
            return Err(Met::NotMpienv(format!("it said {:?}", String::from_utf8_lossy(&head[..filled]))));
        }
    }
    ReplyHead::decode(&head).ok_or_else(|| Met::NotMpienv("its answer cannot be read".to_owned()))
}

/// Waits for the verdict of a rank 0 that has said welcome.
fn wait(settings: &Rendezvous, mut line: Line, left: Duration) -> Result<Gathered, Error> {
    let started = Instant::now();
    // A rank that started before rank 0 waits on: rank 0's verdict names what is wrong.
    line.deadline = started + left.min(settings.timeout) + GRACE;
    let reached = line.stream.peer_addr().map_err(|error| settings.lost(error))?;
    let silent = |met: Met, line: &Line| match line.left() {
        Err(_) => {
            Error::NoVerdict { rank: settings.rank.index(), master: settings.master(), waited: started.elapsed() }
        }
        Ok(_) => settings.lost(match met {
            Met::NotMpienv(reason) => reason,
            other => other.to_string(),
        }),
    };
    let mut head = read_head(&mut line).map_err(|met| silent(met, &line))?;
    while head.kind == Kind::Ready {
        line.write_all(&HERE).map_err(|error| settings.lost(error))?;
        head = read_head(&mut line).map_err(|met| silent(met, &line))?;
    }
    let mut read = |most| payload(&mut line, head, most).map_err(|error| settings.lost(error));
    match head.kind {
        Kind::Done => Ok(Gathered::Answer(read(LONGEST_BLOB)?)),
        Kind::Table => {
            let bytes = read(table::largest(settings.rank.size()))?;
            let rows = table::decode(&bytes, settings.rank.size());
            let rows = rows.ok_or_else(|| settings.lost("its list of ranks cannot be read"))?;
            Ok(Gathered::All(Meeting::new(rows, reached, 0)))
        }
        Kind::TimedOut | Kind::Mismatch | Kind::Lost => Err(failure(settings, &mut line, head)),
        Kind::Welcome | Kind::OtherJob | Kind::Ready | Kind::Greeting => Err(settings.lost("it answered out of order")),
    }
}

/// The announced bytes, allocated as they come.
fn payload(line: &mut Line, head: ReplyHead, most: usize) -> io::Result<Vec<u8>> {
    let length = usize::try_from(head.length).unwrap_or(usize::MAX);
    if length > most {
        return Err(io::Error::other(format!("it announced {length} bytes")));
    }
    let mut bytes = Vec::new();
    let read = line.take(head.length.into()).read_to_end(&mut bytes)?;
    if read == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn failure(settings: &Rendezvous, line: &mut Line, head: ReplyHead) -> Error {
    match payload(line, head, LONGEST_TEXT) {
        Ok(text) => {
            let verdict = printable(&text);
            match head.kind {
                Kind::TimedOut => Error::Missing { verdict },
                Kind::Lost => Error::Lost { verdict },
                _ => Error::Mismatch { verdict },
            }
        }
        Err(error) => settings.lost(error),
    }
}
