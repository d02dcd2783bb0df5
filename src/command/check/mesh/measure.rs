//! Measures one connection: the round trip, the rate in each direction, and both directions at
//! once.
//!
//! The end that made the connection drives. The other end serves: it answers, and sends when asked.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::command::check::measurement::median;

/// How many round trips are measured, if they do not take too long.
const ROUND_TRIPS: usize = 200;
/// How long the round trips may take.
const MOST_FOR_ROUND_TRIPS: Duration = Duration::from_millis(150);
/// How long the transfer whose rate counts takes at least.
const TRANSFER: Duration = Duration::from_millis(100);
/// How long the transfer whose rate counts is meant to take.
const AIM: f64 = 0.15;
/// The first transfer, which is short in case the connection is slow.
const FIRST: u64 = 16 << 10;
/// How much each transfer may be longer than the one before.
const GROWTH: f64 = 16.0;
/// How many bytes are sent or received at a time.
const PIECE: usize = 256 << 10;
/// How long an end may send nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// How long one pair may take in all. Rank 0 waits longer than that for its answers.
const LONGEST: Duration = Duration::from_secs(60);
/// Says that a transfer is complete.
const DONE: u8 = 0x2a;

/// What is between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The median round trip of 8 bytes, in seconds.
    pub round_trip: f64,
    /// By how much the other end's clock is ahead, in seconds.
    pub clock: f64,
    /// By how much `clock` may be wrong, in seconds.
    pub clock_error: f64,
    /// Bytes in a second to the other end.
    pub there: f64,
    /// Bytes in a second from the other end.
    pub back: f64,
    /// Bytes in a second in each direction while both are used.
    pub both: f64,
}

impl Measured {
    /// The same as the other end sees it.
    pub(super) fn reversed(self) -> Measured {
        Measured { there: self.back, back: self.there, clock: -self.clock, ..self }
    }

    /// The better values of two measurements: what is on a host besides can only make them worse.
    pub(super) fn better(self, other: Measured) -> Measured {
        let clock = if other.clock_error < self.clock_error { other } else { self };
        Measured {
            round_trip: self.round_trip.min(other.round_trip),
            there: self.there.max(other.there),
            back: self.back.max(other.back),
            both: self.both.max(other.both),
            ..clock
        }
    }

    /// The rate of the slower direction.
    pub(super) fn rate(&self) -> f64 {
        self.there.min(self.back)
    }
}

/// Measures, and sends at most `most` bytes in each direction.
pub(super) fn drive(stream: &mut TcpStream, most: u64) -> io::Result<Measured> {
    let until = limit(stream)?;
    let (round_trip, clock, clock_error) = round_trips(stream)?;
    let half = (most / 2).max(1);
    stream.write_all(&half.to_be_bytes())?;
    stream.write_all(&round_trip.to_be_bytes())?;
    let there = send(stream, half, round_trip, until)?;
    let back = serve_transfers(stream, until)?;
    // What the faster direction carries in an instant may take the slower one minutes.
    let length = there.length.min(back.length);
    stream.write_all(&length.to_be_bytes())?;
    let both = exchange(stream, length, until)?;
    Ok(Measured { round_trip, clock, clock_error, there: there.rate, back: back.rate, both })
}

/// Is the other end of [`drive`].
pub(super) fn serve(stream: &mut TcpStream) -> io::Result<()> {
    let until = limit(stream)?;
    while u64::from_be_bytes(read(stream)?) != 0 {
        stream.write_all(&now().to_be_bytes())?;
    }
    let half = u64::from_be_bytes(read(stream)?);
    let round_trip = f64::from_be_bytes(read(stream)?);
    serve_transfers(stream, until)?;
    send(stream, half, round_trip, until)?;
    let length = u64::from_be_bytes(read(stream)?);
    exchange(stream, length, until)?;
    Ok(())
}

/// The transfer whose rate counts.
struct Transfer {
    /// Bytes in a second.
    rate: f64,
    /// In bytes.
    length: u64,
}

/// Limits how long an end waits. Returns when the pair must be done.
fn limit(stream: &TcpStream) -> io::Result<Instant> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(Instant::now() + LONGEST)
}

/// Nanoseconds since 1970, never 0.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Returns the median round trip, by how much the other clock is ahead, and how exact that is.
fn round_trips(stream: &mut TcpStream) -> io::Result<(f64, f64, f64)> {
    let begun = Instant::now();
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    let (mut clock, mut shortest) = (0.0, f64::INFINITY);
    while times.len() < ROUND_TRIPS && (times.is_empty() || begun.elapsed() < MOST_FOR_ROUND_TRIPS)
    {
        let (sent, started) = (now(), Instant::now());
        stream.write_all(&sent.to_be_bytes())?;
        let other = u64::from_be_bytes(read(stream)?);
        let taken = started.elapsed().as_secs_f64();
        if taken < shortest {
            shortest = taken;
            clock = (i128::from(other) - i128::from(sent)) as f64 / 1e9 - taken / 2.0;
        }
        times.push(taken);
    }
    stream.write_all(&0_u64.to_be_bytes())?;
    Ok((median(times, false).unwrap_or_default(), clock, shortest / 2.0))
}

