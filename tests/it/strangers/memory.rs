//! What rank 0 holds while an attacker floods its port. Without a secret, every hello of the
//! attacker is correct.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::process::Child;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use mpienv::rendezvous::{LONGEST_BLOB, Rendezvous};
use mpienv::{Host, Port, Rank};

use super::{ended, free_port, job, played, rank, rank_after, stranger};
use crate::support::attacker::{Claim, Line, Said, flood, peak_during};
use crate::support::clock::SLACK;
use crate::support::launched::signal;
use crate::support::processes::{state, until};
use crate::support::timeout::{PATIENT, in_time};
use crate::support::wire;

/// The limit on rank 0's memory in KiB: 64 MB.
const MOST: u64 = 64_000;
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// How many connections an attacker holds. Before rank 0 limited what they send, a fifth of them
/// exceeded the limit.
const CROWD: u64 = 400;
/// How long an attack lasts before the last rank comes.
const ATTACK: Duration = Duration::from_millis(1500);

/// Waits until rank 0 listens.
fn listening(port: u16) {
    drop(stranger(port, b""));
}

/// Attacks rank 0 of four, whose other ranks come meanwhile, and returns how much memory it took.
fn honest_ranks_meet(token: &str, from: Ipv4Addr, say: &(dyn Fn(u64, &[u8]) -> Said + Sync)) {
    let port = free_port();
    let zero = rank(0, 4, port, token, &["--timeout", PATIENT]);
    listening(port);
    let early = [1, 2].map(|index| rank(index, 4, port, token, &["--timeout", PATIENT]));
    let process = zero.id();
    let (ends, most) = peak_during(process, || {
        flood(from, port, CROWD, say, || {
            thread::sleep(ATTACK);
            let last = rank(3, 4, port, token, &["--timeout", PATIENT]);
            early.into_iter().chain([last, zero]).map(ended).collect::<Vec<_>>()
        })
    });
    for (code, _, stderr) in ends {
        assert_eq!(code, Some(0), "{stderr}");
    }
    assert!(most < MOST, "{most} KiB");
}

#[test]
fn blobs_that_never_end_take_little_memory_and_the_ranks_meet() {
    let key = wire::job_key(b"");
    // Of every rank, for both purposes.
    honest_ranks_meet("", HERE, &|number, greeting| {
        let rank = 1 + (number % 3) as u32;
        Claim { purpose: (number % 2) as u8, ..Claim::long(&key, rank, 4) }
            .hello(greeting)
            .unfinished()
    });
}

#[test]
fn hellos_that_no_rank_sends_take_little_memory_and_the_ranks_meet() {
    let port = 1;
    for token in ["", &job(port)] {
        let key = wire::job_key(token.as_bytes());
        honest_ranks_meet(token, ELSEWHERE, &|number, greeting| {
            let whole = Claim { length: 500, port: 7, ..Claim::long(&key, 1, 4) };
            let cut = |at: usize| Said::bytes(whole.hello(greeting).front[..at].to_vec());
            match number % 10 {
                // Half open, and cut off in the middle.
                0 => Said::bytes(Vec::new()),
                1 => cut(8),
                2 => cut(114),
                3 => whole.hello(greeting).unfinished(),
                // A length that is too long, or that its purpose does not permit.
                4 => Claim { length: u32::MAX, ..whole }.hello(greeting),
                5 => Claim { purpose: 2, length: 1 << 20, ..whole }.hello(greeting),
                // Purposes of other connections and of none, and a rank beyond the world.
                6 => Claim { purpose: 3 + (number / 10 % 4) as u8, length: 0, ..whole }
                    .hello(greeting),
                7 => Claim { rank: 4, ..whole }.hello(greeting),
                // The blob before the proof, and a hello for another greeting.
                8 => {
                    let Said { front, .. } = whole.hello(greeting);
                    Said { front: front[..83].to_vec(), zeros: 1 << 20, back: front[83..].to_vec() }
                }
                _ => Claim::long(&key, 1, 4).hello(&[0; 53]),
            }
        });
    }
}

/// Attacks rank 0 of `size`, which must end with an error that contains `expected`.
fn the_meeting_fails(
    size: u32,
    timeout: &str,
    expected: &str,
    claim: &(dyn Fn(u64) -> Claim<'static> + Sync),
) {
    let port = free_port();
    let zero: Child = rank(0, size, port, "", &["--timeout", timeout]);
    listening(port);
    let process = zero.id();
    let say = |number, greeting: &[u8]| claim(number).hello(greeting);
    let ((code, _, stderr), most) =
        peak_during(process, || flood(HERE, port, CROWD, &say, || ended(zero)));
    assert!(code.is_some_and(|code| code != 0) && stderr.contains(expected), "{code:?} {stderr}");
    assert!(most < MOST, "{expected}: {most} KiB");
}

#[test]
fn hellos_that_end_a_meeting_take_little_memory() {
    static KEY: LazyLock<[u8; 32]> = LazyLock::new(|| wire::job_key(b""));
    fn long(rank: u32, size: u32) -> Claim<'static> {
        Claim::long(&KEY, rank, size)
    }
    type Sort = (u32, &'static str, &'static str, &'static (dyn Fn(u64) -> Claim<'static> + Sync));
    let sorts: [Sort; 6] = [
        (4, PATIENT, "two processes say they are rank", &|number| long((number % 2) as u32, 4)),
        (4, PATIENT, "the ranks disagree on the world size", &|number| long(1, 5 + number as u32)),
        (4, PATIENT, "the ranks disagree on MASTER_PORT", &|number| Claim {
            purpose: 2,
            length: 0,
            port: 1 + number as u16,
            ..long(1, 4)
        }),
        (4, PATIENT, "runs mpienv", &|_| Claim { protocol: 7, ..long(1, 4) }),
        // All ranks are the attacker's.
        (120, PATIENT, "the ranks brought more than 16 MiB in all", &|number| Claim {
            purpose: 1,
            ..long(1 + (number % 119) as u32, 120)
        }),
        // So many that those who come twice are never as many as the ranks: then the time is up.
        (4000, "3", "have not connected", &|number| long(1 + number as u32 % 15, 4000)),
    ];
    thread::scope(|scope| {
        for (size, timeout, expected, claim) in sorts {
            scope.spawn(move || the_meeting_fails(size, timeout, expected, claim));
        }
    });
}

