use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::call::Results;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::rendezvous::Rendezvous;
use crate::tests::PLENTY;
use crate::tests::hangs::check_that_a_hung_rank_is_named;
use crate::value::host::Host;
use crate::value::port::Port;

mod attacks;
mod bytes;
mod groups;
mod last_words;

/// Calls of a group, made directly on a transport.
trait Calls: Transport {
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<()> {
        let call = Call::reduction(Reduction::Sum, Results::ToAll, ElementKind::F32, values.len());
        self.reduce(call, Numbers::new(values), Reduction::Sum, None)
    }

    /// Gathers as many bytes of every rank.
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![vec![0; bytes.len()]; self.rank().size() as usize];
        let mut into: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
        self.gather(Call::ALL_GATHER, bytes, &mut into, None).map(|()| all)
    }
}

impl<T: Transport + ?Sized> Calls for T {}

pub(crate) fn free_port() -> Port {
    // Between the ports that mpienv chooses itself, which end at 29,999, and those of outgoing
    // connections. The tests of other packages, which run at the same time, take lower ones.
    const FIRST: u16 = 30_000;
    const COUNT: u16 = 2_700;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let first = (std::process::id() % u32::from(COUNT)) as u16;
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (first + offset) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Port::new(port).unwrap();
        }
    }
}

/// Runs every rank in its own thread, and returns their results.
fn ranks<T: Send>(size: u32, run: impl Fn(Tcp) -> T + Sync) -> Vec<T> {
    ranks_within(PLENTY, size, run)
}

pub(crate) fn ranks_within<T: Send>(
    timeout: Duration,
    size: u32,
    run: impl Fn(Tcp) -> T + Sync,
) -> Vec<T> {
    ranks_with(true, timeout, size, run)
}

/// Like `ranks`; encrypts messages if the token `is_secret`.
fn ranks_with<T: Send>(
    is_secret: bool,
    timeout: Duration,
    size: u32,
    run: impl Fn(Tcp) -> T + Sync,
) -> Vec<T> {
    let port = free_port();
    thread::scope(|scope| {
        let run = &run;
        let start = |index| {
            scope.spawn(move || {
                let rank = Rank::new(index, size).unwrap();
                let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, port).token("token");
                let place = MeetingPoint { host: Host::LOOPBACK, rendezvous, is_secret };
                run(Tcp::connect(rank, &place, timeout.into()).unwrap())
            })
        };
        let all: Vec<_> = (0..size).map(start).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Numbers that differ between ranks, and whose sums round.
pub(crate) fn numbers(rank: u32, length: usize) -> Vec<f32> {
    (0..length)
        .map(|i| ((i as f32 + 1.0) * 0.37 + rank as f32 * 1.1).sin() * 10f32.powi(i as i32 % 5 - 2))
        .collect()
}

#[test]
fn a_lost_rank_is_named_by_all_others() {
    for length in [100, 1 << 20] {
        let errors = ranks(4, |mut tcp| {
            let mut values = vec![1.0; length];
            let first = tcp.all_reduce_sum(&mut values).err();
            if tcp.rank().index() == 2 {
                // As when a process is killed: no goodbye.
                tcp.members.fail_silently();
                return None;
            }
            let begun = Instant::now();
            let error = first.or_else(|| tcp.all_reduce_sum(&mut values).err()).unwrap();
            assert!(begun.elapsed() < PLENTY / 2);
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            assert!(
                matches!(&error, CollectiveError::Lost { rank: 2, host, .. } if host.contains("127.0.0.1")),
                "{error}"
            );
        }
    }
}

/// Does its part in a barrier, without waiting for the others.
fn send_alone(tcp: &mut Tcp) {
    let send = |_| Exchange { send: Some(&[]), ..Exchange::default() };
    tcp.members.transfer(Call::BARRIER, (0..tcp.size()).map(send).collect()).unwrap();
}

#[test]
fn a_call_ends_well_though_a_rank_that_has_done_its_part_is_lost_meanwhile() {
    // Rank 0 comes long after rank 1 has seen the loss, but not too late: a busy machine may need
    // several attempts.
    let is_well = || {
        let errors = ranks(3, |mut tcp| {
            match tcp.rank().index() {
                2 => {
                    send_alone(&mut tcp);
                    tcp.members.fail_silently();
                    return None;
                }
                0 => thread::sleep(Duration::from_millis(100)),
                _ => {}
            }
            let begun = Instant::now();
            let first = tcp.meet(Call::BARRIER);
            Some((first, begun.elapsed(), tcp.meet(Call::BARRIER).unwrap_err().to_string()))
        });
        let both: Vec<_> = errors.into_iter().flatten().collect();
        assert!(both.iter().all(|(.., error)| error.starts_with("rank 2 on ")), "{both:?}");
        let is_late = both.iter().any(|(_, took, _)| *took > Duration::from_millis(300));
        let is_well = both.iter().all(|(first, ..)| first.is_ok());
        assert!(is_well || is_late, "{both:?}");
        is_well
    };
    assert!((0..200).any(|_| is_well()));
}

#[test]
fn a_lost_rank_that_has_done_its_part_is_named_soon_if_another_never_comes() {
    let ended = AtomicU32::new(0);
    let errors = ranks(3, |mut tcp| match tcp.rank().index() {
        0 => {
            let error = tcp.meet(Call::BARRIER).unwrap_err();
            ended.store(1, Ordering::Relaxed);
            Some(error.to_string())
        }
        1 => {
            let begun = Instant::now();
            while ended.load(Ordering::Relaxed) == 0 {
                assert!(begun.elapsed() < PLENTY / 2);
                thread::sleep(Duration::from_millis(10));
            }
            None
        }
        _ => {
            send_alone(&mut tcp);
            tcp.members.fail_silently();
            None
        }
    });
    assert!(errors[0].as_ref().is_some_and(|error| error.starts_with("rank 2 on ")), "{errors:?}");
}

#[test]
fn a_hung_rank_is_named_by_all_others() {
    for length in [100, 1 << 20] {
        check_that_a_hung_rank_is_named(1, length, |timeout, run| {
            ranks_within(timeout, 4, |tcp| run(Group::new(Box::new(tcp))))
        });
    }
}

#[test]
fn a_rank_that_exits_with_success_is_not_lost_to_those_still_busy() {
    for _ in 0..20 {
        ranks(4, |mut tcp| {
            tcp.all_reduce_sum(&mut vec![1.0; 7850]).unwrap();
            tcp.meet(Call::BARRIER).unwrap();
        });
    }
}
