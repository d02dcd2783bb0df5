//! Every rank except 0: finds rank 0, says hello, and waits for the report.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::auth::{Bytes32, SEALED_NUMBER};
use super::error::{ConnectFailure, RendezvousError};
use super::frame::{
    GREETING, Hello, LONGEST_TEXT, Purpose, ReplyHead, ReplyKind, Secret, Version, take,
};
use super::handshake::{Bad, Introduced, Link, OUT_OF_ORDER, broke_off, is_timeout};
use super::munge::{self, Unreadable};
use super::{Channel, GRACE, Gathered, LONGEST_BLOB, Meeting, Rendezvous, table};
use AttemptError::{Again, Final};
use mpienv_ask::seam::look_up;
use mpienv_core::{Port, printable};

/// Pause after the first failed attempt. It doubles with every attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after a failure to resolve a name or to decode a credential: many ranks share one
/// name server or munged.
const SHARED_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for one address to accept the connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for the welcome on one connection.
const WELCOME: Duration = Duration::from_secs(10);
/// Shortest time limit for an attempt at the default port.
const LOOK: Duration = Duration::from_millis(100);

/// Joins the meeting. Returns the table if `needs_table`, otherwise rank 0's reply, and the
/// connection to rank 0.
pub(super) fn join(
    settings: &Rendezvous,
    blob: Vec<u8>,
    needs_table: bool,
) -> Result<(Gathered, Channel), RendezvousError> {
    let started = Instant::now();
    let deadline = started + settings.timeout;
    // Otherwise this rank would find out only once rank 0 greets it, which never happens if rank
    // 0's host has the same problem. With `auto`, munged has answered already.
    if let Some(munge) = settings.own_munge().ok().filter(|munge| !munge.is_auto()) {
        let answer = munge::answers(munge, settings.timeout);
        answer.map_err(|reason| RendezvousError::Munge { reason })?;
    }
    let (rank, size) = (settings.rank.index(), settings.rank.size());
    let port = settings.port;
    let purpose = if needs_table { Purpose::Table } else { Purpose::Report };
    let hello = Hello { version: Version::OWN, rank, size, purpose, port, run: settings.run, blob };
    let complaint = Hello { purpose: Purpose::OtherPort, blob: Vec::new(), ..hello.clone() };
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        let limit = match attempt(settings, settings.port, &hello, deadline) {
            Ok(welcomed) => return wait(settings, welcomed),
            Err(Final(error)) => return Err(error),
            Err(Again(failure)) => {
                let is_shared =
                    matches!(failure, ConnectFailure::Unresolved(_) | ConnectFailure::Munge(_));
                // An attempt that the deadline cut short says less than an earlier one. So does
                // that a rank 0 which this rank did not believe has exited.
                let says_less = match last {
                    None => false,
                    Some(ConnectFailure::Munge(_)) if failure == ConnectFailure::Refused => true,
                    Some(_) => Instant::now() >= deadline,
                };
                if !says_less {
                    last = Some(failure);
                }
                if is_shared { SHARED_PAUSE } else { LONGEST_PAUSE }
            }
        };
        let now = Instant::now();
        if let Some((port, before)) = settings.fallback_port()
            && now + before >= deadline
            // That port may belong to another job, so a refusal means nothing.
            && let Ok(welcomed) = attempt(settings, port, &complaint, deadline.max(now + LOOK))
        {
            return wait(settings, welcomed);
        }
        let now = Instant::now();
        if now >= deadline {
            let failure = last.unwrap_or(ConnectFailure::TimedOut);
            return Err(RendezvousError::NoMaster {
                rank,
                master: settings.master(),
                waited: deadline - started,
                failure,
            });
        }
        thread::sleep(pause.min(deadline - now));
        pause = (pause * 2).min(limit);
    }
}

/// How an attempt failed.
enum AttemptError {
    Again(ConnectFailure),
    Final(RendezvousError),
}

impl From<ConnectFailure> for AttemptError {
    fn from(failure: ConnectFailure) -> AttemptError {
        Again(failure)
    }
}

/// A connection to rank 0, which has proven that it has the job's token.
struct Welcomed {
    rank_0: Introduced,
    /// The time until rank 0's own deadline.
    left: Duration,
    /// The meeting's key.
    meeting: Bytes32,
}

