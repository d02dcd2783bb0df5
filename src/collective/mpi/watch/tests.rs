//! Watches of several ranks in one process, without MPI.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc::Receiver;

use super::*;
use crate::call::Message as Passed;
use crate::element::ElementKind;
use crate::rendezvous::handshake::{ConnectionKey, Purpose};

const TIMEOUT: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(1200);

/// A rank of `size`, which has not made a call.
fn own(rank: u32, size: u32, heartbeat: &Arc<Heartbeat>) -> Own {
    let (rank, heartbeat) = (Rank::new(rank, size).unwrap(), Arc::clone(heartbeat));
    let hosts = (0..rank.size()).map(|rank| format!("node{rank}")).collect();
    let progress = Progress { calls: 0, since: Instant::now() };
    Own { rank, hosts, heartbeat, progress, times: Times::of(TIMEOUT) }
}

/// Whether a watch found something that begins so.
fn begins(found: &Option<String>, text: &str) -> bool {
    found.as_ref().is_some_and(|found| found.starts_with(text))
}

/// The watches of several ranks, each in its own thread, and what each one finds.
struct Ranks {
    heartbeats: Vec<Arc<Heartbeat>>,
    found: Vec<Receiver<Option<String>>>,
    port: u16,
}

impl Ranks {
    fn new(size: u32) -> Ranks {
        Ranks::after(size, |_| {})
    }

    /// Like `Ranks::new`, but calls `before` with rank 0's port before the other ranks start.
    fn after(size: u32, before: impl FnOnce(u16)) -> Ranks {
        Ranks::start(size, size, before)
    }

    /// Starts only the first `present` ranks of `size`.
    fn start(size: u32, present: u32, before: impl FnOnce(u16)) -> Ranks {
        let mut before = Some(before);
        let mut socket = Socket::open();
        let mut listens = socket.as_ref().and_then(Socket::listener_info).unwrap();
        listens.addresses = vec![Ipv4Addr::LOCALHOST.into()];
        let mut ranks = Ranks { heartbeats: Vec::new(), found: Vec::new(), port: listens.port };
        for rank in 0..present {
            if rank == 1
                && let Some(before) = before.take()
            {
                before(listens.port);
            }
            let heartbeat = Arc::new(Heartbeat::default());
            let (tell, found) = mpsc::channel();
            ranks.heartbeats.push(Arc::clone(&heartbeat));
            ranks.found.push(found);
            let own = own(rank, size, &heartbeat);
            let (socket, listens) = (socket.take(), listens.clone());
            thread::spawn(move || {
                let times = own.times;
                let lost = match socket.map(|socket| socket.star(times, size).unwrap()) {
                    Some(star) => coordinator::watch(own, star),
                    None => {
                        let star = Star::new(times).unwrap();
                        worker::watch(own, Some(listens), star, mpsc::channel().0)
                    }
                };
                tell.send(lost.map(|error| error.to_string()))
            });
        }
        // Let all ranks connect.
        thread::sleep(TIMEOUT / 2);
        ranks
    }

    fn calls(&self, calls: &[u64]) {
        for (heartbeat, &calls) in self.heartbeats.iter().zip(calls) {
            heartbeat.calls.store(calls, Ordering::Relaxed);
        }
    }

    fn end(&self) {
        for heartbeat in &self.heartbeats {
            heartbeat.ended.store(true, Ordering::Relaxed);
        }
    }

    fn found(&self) -> Vec<Option<String>> {
        self.found.iter().map(|found| found.recv_timeout(LONG).unwrap()).collect()
    }
}

#[test]
fn no_rank_is_missed_when_all_ranks_exit() {
    let ranks = Ranks::new(4);
    // No rank is inside a call (the counts are even), so none is late even after the timeout.
    ranks.calls(&[6, 6, 2, 8]);
    thread::sleep(2 * TIMEOUT);
    ranks.end();
    assert_eq!(ranks.found(), [const { None }; 4]);
}

