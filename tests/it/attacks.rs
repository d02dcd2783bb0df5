//! What an attacker can do who eavesdrops on a meeting, changes it, or poses as one of its ends:
//! each attack is refused and named.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mpienv::rendezvous::{ConnectFailure, Meeting, Rendezvous, RendezvousError};
use mpienv::{Host, Port, Rank};
use x25519_dalek::x25519;

use crate::support::clock::SLACK;
use crate::support::measured::longer_than;
use crate::support::port::free_port;
use crate::support::wire::{self, Direction, GREETING, HEAD, Played, READY, WELCOME};

const SECRET: &str = "c01d1a5f3e6a2f0b9d8e7c6b5a49382716f5e4d3c2b1a0918273645546372819";
/// How long a guess waits for rank 0's greeting.
pub(super) const GUESS: Duration = Duration::from_secs(1);

/// How long ranks wait that do not meet: much longer than two that do.
fn short() -> Duration {
    longer_than(Duration::from_secs(2), || drop(recorded()))
}

pub(super) fn rank(index: u32, size: u32, port: u16) -> Rendezvous {
    open_rank(index, size, port).token(SECRET)
}

/// A rank without a token.
pub(super) fn open_rank(index: u32, size: u32, port: u16) -> Rendezvous {
    let rendezvous =
        Rendezvous::new(Rank::new(index, size).unwrap(), Host::LOOPBACK, Port::new(port).unwrap());
    rendezvous.timeout(SLACK)
}

pub(super) fn start(rank: Rendezvous) -> JoinHandle<Result<Meeting, RendezvousError>> {
    thread::spawn(move || rank.all_gather("blob"))
}

pub(super) fn connect(port: u16) -> TcpStream {
    let begun = Instant::now();
    while begun.elapsed() < SLACK {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            stream.set_read_timeout(Some(SLACK)).unwrap();
            return stream;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("rank 0 never listened");
}

/// The kind of the next reply; none if the other end closes instead.
pub(super) fn answer(stream: &mut TcpStream) -> Option<u8> {
    stream.set_read_timeout(Some(SLACK)).unwrap();
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).ok()?;
    Some(head[16])
}

/// Plays rank 1, without knowing the secret.
pub(super) fn guesser(token: &str) -> Played<'_> {
    wire::played(1, 2, true, token.as_bytes(), 0)
}

fn blob(token: &str) -> Played<'_> {
    Played { blob_length: 4, ..guesser(token) }
}

const WELCOMED: u8 = 1;
pub(super) const OTHER_JOB: u8 = 6;

/// The bytes that one end sends to the other.
type Recorded = Vec<u8>;

/// Rank 1 of 2 reaches rank 0 through this program. `change` may modify the bytes, by direction and
/// position.
fn through(
    port: u16,
    change: impl Fn(bool, usize, &mut [u8]) + Send + Sync + Copy + 'static,
) -> (u16, JoinHandle<(Recorded, Recorded)>) {
    let between = free_port();
    let listener = TcpListener::bind(("127.0.0.1", between)).unwrap();
    let forwarder = thread::spawn(move || {
        let (of_rank, _) = listener.accept().unwrap();
        // A rank that tries again finds no listener.
        drop(listener);
        let of_master = connect(port);
        let copy = move |mut from: TcpStream, mut to: TcpStream, is_up: bool| {
            let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                let at = heard.len();
                heard.extend(&buffer[..length]);
                change(is_up, at, &mut buffer[..length]);
                if to.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
            heard
        };
        let (from, to) = (of_rank.try_clone().unwrap(), of_master.try_clone().unwrap());
        let up = thread::spawn(move || copy(from, to, true));
        let down = copy(of_master, of_rank, false);
        (up.join().unwrap(), down)
    });
    (between, forwarder)
}

/// A whole meeting of two ranks, as an eavesdropper hears it.
fn recorded() -> (Recorded, Recorded) {
    let port = free_port();
    let zero = start(rank(0, 2, port));
    let (between, forwarder) = through(port, |_, _, _| {});
    rank(1, 2, between).all_gather("blob").unwrap();
    zero.join().unwrap().unwrap();
    forwarder.join().unwrap()
}