/// Makes one attempt: resolves, connects, reads the greeting, says hello, reads the welcome.
fn attempt(
    settings: &Rendezvous,
    port: Port,
    hello: &Hello,
    deadline: Instant,
) -> Result<Welcomed, AttemptError> {
    let addresses = resolve(settings, port, deadline)?;
    let stream = connect(&addresses, deadline)?;
    let _ = stream.set_nodelay(true);
    let mut line = Link { stream, deadline: deadline.min(Instant::now() + WELCOME) };
    let greeting = line.greeting()?;
    let secret = secret(settings, &greeting[GREETING..], line.deadline)?;
    let said = line.say_hello(hello, &secret.key, &greeting);
    let (mut rank_0, written) = said.map_err(|error| ConnectFailure::Other(error.to_string()))?;
    let head = rank_0.line.head().map_err(|failure| match written {
        Err(error) if !is_timeout(&error) => ConnectFailure::Closed,
        _ => failure,
    })?;
    let mut read = |most| {
        rank_0.payload(head, most).map_err(|bad| match bad {
            Bad::Tag => ConnectFailure::Unproven,
            Bad::Io(error) => broke_off(&error),
        })
    };
    match head.kind {
        ReplyKind::Welcome => {
            let welcome = read(4 + SEALED_NUMBER)?;
            let mut welcome = &welcome[..];
            let left = take(&mut welcome);
            let (Some(left), Some(number)) = (left, rank_0.directions.open_number(welcome)) else {
                return Err(Again(ConnectFailure::not_mpienv(OUT_OF_ORDER)));
            };
            let left = Duration::from_millis(u32::from_be_bytes(left).into());
            Ok(Welcomed { rank_0, left, meeting: secret.key.of_meeting(&number) })
        }
        // This reply has no tag: a rank 0 that rejects the proof has another key.
        ReplyKind::OtherJob => Err(Final(RendezvousError::OtherJob {
            rank: settings.rank.index(),
            master: settings.master(),
        })),
        kind => Err(match failure(kind) {
            Some(failure) => Final(failure(printable(&read(LONGEST_TEXT)?))),
            None => Again(ConnectFailure::not_mpienv(OUT_OF_ORDER)),
        }),
    }
}

/// Returns the secret that this rank shares with what greeted it with this credential.
fn secret(
    settings: &Rendezvous,
    credential: &[u8],
    deadline: Instant,
) -> Result<Secret, AttemptError> {
    let again = |text: &str| Again(ConnectFailure::Munge(text.to_owned()));
    match (settings.own_munge(), credential) {
        (Err(_), []) => Ok(settings.secret(&[])),
        (Err(without), _) => Err(again(&format!("it sent a MUNGE credential, and {without}"))),
        (Ok(_), []) => Err(again(
            "it sent no MUNGE credential: on its host, MPIENV_AUTH is not set or MUNGE does not \
             work",
        )),
        (Ok(munge), _) => match munge::open(munge, credential, deadline) {
            Ok(key) => Ok(settings.secret(&key)),
            Err(Unreadable::Missing(reason)) => Err(Final(RendezvousError::Munge { reason })),
            Err(Unreadable::Refused(reason)) => {
                Err(again(&format!("its MUNGE credential is refused: {reason}")))
            }
            Err(Unreadable::TimedOut) => Err(again(&munge::unfinished("unmunge"))),
        },
    }
}

fn resolve(
    settings: &Rendezvous,
    port: Port,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, ConnectFailure> {
    let name = settings.host.to_string();
    if let Ok(address) = name.parse() {
        return Ok(vec![SocketAddr::new(address, port.get())]);
    }
    let left = deadline.saturating_duration_since(Instant::now());
    match look_up(name, port.get(), left) {
        Some(Ok(found)) if !found.is_empty() => Ok(found),
        Some(found) => {
            let why = found.err().map_or("no address".to_owned(), |error| error.to_string());
            Err(ConnectFailure::Unresolved(why))
        }
        None => Err(ConnectFailure::Unresolved("the name server does not answer".to_owned())),
    }
}

/// Connects to the first address that accepts. The error is that of the last address that had
/// enough time.
fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, ConnectFailure> {
    let mut failure = None;
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, left.min(CONNECT)) {
            // If nothing listens, the socket may connect to itself from the same port. It must not
            // hold rank 0's port.
            Ok(stream) if is_with_itself(&stream) => failure = Some(ConnectFailure::Refused),
            Ok(stream) => return Ok(stream),
            Err(error) => match failure_of(&error) {
                ConnectFailure::TimedOut if left < CONNECT => break,
                other => failure = Some(other),
            },
        }
    }
    Err(failure.unwrap_or(ConnectFailure::TimedOut))
}