#[test]
fn the_rank_that_has_not_come_to_a_call_is_named_by_all() {
    for late in 0..3 {
        let ranks = Ranks::new(3);
        let mut calls = [7; 3];
        calls[late] = 6;
        ranks.calls(&calls);
        for (own, found) in ranks.found().iter().enumerate() {
            let named = match own == late {
                true => format!("the other ranks no longer wait for this rank: rank {late}"),
                false => format!("rank {late} on node{late}"),
            };
            let text = format!("{named} did not arrive within 6 s: it hangs");
            assert!(begins(found, &text), "{found:?}, {text}");
        }
    }
}

#[test]
fn a_rank_that_hangs_between_messages_is_named_although_it_made_more_calls_than_those_who_wait() {
    let ranks = Ranks::new(3);
    ranks.calls(&[7, 100, 5]);
    for (own, found) in ranks.found().iter().enumerate() {
        let text = match own {
            1 => "the other ranks no longer wait for this rank: rank 1 did not arrive",
            _ => "rank 1 on node1 did not arrive within 6 s: it hangs",
        };
        assert!(begins(found, text), "{found:?}");
    }
}

#[test]
fn if_all_ranks_wait_none_is_named_although_one_made_fewer_calls() {
    for calls in [[7, 7], [3, 7], [7, 3]] {
        check_that_none_is_named(&calls);
    }
}

fn check_that_none_is_named(calls: &[u64; 2]) {
    let ranks = Ranks::new(2);
    ranks.calls(calls);
    let calls = [Passed::to(2, 0, ElementKind::F64, 2), Passed::from(3, 0, ElementKind::F64, 3)]
        .map(|message| message.as_half(false).said);
    let group = Arc::from_iter([4, 0, 1, 2]);
    *ranks.heartbeats[0].waits() = Some(Waits { calls, group });
    let found = ranks.found();
    let waits = |rank: usize, call| {
        let text = format!(
            "a rank did not arrive within 6 s; which one is unknown, because rank {rank} waited in \
             {call}: compare the calls of the ranks and their groups, "
        );
        begins(&found[rank], &text)
    };
    let both = "send_receive of 2 f64 to rank 1 and send_receive of 3 f64 from rank 2 in the group \
                of ranks 0-2, 4";
    let all = waits(0, both) && waits(1, "a call of all ranks");
    assert!(all, "{found:?}");
}

#[test]
fn the_only_rank_that_never_connected_is_named_if_all_others_wait() {
    let ranks = Ranks::start(3, 2, |_| {});
    ranks.calls(&[7, 7]);
    for found in ranks.found() {
        let text = "rank 2 on node2 did not arrive within 6 s: it hangs";
        assert!(begins(&found, text), "{found:?}");
    }
}

#[test]
fn of_two_ranks_that_never_connected_none_is_named() {
    let ranks = Ranks::start(4, 2, |_| {});
    ranks.calls(&[7, 7]);
    for found in ranks.found() {
        assert!(begins(&found, "a rank did not arrive within 6 s"), "{found:?}");
    }
}

/// A thousand silent connections, and some that send what no rank sends.
fn strangers(port: u16) -> Vec<TcpStream> {
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut strangers: Vec<_> = (0..1000).map(|_| connect()).collect();
    // The last one is longer than any hello.
    let greetings: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"mpienv\r\n",
        b"\0\0\0\x15{\"beat\":{\"calls\":1}}",
        b"",
        &[b'x'; 100_000],
    ];
    for greeting in greetings {
        let mut stranger = connect();
        // Rank 0 may have closed already.
        let _ = stranger.write_all(greeting);
        strangers.push(stranger);
    }
    strangers
}