#[test]
fn what_one_hears_of_a_meeting_shows_the_blobs_and_neither_the_secret_nor_a_key() {
    let (up, down) = recorded();
    for heard in [&up, &down] {
        for secret in
            [SECRET.as_bytes(), &wire::sha256(SECRET.as_bytes()), &wire::job_key(SECRET.as_bytes())]
        {
            assert!(!heard.windows(secret.len()).any(|window| window == secret));
        }
    }
    // Nothing is encrypted.
    assert!(
        up.windows(4).any(|window| window == b"blob")
            && down.windows(4).any(|window| window == b"blob")
    );
    assert_eq!((up.len(), down[16]), (wire::CLAIM + 32 + 4 + 32 + 33, 9));
}

/// Every key that the guide derives from a token and from what two ends sent to each other, if this
/// is what the ends agreed on: the keys of rank 0's messages, which encrypt the meeting's number.
fn keys_of_rank_0(token: &[u8], up: &[u8], down: &[u8], agreed: &[[u8; 32]]) -> Vec<Direction> {
    let (greeting, claim) = (&down[..GREETING], &up[..wire::CLAIM]);
    let keys = |key: [u8; 32]| {
        let both = wire::Session::unexchanged(&key, greeting, claim);
        [both.of_master, both.of_rank]
    };
    let job = wire::job_key(token);
    let exchanged = agreed.iter().map(|agreed| wire::hmac(&job, &[b"mpienv exchange", agreed]));
    exchanged.chain([job, wire::sha256(token)]).flat_map(keys).collect()
}

#[test]
fn a_recording_and_the_token_that_leaks_afterwards_open_nothing() {
    // The same bytes, and what each end has forgotten since.
    let agreed_in = |up: &[u8], down: &[u8], private: Option<[u8; 32]>| {
        let (of_master, of_rank) = (&down[HEAD..GREETING], &up[wire::FIELDS..wire::CLAIM]);
        let part = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).unwrap();
        // All that is known without a private key: the public ones, and what is no key at all.
        let guesses = [part(of_master), part(of_rank), [0; 32]];
        match private {
            Some(private) => vec![x25519(private, part(of_rank))],
            None => guesses.to_vec(),
        }
    };
    let number = GREETING + HEAD + 4..GREETING + HEAD + 4 + wire::NUMBER;
    let opened = |up: &[u8], down: &[u8], private| {
        let agreed = agreed_in(up, down, private);
        let keys = keys_of_rank_0(SECRET.as_bytes(), up, down, &agreed);
        keys.iter().find_map(|key| key.open_number(&down[number.clone()]))
    };
    let (up, down) = recorded();
    assert_eq!(down[GREETING + 16], WELCOMED);
    assert_eq!(opened(&up, &down, None), None);
    // The same opens a meeting whose rank 0 is this program, which has kept its private key.
    let (listener, port) = listener();
    let one = start(rank(1, 2, port).timeout(short()));
    let mut stream = listener.accept().unwrap().0;
    stream.write_all(&wire::greeting()).unwrap();
    let mut up = [0; wire::CLAIM];
    stream.read_exact(&mut up).unwrap();
    let mut session = wire::Session::new(SECRET.as_bytes(), &wire::greeting(), &up);
    let down = [wire::greeting(), session.welcome(1000)].concat();
    drop((stream, listener));
    assert!(one.join().unwrap().is_err());
    assert_eq!(opened(&up, &down, Some(wire::OF_MASTER)), Some([7; 32]));
    assert_eq!(opened(&up, &down, None), None);
    // No public key comes twice, so that no private key opens two meetings.
    let publics: Vec<_> = (0..2)
        .map(|_| recorded())
        .flat_map(|(up, down)| {
            [up[wire::FIELDS..wire::CLAIM].to_vec(), down[HEAD..GREETING].to_vec()]
        })
        .collect();
    assert_eq!(publics.iter().collect::<BTreeSet<_>>().len(), 4);
}

#[test]
fn a_recorded_hello_is_refused_in_the_next_meeting() {
    let (up, _) = recorded();
    let port = free_port();
    let zero = start(rank(0, 2, port).timeout(short()));
    let mut attacker = connect(port);
    attacker.write_all(&up).unwrap();
    wire::hear_greeting(&mut attacker);
    assert_eq!(answer(&mut attacker), Some(OTHER_JOB));
    let error = zero.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("rank 1 of 2 has not connected"), "{error}");
    assert!(error.contains("was rejected, with another job's token from 127.0.0.1"), "{error}");
}