#[test]
fn blobs_at_the_fallback_port_take_little_memory() {
    let heard = "the ranks disagree on MASTER_PORT";
    let attack = |timeout: u32| {
        let (port, fallback) = (free_port(), free_port());
        let (token, range) =
            (job(port), format!("export MPIENV_PORT_RANGE={fallback}-{fallback};"));
        let key = wire::job_key(token.as_bytes());
        // Rank 0 listens there in the last quarter of its time.
        let zero =
            rank_after(&range, 0, 4, port, &token, &["--timeout", &(2 * timeout).to_string()]);
        let process = zero.id();
        let say = |number, greeting: &[u8]| {
            Claim { port, ..Claim::long(&key, 1 + (number % 3) as u32, 4) }.hello(greeting)
        };
        peak_during(process, || flood(HERE, fallback, CROWD, &say, || ended(zero)))
    };
    let ((code, _, stderr), most) = in_time(attack, |((_, _, stderr), _)| stderr.contains(heard));
    assert!(code != Some(0) && stderr.contains(heard), "{code:?} {stderr}");
    assert!(most < MOST, "{most} KiB");
}

#[test]
fn a_long_blob_gets_in_among_blobs_that_never_end() {
    let (port, key) = (free_port(), wire::job_key(b""));
    let part = move |index| {
        let rank = Rank::new(index, 3).unwrap();
        let part = Rendezvous::new(rank, Host::LOOPBACK, Port::new(port).unwrap()).timeout(SLACK);
        thread::spawn(move || {
            part.all_gather(vec![7; LONGEST_BLOB]).map(|meeting| meeting.members().len())
        })
    };
    let zero = part(0);
    listening(port);
    // It does not claim a rank that comes here, because its own hello would then be complete.
    let say = |_, greeting: &[u8]| Claim::long(&key, 1, 3).hello(greeting).unfinished();
    let met =
        flood(HERE, port, 60, &say, || [part(1), part(2), zero].map(|part| part.join().unwrap()));
    assert!(met.iter().all(|met| matches!(met, Ok(3))), "{met:?}");
}

#[test]
fn a_rank_that_gave_up_before_its_long_blob_was_read_may_come_again() {
    const LENGTH: u32 = 2000;
    let port = free_port();
    let zero = rank(0, 2, port, "", &[]);
    let folder = format!("/proc/{}", zero.id());
    let mut gone = stranger(port, b"");
    let greeting = wire::hear_greeting(&mut gone);
    let (hello, _) = played(1, 2, "", LENGTH).hello(&greeting, &[7; LENGTH as usize]);
    // Rank 0 reads nothing until the connection is closed.
    signal("STOP", &zero);
    until("rank 0 is stopped", || state(folder.as_ref()).is_some_and(|it| it.starts_with('T')));
    gone.write_all(&hello).unwrap();
    gone.shutdown(Shutdown::Write).unwrap();
    signal("CONT", &zero);
    let mut answer = Vec::new();
    gone.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"", "it was counted as a rank that came");
    for rank in [rank(1, 2, port, "", &[]), zero] {
        let (code, _, stderr) = ended(rank);
        assert_eq!(code, Some(0), "{stderr}");
    }
}

#[test]
fn the_last_rank_joins_when_a_blob_gives_way_and_not_at_the_deadline() {
    let (port, key) = (free_port(), wire::job_key(b""));
    let part = move |index, length| {
        let rank = Rank::new(index, 2).unwrap();
        let part = Rendezvous::new(rank, Host::LOOPBACK, Port::new(port).unwrap()).timeout(SLACK);
        thread::spawn(move || {
            part.all_gather(vec![7; length]).map(|meeting| meeting.members().len())
        })
    };
    let begun = Instant::now();
    let zero = part(0, 1);
    listening(port);
    // As many blobs as rank 0 reads at a time. No other connection waits, and none comes
    // afterwards.
    let mut lines = Vec::from_iter((0..16).map(|_| Line::open(HERE, port).unwrap()));
    let say = |greeting: &[u8]| Claim::long(&key, 1, 2).hello(greeting).unfinished();
    for _ in 0..500 {
        lines.retain_mut(|line| {
            line.go_on(say).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |()| true)
        });
        thread::sleep(Duration::from_millis(1));
    }
    let met = [part(1, 2000), zero].map(|part| part.join().unwrap());
    assert!(met.iter().all(|met| matches!(met, Ok(2))), "{met:?}");
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
}
