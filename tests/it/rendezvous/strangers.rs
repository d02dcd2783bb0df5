//! Connections to rank 0's port that do not come from ranks of the job.

use crate::support::clock::SLACK;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use mpienv::ErrorKind;
use mpienv::rendezvous::RendezvousError;

use super::{free_port, part, played, short, start, stranger};
use crate::support::wire::{Played, hear_greeting};

#[test]
fn another_token_is_turned_away_and_counted() {
    let port = free_port();
    let server = start(part(0, 2, port), "");
    let error = part(1, 2, port).token("job 2").all_gather("").unwrap_err();
    assert!(matches!(error, RendezvousError::OtherJob { .. }));
    assert_eq!(error.kind(), ErrorKind::Refused);
    part(1, 2, port).all_gather("").unwrap();
    assert_eq!(server.join().unwrap().unwrap().rejected(), 1);
}

#[test]
fn strangers_with_another_token_are_in_the_verdict() {
    let port = free_port();
    let server = start(part(0, 2, port).timeout(short()), "");
    part(1, 2, port).token("another").all_gather("").unwrap_err();
    let error = server.join().unwrap().unwrap_err().to_string();
    assert!(
        error.contains(
            "1 connection that was not a rank of this job was rejected, with another job's token"
        ),
        "{error}"
    );
}

/// What a stranger sends after a greeting.
type Said<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

#[test]
fn strangers_of_all_sorts_delay_no_rank() {
    let port = free_port();
    let server = start(part(0, 2, port), "");
    let mut strangers = Vec::new();
    let wrong_token = Played { token: b"job 7", blob_length: 1 << 20, ..played(1, 2) };
    // What each stranger sends after the greeting.
    let said: [Said<'_>; 9] = [
        &|_| Vec::new(),
        &|_| b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        &|_| b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        &|_| vec![0; 100_000],
        &|_| vec![0xff; 31],
        &|_| b"mpienv\r\n".to_vec(),
        &|greeting| Played { blob_length: u32::MAX, ..played(1, 2) }.hello(greeting, b"").0,
        &|greeting| {
            Played { blob_length: 10, ..played(1, 2) }.hello(greeting, b"").0[..100].to_vec()
        },
        &|greeting| wrong_token.hello(greeting, &[1; 1 << 20]).0,
    ];
    for _ in 0..25 {
        for said in said {
            let mut stream = stranger(port);
            let greeting = hear_greeting(&mut stream);
            // Rank 0 may have closed already.
            let _ = stream.write_all(&said(&greeting));
            strangers.push(stream);
        }
    }
    // Meanwhile, one stranger sends a byte at a time.
    let mut dripping = stranger(port);
    let slow = thread::spawn(move || {
        let greeting = hear_greeting(&mut dripping);
        for byte in (Played { blob_length: 1, ..played(1, 2) }).hello(&greeting, b"").0 {
            if dripping.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    });
    let begun = Instant::now();
    part(1, 2, port).all_gather("").unwrap();
    let meeting = server.join().unwrap().unwrap();
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
    assert!(meeting.rejected() >= 225, "{}", meeting.rejected());
    slow.join().unwrap();
}

#[test]
fn a_thousand_idle_connections_are_no_matter() {
    let port = free_port();
    let server = start(part(0, 2, port), "");
    let idle: Vec<_> = (0..1000).map(|_| stranger(port)).collect();
    part(1, 2, port).all_gather("").unwrap();
    // If a busy machine lets rank 1 come again, its first connection counts too.
    assert!(server.join().unwrap().unwrap().rejected() >= 1000);
    drop(idle);
}
