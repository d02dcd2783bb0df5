//! The first bytes between two ranks, which distinguish the ranks of this job from strangers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::rendezvous;
use crate::value::rank::Rank;

/// Opens the greeting: magic (8), rank (4), the key of the meeting.
const MAGIC: [u8; 8] = *b"mpimesh\n";
/// Pause between two reads of connections that have not greeted yet.
const PAUSE: Duration = Duration::from_micros(500);
/// How many connections to accept before reading: a flood of them must not keep ranks waiting.
const AT_ONCE: usize = 64;
/// How many connections, besides one for each rank, may wait before they greet.
const SILENT: usize = 256;

/// Connects to a rank and greets it.
pub(super) fn greet(address: SocketAddr, rank: Rank, token: &[u8], deadline: Instant) -> io::Result<TcpStream> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(&address, left)?;
    stream.write_all(&[&MAGIC[..], &rank.index().to_be_bytes(), token].concat())?;
    Ok(stream)
}

/// Why not all ranks have greeted.
#[derive(Debug)]
pub(super) enum Absence {
    /// That rank did not arrive in time.
    Rank(usize),
    /// No connection can be accepted.
    Socket(io::Error),
}

/// A connection that has not completed its greeting, and what it has sent.
struct Silent {
    stream: TcpStream,
    said: Vec<u8>,
}

/// Accepts the connections of all higher ranks, and returns how many others there were.
pub(super) fn accept(
    listener: &TcpListener,
    rank: Rank,
    token: &[u8],
    streams: &mut [Option<TcpStream>],
    deadline: Instant,
) -> Result<u64, Absence> {
    listener.set_nonblocking(true).map_err(Absence::Socket)?;
    let higher = rank.index() as usize + 1..streams.len();
    let mut silent: Vec<Silent> = Vec::new();
    let mut rejected = 0;
    while let Some(missing) = higher.clone().find(|&index| streams[index].is_none()) {
        if Instant::now() >= deadline {
            return Err(Absence::Rank(missing));
        }
        rejected += take(listener, &mut silent)?;
        rejected += hear(&mut silent, token, &higher, streams);
        // The oldest connections are closed.
        let surplus = silent.len().saturating_sub(streams.len() + SILENT);
        rejected += silent.drain(..surplus).count() as u64;
        std::thread::sleep(PAUSE);
    }
    Ok(rejected + silent.len() as u64)
}

/// Accepts pending connections; returns how many older ones were closed for them.
fn take(listener: &TcpListener, silent: &mut Vec<Silent>) -> Result<u64, Absence> {
    let mut gone = 0;
    // Only connections that were read at least once are closed: a rank greets right after it connects.
    let mut heard = silent.len();
    for _ in 0..AT_ONCE {
        match listener.accept() {
            Ok((stream, _)) => match stream.set_nonblocking(true) {
                Ok(()) => silent.push(Silent { stream, said: Vec::new() }),
                Err(_) => gone += 1,
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if is_out_of_files(&error) => {
                if silent.is_empty() {
                    return Err(Absence::Socket(error));
                }
                if heard == 0 {
                    break;
                }
                silent.remove(0);
                heard -= 1;
                gone += 1;
            }
            // It is already closed, or was never established.
            Err(_) => {}
        }
    }
    Ok(gone)
}

/// Moves connections that have greeted to their places; returns how many were not from ranks, or came twice.
fn hear(silent: &mut Vec<Silent>, token: &[u8], higher: &Range<usize>, streams: &mut [Option<TcpStream>]) -> u64 {
    let mut rejected = 0;
    let mut index = 0;
    while let Some(Silent { stream, said }) = silent.get_mut(index) {
        let from = match read(stream, said, token) {
            Ok(None) => {
                index += 1;
                continue;
            }
            Ok(Some(from)) => Some(from as usize).filter(|from| higher.contains(from)),
            Err(_) => None,
        };
        let Silent { stream, .. } = silent.remove(index);
        match from.and_then(|from| streams.get_mut(from)) {
            Some(place @ None) => *place = Some(stream),
            _ => rejected += 1,
        }
    }
    rejected
}

/// The rank that greets, once its greeting is complete. Reads no byte beyond it.
fn read(stream: &mut TcpStream, said: &mut Vec<u8>, token: &[u8]) -> io::Result<Option<u32>> {
    let stranger = || io::Error::from(io::ErrorKind::InvalidData);
    let total = MAGIC.len() + 4 + token.len();
    let mut rest = [0; MAGIC.len() + 4 + rendezvous::LONGEST_TOKEN];
    let rest = rest.get_mut(..total.saturating_sub(said.len())).ok_or_else(stranger)?;
    match stream.read(rest) {
        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(length) => said.extend(&rest[..length]),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    // The first wrong byte is enough.
    let known = said.len().min(MAGIC.len());
    if said[..known] != MAGIC[..known] {
        return Err(stranger());
    }
    if said.len() < total {
        return Ok(None);
    }
    let (from, theirs) = said[MAGIC.len()..].split_first_chunk().ok_or_else(stranger)?;
    // In constant time, so that an attacker learns nothing about where they differ.
    let differ = theirs.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b));
    if differ == 0 { Ok(Some(u32::from_be_bytes(*from))) } else { Err(stranger()) }
}