fn is_with_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer)
}

fn failure_of(error: &io::Error) -> ConnectFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectFailure::Refused,
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown => ConnectFailure::NoRoute(error.to_string()),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ConnectFailure::TimedOut,
        _ => ConnectFailure::Other(error.to_string()),
    }
}

/// Waits for rank 0's report after its welcome.
fn wait(settings: &Rendezvous, welcomed: Welcomed) -> Result<(Gathered, Channel), RendezvousError> {
    let Welcomed { mut rank_0, left, meeting } = welcomed;
    let started = Instant::now();
    // Wait for rank 0's deadline even beyond this rank's own, because rank 0's report names what is
    // wrong.
    rank_0.line.deadline = started + patience(left, settings.timeout);
    let reached = rank_0.line.stream.peer_addr().map_err(|error| settings.lost(error))?;
    let mut head = next(settings, &mut rank_0.line, started)?;
    while head.kind == ReplyKind::Ready {
        rank_0.payload(head, 0).map_err(|bad| settings.lost(bad))?;
        rank_0.confirm().map_err(|error| settings.lost(error))?;
        head = next(settings, &mut rank_0.line, started)?;
    }
    let mut read = |most| rank_0.payload(head, most).map_err(|bad| settings.lost(bad));
    let gathered = match head.kind {
        ReplyKind::Done | ReplyKind::Table if head.version != Version::OWN => {
            return Err(settings.lost(format!("it runs {}", head.version)));
        }
        ReplyKind::Done => Gathered::Reply(read(LONGEST_BLOB)?),
        ReplyKind::Table => {
            let bytes = read(table::largest(settings.rank.size()))?;
            let rows = table::decode(&bytes, settings.rank.size());
            let rows = rows.ok_or_else(|| settings.lost("its list of ranks cannot be read"))?;
            Gathered::All(Meeting::new(rows, reached, meeting))
        }
        kind => match failure(kind) {
            Some(failure) => return Err(failure(printable(&read(LONGEST_TEXT)?))),
            None => return Err(settings.lost(OUT_OF_ORDER)),
        },
    };
    let Introduced { line, directions } = rank_0;
    Ok((gathered, Channel { rank: 0, stream: line.stream, directions }))
}

/// How long to wait for the report of a rank 0 that still waits for `left`.
fn patience(left: Duration, timeout: Duration) -> Duration {
    left.min(timeout) + GRACE
}

/// Reads the head of the next reply. The error is why there is none.
fn next(
    settings: &Rendezvous,
    line: &mut Link,
    started: Instant,
) -> Result<ReplyHead, RendezvousError> {
    line.head().map_err(|failure| match line.left() {
        Err(_) => RendezvousError::NoVerdict {
            rank: settings.rank.index(),
            master: settings.master(),
            waited: started.elapsed(),
        },
        Ok(_) => settings.lost(match failure {
            ConnectFailure::NotMpienv(reason) => reason,
            // Only rank 0 can have sent the welcome.
            ConnectFailure::Closed => {
                "it closed the connection: its process has exited, or the network cut it".to_owned()
            }
            other => other.to_string(),
        }),
    })
}

/// The failure that a reply of this kind reports by its text, if it reports any.
fn failure(kind: ReplyKind) -> Option<fn(String) -> RendezvousError> {
    match kind {
        ReplyKind::TimedOut => {
            Some(|report| RendezvousError::Missing { report, missing: Vec::new() })
        }
        ReplyKind::Lost => Some(|report| RendezvousError::Lost { report }),
        ReplyKind::TurnedAway => Some(|report| RendezvousError::TurnedAway { report }),
        ReplyKind::Mismatch => Some(|report| RendezvousError::Mismatch { report }),
        ReplyKind::Welcome
        | ReplyKind::Table
        | ReplyKind::Done
        | ReplyKind::OtherJob
        | ReplyKind::Ready
        | ReplyKind::Greeting
        | ReplyKind::Message => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_waits_ten_seconds_longer_than_rank_0_and_no_more() {
        // `Rendezvous::timeout` promises it.
        let waits = |left, timeout| {
            patience(Duration::from_secs(left), Duration::from_secs(timeout)).as_secs()
        };
        assert_eq!([waits(4, 4), waits(1, 4), waits(60, 4)], [14, 11, 14]);
    }
}
