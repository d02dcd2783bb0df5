//! Other programs in rank 0's place: how long they hold a rank up, and what they make it do.

use std::io;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{ended, job, listener, rank};
use crate::support::attacker;
use crate::support::clock::SLACK;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::wire;

/// The limit on a rank's total memory in KiB, whatever answers it.
const MOST: u64 = 32 * 1024;
const TABLE: u8 = 2;
const MISMATCH: u8 = 5;
/// A rank prints the text of such a reply itself.
const TURNED_AWAY: u8 = 11;

/// Rank 1 of 2, whose master sends this on every connection, in pieces with pauses between them.
fn answered(
    say: &(dyn Fn(&mut TcpStream, &str) -> Vec<u8> + Sync),
    piece: usize,
    pause: Duration,
    timeout: &str,
) -> (Option<i32>, String, Duration, u64) {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    let over = AtomicBool::new(false);
    let (over, listener) = (&over, &listener);
    thread::scope(|scope| {
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                scope.spawn(move || {
                    stream.set_nonblocking(false).unwrap();
                    let bytes = say(&mut stream, &job(port));
                    for piece in bytes.chunks(piece) {
                        if stream.write_all(piece).is_err() || over.load(Ordering::Relaxed) {
                            return;
                        }
                        thread::sleep(pause);
                    }
                    while !over.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(1));
                    }
                });
            }
        });
        let begun = Instant::now();
        let one = rank(1, 2, port, &job(port), &["--timeout", timeout]);
        thread::sleep(Duration::from_millis(300));
        // A process that has exited has no memory.
        let peak = attacker::peak(one.id()).unwrap_or(0);
        let (code, stdout, stderr) = ended(one);
        over.store(true, Ordering::Relaxed);
        assert_eq!(stdout, "");
        (code, stderr, begun.elapsed(), peak)
    })
}

#[test]
fn what_answers_in_rank_0s_place_does_not_hold_a_rank_up() {
    let at_once = Duration::ZERO;
    let page = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    let drip = wire::reply(1, 4, &60_000u32.to_be_bytes());
    let cases = [
        (&page[..], 1000, at_once, "another program answered (it said \"HTTP"),
        (b"\x15\x03\x01\0\x02\x02\x46", 1000, at_once, "another program answered (it said "),
        (b"", 1, at_once, "it took the connection and said nothing"),
        // Too slow even for the header of an answer in the available time.
        (&drip, 1, Duration::from_secs(2), "it took the connection and said nothing"),
    ];
    thread::scope(|scope| {
        for (bytes, piece, pause, expected) in cases {
            scope.spawn(move || {
                let (code, stderr, waited, _) = answered(&|_, _| bytes.to_vec(), piece, pause, "8");
                assert_eq!(code, Some(124), "{stderr}");
                assert!(stderr.contains(expected), "{stderr}");
                // The host may be the wrong one, too, and rank 0 itself may be stopped.
                assert_eq!(
                    stderr.contains("rank 0's process is stopped or hangs"),
                    expected.contains("said nothing"),
                    "{stderr}"
                );
                assert!(stderr.contains("or correct MASTER_ADDR if"), "{stderr}");
                assert!(waited < SLACK, "{waited:?}: {stderr}");
            });
        }
    });
}

#[test]
fn a_rank_0_that_falls_silent_keeps_a_rank_for_its_timeout_and_ten_seconds() {
    type Say = &'static (dyn Fn(&mut TcpStream, &[u8]) -> io::Result<Vec<u8>> + Sync);
    let nothing = "it took the connection and said nothing";
    let welcomed = "but got no result within";
    // What it still says, how many seconds longer than its timeout the rank waits, and what it
    // reports.
    let stages: [(Say, u64, &str); 6] = [
        (&|_, _| Ok(Vec::new()), 0, nothing),
        (&|_, _| Ok(wire::greeting()), 0, nothing),
        (&|stream, token| Ok(wire::greet(stream, token)?.welcome(60_000)), 10, welcomed),
        (
            &|stream, token| {
                let mut session = wire::greet(stream, token)?;
                Ok([session.welcome(60_000), session.reply(7, b"")].concat())
            },
            10,
            welcomed,
        ),
        (
            &|stream, token| {
                let mut session = wire::greet(stream, token)?;
                Ok([&session.welcome(60_000)[..], &session.reply(3, b"")[..10]].concat())
            },
            10,
            welcomed,
        ),
        (
            &|stream, token| {
                let mut session = wire::greet(stream, token)?;
                Ok([&session.welcome(60_000)[..], &session.reply(3, b"text")[..23]].concat())
            },
            10,
            "lost rank 0",
        ),
    ];
    thread::scope(|scope| {
        for (say, longer, expected) in stages {
            scope.spawn(move || {
                // A rank that is too slow for its timeout may be gone when it is greeted.
                let say = |stream: &mut TcpStream, token: &str| {
                    say(stream, token.as_bytes()).unwrap_or_default()
                };
                let wait = |timeout: u32| {
                    let answer = answered(&say, usize::MAX, Duration::ZERO, &timeout.to_string());
                    (u64::from(timeout), answer)
                };
                let (timeout, (code, stderr, waited, _)) =
                    in_time(wait, |(_, (_, stderr, ..))| stderr.contains(expected));
                assert!(
                    code.is_some_and(|code| code != 0) && stderr.contains(expected),
                    "{code:?} {stderr}"
                );
                let promised = Duration::from_secs(timeout + longer);
                assert!((promised..promised + SLACK).contains(&waited), "{waited:?}: {stderr}");
            });
        }
    });
}

#[test]
fn an_answer_that_claims_four_gigabytes_is_refused_at_once() {
    for kind in [TABLE, MISMATCH] {
        let large = wire::reply(kind, u32::MAX, &vec![0; 16 << 20]);
        let claim = |stream: &mut TcpStream, token: &str| {
            [wire::greet(stream, token.as_bytes()).unwrap().welcome(60_000), large.clone()].concat()
        };
        let (code, stderr, waited, peak) = answered(&claim, usize::MAX, Duration::ZERO, PATIENT);
        assert_eq!(code, Some(3), "{stderr}");
        assert!(stderr.contains("it announced 4294967295 bytes"), "{stderr}");
        assert!(waited < SLACK && peak < MOST, "{waited:?} {peak} KiB");
    }
}

#[test]
fn no_answer_commands_a_terminal() {
    let text = b"\x1b[2Jit belongs to no\none\x07";
    let answer = |stream: &mut TcpStream, token: &str| {
        wire::greet(stream, token.as_bytes()).unwrap().reply(TURNED_AWAY, text)
    };
    let (code, stderr, ..) = answered(&answer, usize::MAX, Duration::ZERO, PATIENT);
    assert_eq!(code, Some(3));
    assert_eq!(stderr, "mpienv: \u{fffd}[2Jit belongs to no\u{fffd}one\u{fffd}\n");
}
