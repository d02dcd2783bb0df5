//! Two ends in one process, and what an attacker between them can do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use proptest::prelude::*;

use super::*;
use crate::auth::{JobKey, Role, Run};

const LONG: Duration = Duration::from_secs(1200);

/// Both ends of a connection, rank 0's first, and the bare socket of the other.
fn ends() -> (Star, Star, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let zero = listener.accept().unwrap().0;
    let both = JobKey::new(b"secret", Role::Launches, Run::default()).directions(b"g", b"h");
    let bare = one.try_clone().unwrap();
    let star = |rank, stream, directions| {
        let mut star = Star::new(Times { beat: LONG, silence: LONG }).unwrap();
        // No heartbeat disturbs what the tests count.
        star.beat_at += LONG;
        star.add(Channel { rank, stream, directions }).unwrap();
        star
    };
    (star(1, zero, both.clone()), star(0, one, both.reversed()), bare)
}

/// What the other end said until it was lost, and why it was.
fn until_lost(star: &mut Star) -> (Vec<Vec<u8>>, io::Error) {
    let mut all = Vec::new();
    loop {
        for (_, heard) in star.turn(&[]).unwrap() {
            match heard {
                Heard::Said(said) => all.push(said),
                Heard::Lost(error) => return (all, error),
                Heard::Came => panic!("no rank can come"),
            }
        }
    }
}

/// What rank 1 sends, byte by byte.
fn recorded(payload: &[u8]) -> Vec<u8> {
    let (mut zero, mut one, _) = ends();
    one.send_to_all(payload);
    let Some(line) = zero.lines.remove(0) else { panic!("rank 0 has no connection") };
    let mut bytes = vec![0; REPLY_HEAD + payload.len() + LENGTH];
    let mut stream = TcpStream::from(line.stream);
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn messages_go_both_ways_and_have_a_limit() {
    let (mut zero, mut one, _) = ends();
    let long = vec![7; LONGEST_BLOB];
    one.send_to_all(b"order");
    let sent = long.clone();
    let sender = std::thread::spawn(move || {
        zero.send_to_all(b"event");
        zero.send_to_all(&sent);
        // It is not sent.
        zero.send_to_all(&[&sent[..], b"1"].concat());
        let heard = zero.turn(&[]).unwrap();
        assert!(matches!(&heard[..], [(1, Heard::Said(said))] if said == b"order"));
        // The last message arrives whole although its sender closes.
        zero.close(LONG);
    });
    let (said, error) = until_lost(&mut one);
    assert!(said == [b"event".to_vec(), long]);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    drop(one);
    sender.join().unwrap();
}

#[test]
fn who_is_silent_is_lost() {
    let (mut zero, _one, _) = ends();
    zero.times = Times { beat: Duration::from_millis(1), silence: Duration::from_millis(50) };
    zero.beat_at = Instant::now();
    assert_eq!(until_lost(&mut zero).1.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn who_spoke_while_this_process_was_stopped_is_not_lost() {
    let (mut zero, mut one, _) = ends();
    zero.times = Times { beat: Duration::from_millis(1), silence: Duration::from_millis(50) };
    zero.beat_at = Instant::now();
    let member = zero.lines.get_mut(0).and_then(|line| line.state.member()).unwrap();
    member.heard_at = Instant::now();
    one.send_to_all(b"event");
    std::thread::sleep(Duration::from_millis(100));
    let heard = zero.turn(&[]).unwrap();
    assert!(matches!(&heard[..], [(1, Heard::Said(said))] if said == b"event"), "{heard:?}");
}

#[test]
fn a_message_that_is_repeated_reflected_or_announced_too_long_is_refused() {
    let refuse = |star: &mut Star, said: &[&[u8]]| {
        let (all, error) = until_lost(star);
        assert_eq!(
            (all, error.to_string()),
            (said.iter().map(|said| said.to_vec()).collect(), altered().to_string())
        );
    };
    let once = recorded(b"event");
    let (mut zero, _one, mut bare) = ends();
    bare.write_all(&[&once[..], &once].concat()).unwrap();
    refuse(&mut zero, &[b"event"]);
    let (mut zero, _one, mut bare) = ends();
    zero.send_to_all(b"event");
    let mut reflected = vec![0; once.len()];
    bare.set_nonblocking(false).unwrap();
    bare.read_exact(&mut reflected).unwrap();
    bare.write_all(&reflected).unwrap();
    refuse(&mut zero, &[]);
    let (mut zero, _one, mut bare) = ends();
    bare.write_all(&[&once[..17], &[0xff; 4]].concat()).unwrap();
    refuse(&mut zero, &[]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_not_what_the_other_end_sent_is_refused(
        payload in proptest::collection::vec(any::<u8>(), 1..200), at: prop::sample::Index, change in 1..=255u8,
    ) {
        let mut bytes = recorded(&payload);
        let place = at.index(bytes.len());
        bytes[place] ^= change;
        let (mut zero, _one, mut bare) = ends();
        bare.write_all(&bytes).unwrap();
        bare.shutdown(Shutdown::Write).unwrap();
        prop_assert_eq!(until_lost(&mut zero).0, Vec::<Vec<u8>>::new());
    }

    #[test]
    fn noise_is_refused(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (mut zero, _one, mut bare) = ends();
        bare.write_all(&noise).unwrap();
        bare.shutdown(Shutdown::Write).unwrap();
        prop_assert_eq!(until_lost(&mut zero).0, Vec::<Vec<u8>>::new());
    }
}