#[test]
fn a_hello_heard_now_is_refused_on_a_second_connection() {
    let port = free_port();
    let zero = start(rank(0, 3, port).timeout(short()));
    let mut one = connect(port);
    let greeting = wire::hear_greeting(&mut one);
    let (hello, _) = wire::played(1, 3, true, SECRET.as_bytes(), 0).hello(&greeting, b"");
    let mut attacker = connect(port);
    assert_ne!(wire::hear_greeting(&mut attacker), greeting);
    attacker.write_all(&hello).unwrap();
    assert_eq!(answer(&mut attacker), Some(OTHER_JOB));
    one.write_all(&hello).unwrap();
    assert_eq!(answer(&mut one), Some(WELCOMED));
    let error = zero.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("rank 2 of 3 has not connected"), "{error}");
}

#[test]
fn what_rank_0_says_is_refused_when_it_comes_back_to_it() {
    let port = free_port();
    let zero = start(rank(0, 2, port).timeout(short()));
    let mut attacker = connect(port);
    let greeting = wire::hear_greeting(&mut attacker);
    // The greeting sent back as a hello, and a hello whose proof uses the key of the other
    // direction.
    let mut reflected = connect(port);
    let heard = wire::hear_greeting(&mut reflected);
    reflected.write_all(&[&heard[..], &[0; 200]].concat()).unwrap();
    assert_ne!(answer(&mut reflected), Some(1));
    let claim = guesser(SECRET).claim();
    let tag = wire::Session::new(SECRET.as_bytes(), &greeting, &claim).of_master.tag(b"");
    attacker.write_all(&[&claim[..], &tag].concat()).unwrap();
    assert_eq!(answer(&mut attacker), Some(OTHER_JOB));
    let error = zero.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("rejected, with another job's token from 127.0.0.1"), "{error}");
}

#[test]
fn a_hello_cannot_be_given_another_ranks_number() {
    let port = free_port();
    let zero = start(rank(0, 3, port).timeout(short()));
    // Rank 1's own hello, in which the forwarder replaces the rank with 2.
    let (between, forwarder) = through(port, |is_up, at, bytes| {
        if is_up && (at..at + bytes.len()).contains(&19) {
            bytes[19 - at] = 2;
        }
    });
    let error = rank(1, 3, between).timeout(short()).all_gather("blob").unwrap_err();
    assert!(matches!(error, RendezvousError::OtherJob { rank: 1, .. }), "{error}");
    let error = zero.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("ranks 1-2 of 3 have not connected"), "{error}");
    assert!(error.contains("with another job's token from 127.0.0.1"), "{error}");
    forwarder.join().unwrap();
}

#[test]
fn messages_in_another_order_are_refused_by_both_ends() {
    // To a rank: the table before the welcome, with a tag made for another position.
    let (listener, port) = listener();
    let one = start(rank(1, 2, port).timeout(short()));
    let mut stream = listener.accept().unwrap().0;
    let mut session = wire::greet(&mut stream, SECRET.as_bytes()).unwrap();
    let welcome = session.welcome(1000);
    let (ready, done) = (session.reply(7, b""), session.reply(3, b""));
    stream.write_all(&[welcome, done, ready].concat()).unwrap();
    let error = one.join().unwrap().unwrap_err();
    assert!(
        matches!(&error, RendezvousError::MasterLost { reason, .. } if reason.contains("changed, repeated or left out")),
        "{error}"
    );
    // To rank 0: the answer to the roll call, with the tag of the message after it.
    let port = free_port();
    let zero = start(rank(0, 2, port).timeout(short()));
    let mut attacker = connect(port);
    let mut session = blob(SECRET).join(&mut attacker, b"blob");
    attacker.read_exact(&mut [0; WELCOME + READY]).unwrap();
    session.here();
    attacker.write_all(&session.here()).unwrap();
    let error = zero.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("rank 1 (127.0.0.1) connected, but was lost"), "{error}");
}

#[test]
fn a_message_that_comes_twice_is_refused() {
    let (listener, port) = listener();
    let one = start(rank(1, 2, port).timeout(short()));
    let mut stream = listener.accept().unwrap().0;
    let mut session = wire::greet(&mut stream, SECRET.as_bytes()).unwrap();
    let (welcome, ready) = (session.welcome(1000), session.reply(7, b""));
    stream.write_all(&[&welcome[..], &ready, &ready].concat()).unwrap();
    let error = one.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("its message was changed, repeated or left out on the way"), "{error}");
}