#[test]
fn strangers_give_way_and_change_nothing_and_the_port_closes_once_all_have_come() {
    let mut held = Vec::new();
    let ranks = Ranks::after(3, |port| held = strangers(port));
    let begun = Instant::now();
    let is_closed = || {
        let found = TcpStream::connect((Ipv4Addr::LOCALHOST, ranks.port));
        found.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    while !is_closed() {
        assert!(begun.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    }
    ranks.calls(&[6, 6, 6]);
    thread::sleep(2 * TIMEOUT);
    ranks.end();
    assert_eq!(ranks.found(), [const { None }; 3]);
}

/// What rank 0 finds if rank 1 completes the handshake and then calls `said`, which is a fault
/// or not.
fn found_after(is_fault: bool, said: impl FnOnce(&mut Star, TcpStream)) -> Option<String> {
    let socket = Socket::open().unwrap();
    let address = (Ipv4Addr::LOCALHOST, socket.listener_info().unwrap().port).into();
    let key = ConnectionKey::new(&socket.key, Purpose::Watch, 0);
    let heartbeat = Arc::new(Heartbeat::default());
    let own = own(0, 2, &heartbeat);
    let zero = thread::spawn(move || {
        let star = socket.star(own.times, 2).unwrap();
        coordinator::watch(own, star).map(|error| error.to_string())
    });
    let channel = worker::shake_hands(address, &key, Rank::new(1, 2).unwrap()).unwrap();
    let bare = channel.stream.try_clone().unwrap();
    let mut one = Star::new(Times::of(TIMEOUT)).unwrap();
    one.add(channel).unwrap();
    one.send_to_all(&Message::Beat { calls: 0 }.bytes());
    said(&mut one, bare);
    let begun = Instant::now();
    while is_fault && !zero.is_finished() {
        assert!(begun.elapsed() < LONG, "no fault was found");
        thread::sleep(Duration::from_millis(1));
    }
    // Otherwise, give rank 0 time to find one all the same.
    thread::sleep(if is_fault { Duration::ZERO } else { TIMEOUT / 8 });
    heartbeat.ended.store(true, Ordering::Relaxed);
    zero.join().unwrap()
}

/// A message of the star without its tag.
fn message(text: &[u8]) -> Vec<u8> {
    let release = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    let version = release.map(|part| part.parse::<u16>().unwrap().to_be_bytes());
    let length = (text.len() as u32).to_be_bytes();
    [b"mpienv\r\n", &[0, 7][..], version.as_flattened(), &[10], &length, text].concat()
}

#[test]
fn a_message_to_the_watch_that_was_changed_or_made_up_is_noticed_and_its_rank_is_named() {
    assert_eq!(
        found_after(false, |one, _| one.send_to_all(&Message::Beat { calls: 1 }.bytes())),
        None
    );
    let made_up = |text: &[u8]| [&message(text)[..], &[7; 32]].concat();
    for bytes in
        [made_up(b"{\"beat\":{\"calls\":1}}"), made_up(b"\"bye\""), made_up(b""), vec![0xff; 100]]
    {
        let found = found_after(true, |_, mut bare| bare.write_all(&bytes).unwrap()).unwrap();
        let text = "rank 1 on node1 is lost: its connection broke: a message was changed, repeated or left out on the way";
        assert_eq!(found, text);
    }
}

#[test]
fn no_rank_makes_a_call_before_rank_0_knows_it_and_would_notice_that_it_is_killed() {
    let socket = Socket::open().unwrap();
    let infos: Vec<HostInfo> = [socket.listener_info(), None].map(HostInfo::own).into();
    // Until then, rank 0 is busy with others.
    let answers_at = Instant::now() + TIMEOUT / 8;
    let mut star = socket.star(Times::of(TIMEOUT), 2).unwrap();
    let zero = thread::spawn(move || {
        thread::sleep(TIMEOUT / 8);
        while !star.absent().is_empty() {
            star.turn(&[]).unwrap();
        }
        star
    });
    let on_lost = OnLost(Arc::new(|_| 0));
    let watch = Watch::begin(Rank::new(1, 2).unwrap(), None, &infos, TIMEOUT, on_lost).unwrap();
    assert!(Instant::now() >= answers_at);
    // Rank 0 does not end before this rank, which would take that for a loss.
    let star = zero.join().unwrap();
    drop(watch);
    drop(star);
}

#[test]
fn a_rank_that_loses_rank_0_names_it_only_if_no_launcher_ends_this_rank_too() {
    let socket = Socket::open().unwrap();
    let (listens, times) = (socket.listener_info(), Times::of(TIMEOUT));
    let listens =
        listens.map(|listens| Listener { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..listens });
    let mut zero = socket.star(times, 2).unwrap();
    let one = thread::spawn(move || {
        let own = own(1, 2, &Arc::default());
        let star = Star::new(times).unwrap();
        worker::watch(own, listens, star, mpsc::channel().0).map(|error| error.to_string())
    });
    while !zero.absent().is_empty() {
        zero.turn(&[]).unwrap();
    }
    let begun = Instant::now();
    drop(zero);
    let text = "rank 0 on node0 is lost: its process exited or was killed";
    assert_eq!(one.join().unwrap().as_deref(), Some(text));
    assert!(begun.elapsed() >= LAUNCHER_FIRST);
}

#[test]
fn another_jobs_key_opens_no_watch() {
    let socket = Socket::open().unwrap();
    let address = (Ipv4Addr::LOCALHOST, socket.listener_info().unwrap().port).into();
    let heartbeat = Arc::new(Heartbeat::default());
    let own = own(0, 2, &heartbeat);
    let zero = thread::spawn(move || {
        let star = socket.star(own.times, 2).unwrap();
        coordinator::watch(own, star).is_none()
    });
    for (key, purpose) in [([8; 32], Purpose::Watch), ([8; 32], Purpose::Collective)] {
        let key = ConnectionKey::new(&key, purpose, 0);
        assert!(worker::shake_hands(address, &key, Rank::new(1, 2).unwrap()).is_err());
    }
    heartbeat.ended.store(true, Ordering::Relaxed);
    assert!(zero.join().unwrap());
}

#[test]
fn a_rank_that_ended_its_group_is_named_by_those_who_wait_for_it() {
    for left in 0..3 {
        let ranks = Ranks::new(3);
        ranks.calls(&[7; 3]);
        ranks.heartbeats[left].ended.store(true, Ordering::Relaxed);
        for (own, found) in ranks.found().into_iter().enumerate() {
            let text = format!(
                "rank {left} called close or dropped its group, rank {own} a call of all ranks: a \
                 rank that leaves early has returned, closed its group, or failed and printed why"
            );
            assert_eq!(found, (own != left).then_some(text));
        }
    }
}

#[test]
fn a_lost_rank_ends_a_process_in_a_call_and_none_that_ends_its_group_before() {
    let lost = || CollectiveError::Lost { rank: 1, host: String::new(), reason: GONE.to_owned() };
    let late = CollectiveError::TimedOut { rank: 1, host: String::new(), seconds: 1.0 };
    let heartbeat = Arc::new(Heartbeat::default());
    assert!(heartbeat.must_exit(&late, LONG));
    let begun = Instant::now();
    assert!(heartbeat.must_exit(&lost(), TIMEOUT / 8) && begun.elapsed() >= TIMEOUT / 8);
    let waiting = || {
        let heartbeat = Arc::clone(&heartbeat);
        let waiting = thread::spawn(move || heartbeat.must_exit(&lost(), LONG));
        thread::sleep(TIMEOUT / 8);
        assert!(!waiting.is_finished());
        waiting
    };
    let calls = waiting();
    heartbeat.calls.store(1, Ordering::Relaxed);
    assert!(calls.join().unwrap());
    heartbeat.calls.store(2, Ordering::Relaxed);
    let ends = waiting();
    heartbeat.ended.store(true, Ordering::Relaxed);
    assert!(!ends.join().unwrap());
}
