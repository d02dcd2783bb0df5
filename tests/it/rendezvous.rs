//! Ranks meet over real sockets, while strangers of all kinds connect.

mod master;
mod strangers;

use crate::support::clock::SLACK;
use crate::support::measured::longer_than;
use crate::support::wire::{self, Played, WELCOME};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mpienv::rendezvous::{Gathered, LONGEST_BLOB, Meeting, Rendezvous, RendezvousError};
use mpienv::{ErrorKind, Host, Port, Rank};

/// How long ranks wait that do not all meet: much longer than those that do.
fn short() -> Duration {
    longer_than(Duration::from_secs(2), || {
        let port = free_port();
        let ranks: Vec<_> = (0..9).map(|i| start(part(i, 9, port), "")).collect();
        ranks.into_iter().for_each(|rank| drop(rank.join().unwrap().unwrap()));
    })
}

fn free_port() -> Port {
    Port::new(crate::support::port::free_port()).unwrap()
}

fn part(index: u32, size: u32, port: Port) -> Rendezvous {
    Rendezvous::new(Rank::new(index, size).unwrap(), Host::LOOPBACK, port)
        .timeout(SLACK)
        .token("job 1")
}

fn start(part: Rendezvous, blob: &str) -> JoinHandle<Result<Meeting, RendezvousError>> {
    let blob = blob.to_owned();
    thread::spawn(move || part.all_gather(blob))
}

fn stranger(port: Port) -> TcpStream {
    let until = Instant::now() + SLACK;
    while Instant::now() < until {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port.get())) {
            stream.set_read_timeout(Some(SLACK)).unwrap();
            return stream;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("rank 0 never listened");
}

/// A rank played by this program, which wants the table and has no blob.
fn played(rank: u32, size: u32) -> Played<'static> {
    wire::played(rank, size, true, b"job 1", 0)
}

fn blobs(meeting: &Meeting) -> Vec<String> {
    meeting
        .members()
        .iter()
        .map(|member| String::from_utf8(member.blob().to_vec()).unwrap())
        .collect()
}

#[test]
fn everybody_gets_everybodys_blob() {
    let port = free_port();
    let ranks: Vec<_> = (0..5).map(|i| start(part(i, 5, port), &"x".repeat(i as usize))).collect();
    for rank in ranks {
        let meeting = rank.join().unwrap().unwrap();
        assert_eq!(blobs(&meeting), ["", "x", "xx", "xxx", "xxxx"]);
        assert!(
            meeting
                .members()
                .iter()
                .all(|member| member.address() == Host::LOOPBACK.address().unwrap())
        );
        assert_eq!(meeting.members()[4].at(port).to_string(), format!("127.0.0.1:{port}"));
        assert_eq!(meeting.rejected(), 0);
    }
}

#[test]
fn the_largest_blobs_arrive_whole() {
    let port = free_port();
    let ranks: Vec<_> = (0..3u8)
        .map(|i| thread::spawn(move || part(i.into(), 3, port).all_gather(vec![i; LONGEST_BLOB])))
        .collect();
    for rank in ranks {
        let meeting = rank.join().unwrap().unwrap();
        for (i, member) in (0u8..).zip(meeting.members()) {
            assert!(
                member.blob().len() == LONGEST_BLOB && member.blob().iter().all(|&byte| byte == i)
            );
        }
    }
}

#[test]
fn only_rank_0_gets_what_is_gathered() {
    let port = free_port();
    let other = thread::spawn(move || part(1, 2, port).gather("b"));
    assert_eq!(blobs(&part(0, 2, port).gather("a").unwrap().unwrap()), ["a", "b"]);
    assert!(other.join().unwrap().unwrap().is_none());
}

#[test]
fn a_rank_alone_needs_no_port() {
    let port = free_port();
    let _taken = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
    assert_eq!(blobs(&part(0, 1, port).all_gather("me").unwrap()), ["me"]);
}

#[test]
fn ranks_meet_over_ipv6_and_by_name() {
    for (server, client) in [("::1", "::1"), ("localhost", "localhost"), ("localhost", "127.0.0.1")]
    {
        let port = free_port();
        let at = |i, host: &str| {
            Rendezvous::new(Rank::new(i, 2).unwrap(), host.parse().unwrap(), port).timeout(SLACK)
        };
        let other = start(at(1, client), "b");
        let meeting = at(0, server).all_gather("a").unwrap();
        assert_eq!(blobs(&meeting), ["a", "b"]);
        assert!(meeting.members()[1].address().is_loopback());
        other.join().unwrap().unwrap();
    }
}

#[test]
fn every_address_is_served_unless_the_master_is_a_loopback_address() {
    let port = free_port();
    let at = |i, host: &str| {
        Rendezvous::new(Rank::new(i, 3).unwrap(), host.parse().unwrap(), port).timeout(SLACK)
    };
    let others = [start(at(1, "127.0.0.1"), ""), start(at(2, "::1"), "")];
    // An address for documentation: rank 0 can listen even if its host does not have it.
    let meeting = at(0, "192.0.2.7").all_gather("").unwrap();
    assert_eq!(meeting.members()[0].address().to_string(), "192.0.2.7");
    for other in others {
        assert_eq!(other.join().unwrap().unwrap().members().len(), 3);
    }
}