fn is_out_of_files(error: &io::Error) -> bool {
    // EMFILE and ENFILE, on Windows WSAEMFILE: the standard library has no kind for them.
    matches!(error.raw_os_error(), Some(24 | 23 | 10024))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    const TOKEN: &[u8] = b"job 1";

    fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn rank(index: u32, size: u32) -> Rank {
        Rank::new(index, size).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Rank 0 of `size`, waiting for all others at `listener`.
    fn accept_all(listener: &TcpListener, size: u32, deadline: Instant) -> Result<u64, Absence> {
        let mut streams: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
        let done = accept(listener, rank(0, size), TOKEN, &mut streams, deadline);
        assert!(done.is_err() || streams[1..].iter().all(Option::is_some));
        done
    }

    fn said(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        // The other end may have closed already.
        let _ = stream.write_all(bytes);
        stream
    }

    #[test]
    fn strangers_of_all_sorts_are_counted_and_keep_no_rank_out() {
        let (listener, address) = listen();
        let begun = Instant::now();
        let ranks = thread::spawn(move || {
            let greeting = |from: u32, token: &[u8]| [&MAGIC[..], &from.to_be_bytes(), token].concat();
            let bytes: [&[u8]; 9] = [
                b"",
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                &[0xff; 100_000],
                b"mpimesh",
                &greeting(1, b"job 2"),
                &greeting(0, TOKEN),
                &greeting(3, TOKEN),
                &greeting(u32::MAX, TOKEN),
            ];
            let mut rejected: Vec<_> = (0..10).flat_map(|_| bytes.map(|bytes| said(address, bytes))).collect();
            let first = greet(address, rank(1, 3), TOKEN, soon()).unwrap();
            rejected.push(said(address, &greeting(1, TOKEN)));
            let last = greet(address, rank(2, 3), TOKEN, soon()).unwrap();
            (rejected, first, last)
        });
        assert_eq!(accept_all(&listener, 3, soon()).unwrap(), 91);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop(ranks.join().unwrap());
    }

    #[test]
    fn a_greeting_may_come_a_byte_at_a_time() {
        let (listener, address) = listen();
        let slow = thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            for byte in [&MAGIC[..], &1u32.to_be_bytes(), TOKEN].concat() {
                stream.write_all(&[byte]).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
            stream
        });
        assert_eq!(accept_all(&listener, 2, soon()).unwrap(), 0);
        drop(slow.join().unwrap());
    }

    #[test]
    fn a_thousand_idle_connections_give_way() {
        let (listener, address) = listen();
        let waiting = thread::spawn(move || accept_all(&listener, 2, soon()));
        let idle: Vec<_> = (0..1000).map(|_| said(address, b"")).collect();
        let last = greet(address, rank(1, 2), TOKEN, soon()).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 1000);
        drop((idle, last));
    }

    #[test]
    fn a_flood_does_not_move_the_deadline() {
        let (listener, address) = listen();
        let begun = Instant::now();
        let until = begun + Duration::from_secs(1);
        // It stops at the deadline, or so long after it that a busy machine cannot be the cause.
        let limit = begun + Duration::from_secs(20);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) && Instant::now() < limit {
                    count += u64::from(TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok());
                }
                count
            });
            let absence = accept_all(&listener, 3, until);
            let is_in_time = Instant::now() < limit;
            is_over.store(true, Ordering::Relaxed);
            assert!(flood.join().unwrap() > 10);
            assert!(is_in_time && matches!(absence, Err(Absence::Rank(1))));
        });
    }
}
