//! Many connections that are not ranks of the job delay no rank.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::attacks::{GUESS, OTHER_JOB, answer, connect, guesser, open_rank, rank, start};
use crate::support::clock::SLACK;
use crate::support::port::free_port;
use crate::support::timeout::in_time;
use crate::support::wire::{self, GREETING, WELCOME};

/// Tries tokens, starting at a number, with one connection each, until the port closes. Counts how
/// many rank 0 checked.
fn guess(port: u16, from: u32, looked_at: &AtomicUsize) {
    for token in from.. {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return };
        // A port that closes may drop a connection whose last packet it ignored, and its other end
        // never learns of it.
        stream.set_read_timeout(Some(GUESS)).unwrap();
        let mut greeting = [0; GREETING];
        if stream.read_exact(&mut greeting).is_err() {
            continue;
        }
        let token = token.to_string();
        let _ = stream.write_all(&guesser(&token).hello(&greeting, b"").0);
        if let Some(kind) = answer(&mut stream) {
            assert_eq!(kind, OTHER_JOB, "{token} was right");
            looked_at.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn of_ten_thousand_guesses_a_few_hundred_are_looked_at_and_no_rank_waits() {
    let attack = |timeout: u32| {
        let (port, looked_at) = (free_port(), AtomicUsize::new(0));
        let begun = Instant::now();
        // The job identity that Open MPI provides: a number, not a secret.
        let zero =
            start(rank(0, 3, port).token("8427").timeout(Duration::from_secs(timeout.into())));
        drop(connect(port));
        let joined = thread::scope(|scope| {
            for from in [0, 2500, 5000, 7500] {
                let looked_at = &looked_at;
                scope.spawn(move || guess(port, from, looked_at));
            }
            // Rank 1 connects from another address of this host during the attack.
            thread::sleep(Duration::from_millis(500));
            let mut one = from_another_address(port);
            let begun = Instant::now();
            wire::played(1, 3, true, b"8427", 0).join(&mut one, b"");
            one.read_exact(&mut [0; WELCOME]).unwrap();
            let joined = begun.elapsed();
            // The attacker has the rest of the time, because rank 2 never connects.
            zero.join().unwrap().unwrap_err();
            drop(one);
            joined
        });
        (looked_at.into_inner(), begun.elapsed().as_secs() as usize, joined)
    };
    // A busy machine leaves the attacker less time.
    let (looked_at, seconds, joined) = in_time(attack, |(looked_at, ..)| *looked_at >= 200);
    eprintln!("{looked_at} guesses were looked at in {seconds} s; rank 1 joined after {joined:?}");
    assert!((200..=200 + 20 * (seconds + 1)).contains(&looked_at), "{looked_at}");
    assert!(joined < SLACK, "{joined:?}");
}

fn from_another_address(port: u16) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    socket.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    socket.into()
}

#[test]
fn a_flood_of_half_open_connections_is_bounded_and_delays_no_rank() {
    let port = free_port();
    let zero = start(rank(0, 2, port));
    // Each connection sends only the start of a hello; the oldest make room for the newest.
    let open: Vec<_> = (0..3000)
        .map(|_| {
            let mut stream = connect(port);
            let _ = stream.write_all(b"mpienv\r\n");
            stream
        })
        .collect();
    let begun = Instant::now();
    rank(1, 2, port).all_gather("blob").unwrap();
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
    // On a busy machine, rank 1 is not answered in time, connects again, and its first connection
    // counts too.
    assert!(zero.join().unwrap().unwrap().rejected() >= 3000);
    drop(open);
}

#[test]
fn one_connection_with_another_world_size_ends_no_job_and_gets_its_error() {
    let port = free_port();
    // Without a token, anyone can send a valid hello.
    let at = |index, size| open_rank(index, size, port);
    let zero = start(at(0, 3));
    let outlier = start(at(2, 4));
    let one = start(at(1, 3));
    let error = outlier.join().unwrap().unwrap_err().to_string();
    let said = "the ranks disagree on the world size: ranks 0-1 say 3, rank 2 (127.0.0.1) says 4; two jobs share";
    assert!(error.starts_with(said), "{error}");
    let two = start(at(2, 3));
    let meeting = zero.join().unwrap().unwrap();
    assert_eq!((meeting.members().len(), meeting.rejected()), (3, 1));
    for rank in [one, two] {
        assert_eq!(rank.join().unwrap().unwrap().members().len(), 3);
    }
}