#[test]
fn a_port_in_use_is_an_error_at_once() {
    let port = free_port();
    let _taken = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
    let error = part(0, 2, port).all_gather("").unwrap_err();
    assert!(matches!(error, RendezvousError::PortInUse { .. }));
    assert!(error.to_string().contains(&format!("port {port} is in use")), "{error}");
    assert_eq!(error.kind(), ErrorKind::Refused);
}

#[test]
fn missing_ranks_are_named_to_all_that_came() {
    let port = free_port();
    let short = short();
    let others = [2, 7].map(|i| start(part(i, 9, port).timeout(short), ""));
    // The others started before rank 0: they wait for its report beyond their own deadline.
    thread::sleep(Duration::from_millis(200));
    let error = part(0, 9, port).timeout(short).all_gather("").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(
        error.to_string().starts_with("ranks 1,3-6,8 of 9 have not connected to 127.0.0.1:"),
        "{error}"
    );
    for other in others {
        let received = other.join().unwrap().unwrap_err();
        assert_eq!(
            (received.to_string(), received.kind()),
            (error.to_string(), ErrorKind::TimedOut)
        );
    }
}

#[test]
fn a_rank_that_comes_twice_is_named_to_all() {
    let port = free_port();
    let others = [1, 2, 2].map(|i| start(part(i, 4, port), ""));
    let error = part(0, 4, port).all_gather("").unwrap_err();
    assert!(
        error.to_string().starts_with(
            "two processes say they are rank 2: one at 127.0.0.1 and one at 127.0.0.1;"
        ),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Refused);
    for other in others {
        assert_eq!(other.join().unwrap().unwrap_err().to_string(), error.to_string());
    }
}

#[test]
fn ranks_that_disagree_on_the_world_size_are_named_to_all() {
    let port = free_port();
    let timeout = 2 * short();
    let at = |index, size| part(index, size, port).timeout(timeout);
    let others = [start(at(1, 3), ""), start(at(2, 4), "")];
    let error = at(0, 3).all_gather("").unwrap_err();
    assert!(error.to_string().contains("ranks 0-1 say 3, rank 2 (127.0.0.1) says 4"), "{error}");
    for other in others {
        assert_eq!(other.join().unwrap().unwrap_err().to_string(), error.to_string());
    }
}

/// A rank with the setting `port`; ranks without this setting meet at `default`.
fn with_port(index: u32, port: Port, default: Port, timeout: Duration) -> Rendezvous {
    part(index, 4, port).default_port(default).timeout(timeout)
}

#[test]
fn ranks_that_disagree_on_the_port_are_named_to_all_with_theirs() {
    // The setting reached only rank 0's host, or only the other rank's host.
    for is_first_set in [true, false] {
        let (user, default) = (free_port(), free_port());
        let (first, second) = if is_first_set { (user, default) } else { (default, user) };
        let (timeout, begun) = (short(), Instant::now());
        let others = [(1, first), (2, second), (3, second)]
            .map(|(i, port)| start(with_port(i, port, default, timeout), ""));
        let error = with_port(0, first, default, timeout).all_gather("").unwrap_err();
        let said = format!(
            "the ranks disagree on MASTER_PORT: ranks 0-1 say {first}, ranks 2-3 (127.0.0.1) say {second}; only some ranks"
        );
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!(error.kind(), ErrorKind::Refused);
        for other in others {
            assert_eq!(other.join().unwrap().unwrap_err().to_string(), error.to_string());
        }
        assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
    }
}

#[test]
fn another_job_at_the_default_port_goes_on_undisturbed() {
    let (user, default) = (free_port(), free_port());
    // Rank 0 of this job waits in vain, as does rank 1 of another job, which uses the default port
    // later.
    let timeout = short();
    let vain = start(with_port(0, user, default, timeout), "");
    thread::sleep(timeout * 7 / 10);
    let later = |i| {
        Rendezvous::new(Rank::new(i, 2).unwrap(), Host::LOOPBACK, default)
            .timeout(SLACK)
            .token("job 2")
    };
    let other = start(later(1), "b");
    let error = vain.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(!error.to_string().contains("rejected"), "{error}");
    assert_eq!(blobs(&later(0).all_gather("a").unwrap()), ["a", "b"]);
    other.join().unwrap().unwrap();
}

#[test]
fn another_version_is_named_to_all() {
    let [protocol, ..] = wire::own_version();
    // With the same frames or with different ones: all ranks of a job run the same program.
    for protocol in [protocol, protocol - 1, 77] {
        let port = free_port();
        let other = start(part(1, 3, port), "");
        let old = thread::spawn(move || {
            let mut line = stranger(port);
            Played { version: [protocol, 9, 8, 7], ..played(2, 3) }.join(&mut line, b"");
            let mut answer = Vec::new();
            line.read_to_end(&mut answer).unwrap();
            answer.truncate(answer.len() - 32);
            String::from_utf8_lossy(&answer).into_owned()
        });
        let error = part(0, 3, port).all_gather("").unwrap_err().to_string();
        let said = format!(
            "rank 2 (127.0.0.1) runs mpienv 9.8.7 (protocol {protocol}), rank 0 runs mpienv 0."
        );
        assert!(error.starts_with(&said), "{error}");
        assert_eq!(other.join().unwrap().unwrap_err().to_string(), error);
        assert!(old.join().unwrap().ends_with(&error));
    }
}