/// Sends longer and longer transfers. Returns the last one.
fn send(
    stream: &mut TcpStream,
    most: u64,
    round_trip: f64,
    until: Instant,
) -> io::Result<Transfer> {
    let (mut length, mut left) = (FIRST.min(most), most);
    loop {
        let begun = Instant::now();
        stream.write_all(&length.to_be_bytes())?;
        write(stream, length, until)?;
        done(stream)?;
        let taken = begun.elapsed().as_secs_f64();
        // The answer takes half a round trip, and the first byte the other half.
        let rate = length as f64 / (taken - round_trip.min(taken / 2.0)).max(1e-9);
        left -= length;
        if taken >= TRANSFER.as_secs_f64() || left == 0 {
            stream.write_all(&0_u64.to_be_bytes())?;
            stream.write_all(&rate.to_be_bytes())?;
            return Ok(Transfer { rate, length });
        }
        let growth = (AIM / taken).clamp(1.0, GROWTH);
        length = ((length as f64 * growth) as u64).clamp(1, left);
    }
}

/// Receives what [`send`] sends. Returns the last transfer.
fn serve_transfers(stream: &mut TcpStream, until: Instant) -> io::Result<Transfer> {
    let mut length = 0;
    loop {
        match u64::from_be_bytes(read(stream)?) {
            0 => return Ok(Transfer { rate: f64::from_be_bytes(read(stream)?), length }),
            next => length = next,
        }
        receive(stream, length, until)?;
        stream.write_all(&[DONE])?;
    }
}

/// Sends and receives so many bytes at once. Returns the rate of each direction.
fn exchange(stream: &mut TcpStream, length: u64, until: Instant) -> io::Result<f64> {
    let begun = Instant::now();
    let mut writer = stream.try_clone()?;
    thread::scope(|scope| {
        let send = move || write(&mut writer, length, until);
        let sent = thread::Builder::new().spawn_scoped(scope, send)?;
        receive(stream, length, until)?;
        sent.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })?;
    stream.write_all(&[DONE])?;
    done(stream)?;
    Ok(length as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

fn write(stream: &mut TcpStream, mut left: u64, until: Instant) -> io::Result<()> {
    let piece = vec![0x5a; PIECE];
    while left > 0 {
        in_time(until)?;
        let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        stream.write_all(&piece[..length])?;
        left -= length as u64;
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, mut left: u64, until: Instant) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    while left > 0 {
        in_time(until)?;
        let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let length = stream.read(&mut piece[..length])?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= length as u64;
    }
    Ok(())
}

fn in_time(until: Instant) -> io::Result<()> {
    let is_late = Instant::now() >= until;
    if is_late { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
}

fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn done(stream: &mut TcpStream) -> io::Result<()> {
    match read(stream)? {
        [DONE] => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the other end lost count")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn measured(most: u64) -> Measured {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = thread::spawn(move || serve(&mut listener.accept().unwrap().0));
        let measured = drive(&mut TcpStream::connect(address).unwrap(), most).unwrap();
        other.join().unwrap().unwrap();
        measured
    }

    #[test]
    fn loopback_is_measured_and_its_clocks_agree() {
        let Measured { round_trip, clock, clock_error, there, back, both } = measured(1 << 30);
        assert!(round_trip > 0.0 && clock_error <= round_trip, "{round_trip} {clock_error}");
        assert!(clock.abs() <= clock_error + 1e-3, "{clock} {clock_error}");
        assert!([there, back, both].iter().all(|rate| rate.is_finite() && *rate > 0.0));
    }

    /// Passes on what arrives, `rate` bytes in a second.
    fn slowly(mut from: TcpStream, mut to: TcpStream, rate: f64) {
        let mut piece = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            thread::sleep(Duration::from_secs_f64(length as f64 / rate));
            if to.write_all(&piece[..length]).is_err() {
                return;
            }
        }
    }

    /// What is measured of a connection that carries a megabyte in a second from the other end.
    fn measured_with_a_slow_way_back() -> Measured {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, at_relay) = (listener.local_addr().unwrap(), relay.local_addr().unwrap());
        thread::spawn(move || serve(&mut listener.accept().unwrap().0));
        thread::spawn(move || {
            let (near, far) = (relay.accept().unwrap().0, TcpStream::connect(at).unwrap());
            let (back, there) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut { near }, &mut { there }));
            slowly(far, back, 1e6);
        });
        drive(&mut TcpStream::connect(at_relay).unwrap(), 1 << 30).unwrap()
    }

    #[test]
    fn a_direction_that_is_a_thousand_times_slower_ends_soon() {
        // On a busy machine, the first transfer may take so long that it counts, and then the
        // faster direction seems as slow.
        let is_faster = || {
            let begun = Instant::now();
            let Measured { there, back, .. } = measured_with_a_slow_way_back();
            assert!(back < 2e6, "{back}");
            // The faster direction's last transfer would take the slower one minutes.
            assert!(begun.elapsed() < LONGEST / 2, "{:?}", begun.elapsed());
            there > 10.0 * back
        };
        assert!((0..100).any(|_| is_faster()));
    }

    #[test]
    fn the_smallest_limit_still_measures() {
        for most in [1, 2, 3, 40_000] {
            assert!(measured(most).there > 0.0);
        }
    }

    #[test]
    fn an_end_that_leaves_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(drive(&mut TcpStream::connect(address).unwrap(), 1 << 20).is_err());
        other.join().unwrap();
    }
}