#[test]
fn a_message_that_is_cut_off_is_refused() {
    for cut in [1, 20, 32, 40] {
        let (listener, port) = listener();
        let one = start(rank(1, 2, port).timeout(short()));
        let mut stream = listener.accept().unwrap().0;
        let mut session = wire::greet(&mut stream, SECRET.as_bytes()).unwrap();
        let (welcome, failure) = (session.welcome(1000), session.reply(5, b"a text"));
        stream.write_all(&[&welcome[..], &failure[..failure.len() - cut]].concat()).unwrap();
        drop((stream, listener));
        let error = one.join().unwrap().unwrap_err();
        assert!(matches!(error, RendezvousError::MasterLost { .. }), "{cut}: {error}");
    }
}

#[test]
fn one_byte_changed_on_the_way_is_refused_whichever_it_is() {
    let (up, down) = recorded();
    // Every field of both directions, and the middle of every nonce and tag.
    let in_up = [0, 9, 15, 19, 23, 24, 28, 30, 40, 50, 60, 100, 115, 118, 120, 151, 152]
        .map(|at| (true, at));
    let in_down = [0, 9, 16, 20, 40, 53, 69, 73, 75, 90, 120, 150, 170, 190, 200, 220, 240]
        .map(|at| (false, at));
    let refused = |is_up: bool, place: usize| {
        assert!(place < if is_up { up.len() } else { down.len() }, "{place}");
        let port = free_port();
        let zero = start(rank(0, 2, port).timeout(short()));
        let (between, forwarder) = through(port, move |up, at, bytes| {
            if up == is_up && (at..at + bytes.len()).contains(&place) {
                bytes[place - at] ^= 4;
            }
        });
        let one = rank(1, 2, between).timeout(short()).all_gather("blob");
        assert!(one.is_err(), "byte {place}, up {is_up}");
        let zero = zero.join().unwrap();
        // Rank 0 is done once it has written the table; only the rank can report a change to it.
        let is_table = !is_up && place >= GREETING + WELCOME + READY;
        assert!(zero.is_err() || is_table, "byte {place}, up {is_up}");
        forwarder.join().unwrap();
    };
    // The meetings mostly wait.
    thread::scope(|scope| {
        for (is_up, place) in in_up.into_iter().chain(in_down) {
            let refused = &refused;
            scope.spawn(move || refused(is_up, place));
        }
    });
}

fn listener() -> (TcpListener, u16) {
    let port = free_port();
    (TcpListener::bind(("127.0.0.1", port)).unwrap(), port)
}

#[test]
fn a_program_in_rank_0s_place_without_the_secret_gets_no_rank() {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    let one = start(rank(1, 2, port).timeout(short()));
    let mut fooled = 0;
    while !one.is_finished() {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                // It knows the protocol, but only guesses the secret.
                let Ok(mut session) = wire::greet(&mut stream, b"guess") else { continue };
                let _ = stream.write_all(&[session.welcome(1000), session.reply(3, b"")].concat());
                fooled += 1;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(2))
            }
            Err(error) => panic!("{error}"),
        }
    }
    let error = one.join().unwrap().unwrap_err();
    assert!(fooled > 0);
    assert!(
        matches!(error, RendezvousError::NoMaster { failure: ConnectFailure::Unproven, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("cannot prove that it has this job's token"), "{error}");
}

#[test]
fn a_key_of_yesterday_opens_nothing_today() {
    // The same secret, but in the previous attempt.
    let port = free_port();
    let zero = start(rank(0, 2, port).job("4711/0", 2).timeout(short()));
    let error = rank(1, 2, port).job("4711/0", 1).all_gather("blob").unwrap_err();
    assert!(matches!(error, RendezvousError::TurnedAway { .. }), "{error:?}");
    let error = error.to_string();
    assert!(
        error.starts_with("rank 1 belongs to attempt 1 of this job, and rank 0 to attempt 2"),
        "{error}"
    );
    let error = rank(1, 2, port).job("4712/0", 2).all_gather("blob").unwrap_err().to_string();
    assert!(error.contains("belongs to another job of its launcher"), "{error}");
    let error = zero.join().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("2 connections that were not ranks of this job were rejected"),
        "{error}"
    );
}
