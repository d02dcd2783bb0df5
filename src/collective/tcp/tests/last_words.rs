//! The reason why a rank gives up reaches the others even over a slow network.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::AtomicBool;

use super::*;
use crate::tcp::frame::{HEAD, SUSPECT, Transfer, head};
use crate::tcp::handshake::{self, Joined};
use crate::tcp::peer::{Fault, Peer, Reason};
use crate::tcp::seal::{SEALED_HEAD, Seal};
use crate::tcp::transfer::Links;

const REASON: &str = "its memory is full";
const PAUSE: Duration = Duration::from_millis(100);

/// Both ends of a connection, each with its socket and keys.
fn joined() -> [Joined; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, until, key) = (listener.local_addr().unwrap(), Instant::now() + PLENTY, [7; 32]);
    let rank = |index| Rank::new(index, 2).unwrap();
    let other =
        thread::spawn(move || handshake::join(&[address], rank(1), &key, until).unwrap().remove(0));
    let mut places = vec![None, None];
    handshake::accept(&listener, rank(0), &key, &mut places, until, &AtomicBool::new(false))
        .unwrap();
    [places.pop().flatten().unwrap(), other.join().unwrap()]
}

/// One end of a connection, and the socket at which the test passes on its messages.
fn end(joined: &Joined, is_sealed: bool) -> (Peer, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let test = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = listener.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    let seal = is_sealed.then(|| Seal::new(&joined.1).unwrap());
    (Peer::new(mio::net::TcpStream::from_std(stream), "host".to_owned(), seal), test)
}

/// A rank, the socket to it, and the bytes of another rank that gives up, not yet passed on.
fn abort(is_sealed: bool) -> (Peer, TcpStream, Vec<u8>) {
    let [zero, one] = joined();
    let ((zero, to_zero), (mut one, mut from_one)) = (end(&zero, is_sealed), end(&one, is_sealed));
    one.abort(3, &Reason::Lost(REASON.to_owned()));
    one.hang_up();
    let mut bytes = Vec::new();
    from_one.read_to_end(&mut bytes).unwrap();
    (zero, to_zero, bytes)
}