#[test]
fn a_rank_lost_after_its_hello_is_named_to_all() {
    let port = free_port();
    let other = start(part(1, 4, port), "");
    let lost = thread::spawn(move || {
        let mut line = stranger(port);
        played(2, 4).join(&mut line, b"");
        line.read_exact(&mut [0; WELCOME]).unwrap();
    });
    let error = part(0, 4, port).all_gather("").unwrap_err();
    lost.join().unwrap();
    assert!(
        error.to_string().starts_with("rank 2 (127.0.0.1) connected, but was lost before"),
        "{error}"
    );
    let received = other.join().unwrap().unwrap_err();
    assert_eq!((received.to_string(), received.kind()), (error.to_string(), ErrorKind::Lost));
}

#[test]
fn a_rank_that_is_stopped_or_cut_off_after_it_came_is_named_to_all() {
    let port = free_port();
    let timeout = short();
    let short = |index| part(index, 3, port).timeout(timeout);
    let zero = start(short(0), "");
    // Its connection stays open, but no data arrives, as if its host were cut off.
    let mut one = stranger(port);
    played(1, 3).join(&mut one, b"");
    one.read_exact(&mut [0; WELCOME]).unwrap();
    let two = start(short(2), "");
    let begun = Instant::now();
    let received = two.join().unwrap().unwrap_err();
    let text = "rank 1 (127.0.0.1) connected, then stopped answering within ";
    assert!(received.to_string().starts_with(text), "{received}");
    let error = zero.join().unwrap().unwrap_err();
    assert_eq!((received.to_string(), received.kind()), (error.to_string(), ErrorKind::TimedOut));
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
    drop(one);
}

#[test]
fn a_rank_that_answers_in_time_has_come_whatever_it_did_before() {
    let port = free_port();
    let zero = start(part(0, 2, port), "");
    let mut one = stranger(port);
    let mut session = played(1, 2).join(&mut one, b"");
    thread::sleep(Duration::from_millis(300));
    wire::answer_roll_call(&mut one, &mut session);
    assert_eq!(zero.join().unwrap().unwrap().members().len(), 2);
}

#[test]
fn what_rank_0_answers_reaches_the_others() {
    let port = free_port();
    let gather = move |index, answer: usize| {
        part(index, 3, port).gather_with_reply([7], move |_| vec![9; answer])
    };
    let others = [1, 2].map(|index| thread::spawn(move || gather(index, 0)));
    assert!(matches!(gather(0, 1000), Ok(Gathered::All(meeting)) if meeting.members().len() == 3));
    for other in others {
        assert!(
            matches!(other.join().unwrap(), Ok(Gathered::Reply(answer)) if answer == [9; 1000])
        );
    }
    let port = free_port();
    let gather = move |index, answer: usize| {
        part(index, 2, port).gather_with_reply([7], move |_| vec![9; answer])
    };
    let other = thread::spawn(move || gather(1, 0));
    let error = gather(0, LONGEST_BLOB + 1).unwrap_err();
    assert!(matches!(error, RendezvousError::BlobTooLong { .. }), "{error}");
    assert_eq!(other.join().unwrap().unwrap_err().to_string(), error.to_string());
}

#[test]
fn a_rank_whose_connection_broke_may_come_again() {
    let port = free_port();
    let server = start(part(0, 3, port), "a");
    let mut line = stranger(port);
    played(1, 3).join(&mut line, b"");
    line.read_exact(&mut [0; WELCOME]).unwrap();
    drop(line);
    let others = [start(part(1, 3, port), "b"), start(part(2, 3, port), "c")];
    assert_eq!(blobs(&server.join().unwrap().unwrap()), ["a", "b", "c"]);
    for other in others {
        other.join().unwrap().unwrap();
    }
}

#[test]
fn a_blob_or_token_beyond_the_bound_is_an_error_before_any_connection() {
    let port = free_port();
    assert!(matches!(
        part(0, 2, port).all_gather(vec![0; LONGEST_BLOB + 1]),
        Err(RendezvousError::BlobTooLong { .. })
    ));
    assert!(matches!(
        part(0, 2, port).token([0; 256]).all_gather(""),
        Err(RendezvousError::TokenTooLong { length: 256, .. })
    ));
}

#[test]
fn three_hundred_ranks_meet_in_a_moment() {
    let port = free_port();
    let begun = Instant::now();
    let ranks: Vec<_> = (0..300).map(|i| start(part(i, 300, port), &i.to_string())).collect();
    for rank in ranks {
        assert_eq!(rank.join().unwrap().unwrap().members()[299].blob(), b"299");
    }
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
}