/// Waits until `peer` reports that the other rank gave up. Returns the blamed rank and the reason.
fn heard(peer: &mut Peer) -> (u32, Reason) {
    let until = Instant::now() + PLENTY;
    while Instant::now() < until {
        match peer.last_words() {
            Some(Fault::Abort { blamed, reason }) => return (blamed, reason),
            Some(fault) => panic!("{fault:?}"),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("nothing was heard");
}

/// Repeats a test that needs the machine within a moment, and returns whether that was so and how
/// long it took, while the machine is too busy.
#[track_caller]
fn unless_late(test: impl Fn() -> (bool, Duration)) {
    let has_passed = (0..200).find_map(|_| {
        let (has_passed, took) = test();
        (has_passed || took < 3 * PAUSE).then_some(has_passed)
    });
    assert_eq!(has_passed, Some(true));
}

#[test]
fn a_reason_that_arrives_in_two_pieces_is_whole() {
    for is_sealed in [false, true] {
        unless_late(|| {
            let (mut zero, mut to_zero, bytes) = abort(is_sealed);
            let (first, rest) = bytes.split_at(SEALED_HEAD + 1);
            let begun = Instant::now();
            to_zero.write_all(first).unwrap();
            thread::scope(|scope| {
                let write = scope.spawn(|| {
                    thread::sleep(PAUSE);
                    to_zero.write_all(rest).unwrap();
                    begun.elapsed()
                });
                let is_whole = heard(&mut zero) == (3, Reason::Lost(REASON.to_owned()));
                (is_whole, write.join().unwrap())
            })
        });
    }
}

#[test]
fn a_reason_that_is_cut_off_is_waited_for_no_longer_than_a_moment() {
    for (is_sealed, text) in [(false, &REASON[..4]), (true, "")] {
        let (mut zero, mut to_zero, bytes) = abort(is_sealed);
        let head = bytes.len() - REASON.len() - if is_sealed { 16 } else { 0 };
        to_zero.write_all(&bytes[..head + 4]).unwrap();
        assert_eq!(heard(&mut zero), (3, Reason::Lost(text.to_owned())));
    }
}

#[test]
fn a_reason_reaches_a_slow_peer_though_its_rank_exits_at_once() {
    unless_late(|| {
        let [joined, _] = joined();
        let (mut one, mut peer) = end(&joined, false);
        socket2::SockRef::from(&*one.stream()).set_send_buffer_size(1 << 16).unwrap();
        // A socket that is closed while something is unread discards what it has not yet sent.
        peer.write_all(&[0; 1000]).unwrap();
        while one.stream().write(&[0; 1 << 16]).is_ok() {}
        let mut links = Links::new(1, vec![Some(one), None], PLENTY).unwrap();
        let begun = Instant::now();
        thread::scope(|scope| {
            let read = scope.spawn(|| {
                let (mut bytes, mut buffer) = (Vec::new(), [0; 1 << 16]);
                while let Ok(length @ 1..) = peer.read(&mut buffer) {
                    bytes.extend_from_slice(&buffer[..length]);
                    thread::sleep(Duration::from_millis(1));
                }
                drop(peer);
                bytes
            });
            let error = links.give_up_on(0, Fault::Differs(Call::BARRIER)).to_string();
            drop(links);
            let read = read.join().unwrap();
            (read.ends_with(error.as_bytes()), begun.elapsed())
        })
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_reason_is_sent_once_a_full_socket_has_room_again() {
    for is_sealed in [false, true] {
        unless_late(|| {
            let [zero, one] = joined();
            let ((mut zero, mut to_zero), (mut one, mut from_one)) =
                (end(&zero, is_sealed), end(&one, is_sealed));
            let mut filled = 0;
            loop {
                match one.stream().write(&[0; 1 << 16]) {
                    Ok(length) => filled += length,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let begun = Instant::now();
            thread::scope(|scope| {
                let read = scope.spawn(|| {
                    thread::sleep(PAUSE);
                    let mut bytes = Vec::new();
                    let _ = from_one.read_to_end(&mut bytes);
                    bytes
                });
                let mut links = Links::new(1, vec![Some(one), None], PLENTY).unwrap();
                let error = links.give_up_on(0, Fault::Differs(Call::BARRIER)).to_string();
                let (bytes, took) = (read.join().unwrap(), begun.elapsed());
                if bytes.len() <= filled {
                    return (false, took);
                }
                to_zero.write_all(&bytes[filled..]).unwrap();
                to_zero.shutdown(Shutdown::Write).unwrap();
                (heard(&mut zero) == (0, Reason::Difference(error)), took)
            })
        });
    }
}

/// What rank 0 of 3 reports, which waits for the others.
fn error_of_waiting(links: &mut Links) -> CollectiveError {
    let mut words = [[0; 4]; 3];
    let mut all =
        words.each_mut().map(|word| Exchange { receive: Some(word), ..Exchange::default() });
    links.transfer(Transfer { number: 0, call: Call::BARRIER }, &mut all, None).unwrap_err()
}

#[test]
fn a_rank_that_suspects_one_that_does_not_exist_is_to_blame() {
    let [joined, _] = joined();
    let [(one, mut as_one), (two, _as_two)] = [(); 2].map(|()| end(&joined, false));
    as_one.write_all(&head(SUSPECT, 77, 0, Call::BARRIER)).unwrap();
    let mut links = Links::new(0, vec![None, Some(one), Some(two)], PLENTY).unwrap();
    assert_eq!(error_of_waiting(&mut links).rank(), Some(1));
}

/// What rank 0 reports after it has given up on rank 1, which says something more.
fn error_after(say: impl FnOnce(&mut Peer)) -> CollectiveError {
    let [joined, _] = joined();
    let [(one, mut as_one), (two, _as_two), (mut voice, mut its_words)] =
        [(); 3].map(|()| end(&joined, false));
    say(&mut voice);
    voice.hang_up();
    let mut words = Vec::new();
    its_words.read_to_end(&mut words).unwrap();

    let peers = vec![None, Some(one), Some(two)];
    let mut links = Links::new(0, peers, Duration::from_secs(10)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            as_one.read_exact(&mut [0; HEAD]).unwrap();
            thread::sleep(Duration::from_millis(700));
            as_one.write_all(&words).unwrap();
        });
        error_of_waiting(&mut links)
    })
}

#[test]
fn a_rank_on_a_busy_host_that_reports_late_that_it_waits_too_is_not_blamed() {
    let error = error_after(|one| one.suspect(2));
    assert!(matches!(error, CollectiveError::TimedOut { rank: 2, .. }), "{error}");
}

#[test]
fn a_rank_that_reports_late_which_rank_it_lost_is_not_blamed() {
    let error = error_after(|one| _ = one.abort(2, &Reason::Lost(REASON.to_owned())));
    assert!(
        matches!(&error, CollectiveError::Lost { rank: 2, reason, .. } if reason == REASON),
        "{error}"
    );
}
