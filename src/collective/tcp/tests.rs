use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::call::{Operation, Results};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::reduction::Reduction;
use crate::rendezvous::Rendezvous;
use crate::tcp::peer::HEAD;
use crate::tests::measured::longer_than;
use crate::tests::{PLENTY, check_that_a_hung_rank_is_named};
use crate::value::host::Host;
use crate::value::port::Port;

/// Calls of a group, made directly on a transport.
pub(crate) trait Calls: Transport {
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<()> {
        let sum = Reduce::new(Reduction::Sum, Results::ToAll, ElementKind::F32, values.len());
        self.reduce(sum, Numbers::new(values))
    }

    /// Gathers as many bytes of every rank.
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![bytes.to_vec(); self.rank().size() as usize];
        let mut into: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
        let call = Call::moving(Operation::AllGather, ElementKind::U8, bytes.len());
        self.gather(call, bytes, &mut into).map(|()| all)
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
    results_of_ranks(size, |keep| {
        start_ranks(is_secret, timeout, size, &|tcp| {
            let rank = tcp.rank();
            keep(rank, run(tcp));
        });
    })
}

/// What each rank of `start` keeps, in rank order.
///
/// What starts the ranks takes a `dyn Fn`, so that it is compiled once, and not for each test.
pub(crate) fn results_of_ranks<T: Send>(
    size: u32,
    start: impl FnOnce(&(dyn Fn(Rank, T) + Sync)),
) -> Vec<T> {
    let kept: Vec<Mutex<Option<T>>> = (0..size).map(|_| Mutex::new(None)).collect();
    start(&|rank, result| *kept[rank.index() as usize].lock().unwrap() = Some(result));
    kept.into_iter().map(|result| result.into_inner().unwrap().unwrap()).collect()
}

fn start_ranks(has_secret: bool, timeout: Duration, size: u32, run: &(dyn Fn(Tcp) + Sync)) {
    let port = free_port();
    thread::scope(|scope| {
        let start = |index| {
            scope.spawn(move || {
                let rank = Rank::new(index, size).unwrap();
                let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, port).token("token");
                let place = MeetingPoint {
                    host: Host::LOOPBACK,
                    port,
                    rendezvous,
                    has_secret,
                    shares_memory: true,
                };
                run(Tcp::connect(rank, &place, timeout.into()).unwrap());
            })
        };
        let all: Vec<_> = (0..size).map(start).collect();
        all.into_iter().for_each(|rank| rank.join().unwrap());
    });
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
                tcp.members.links().fail_silently();
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
                    tcp.members.links().fail_silently();
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
            tcp.members.links().fail_silently();
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

#[test]
fn parts_of_a_sum_are_sent_alone() {
    for (size, length) in [(1, 5), (2, 0), (3, 300), (4, 16_384), (4, 3), (5, 40_000), (3, PIECE)] {
        ranks_with(false, PLENTY, size, |tcp| {
            let mut group = Group::new(Box::new(tcp));
            let values = numbers(group.rank().index(), length);
            let before = group.bytes_sent().unwrap();
            let part = group.reduce_scatter_sum(&values).unwrap();
            let all = 4 * (length - part.len()) + HEAD * (size as usize - 1);
            assert_eq!(group.bytes_sent().unwrap() - before, all as u64);
        });
    }
}

#[test]
fn an_all_to_all_sends_each_rank_its_part_alone() {
    let all = ranks_with(false, PLENTY, 4, |tcp| {
        let mut group = Group::new(Box::new(tcp));
        let own = group.rank().index() as u8;
        let parts: Vec<_> = (0..4).flat_map(|to| [16 * own + to; 1000]).collect();
        let (mut heard, before) = (vec![0; 4000], group.bytes_sent().unwrap());
        group.all_to_all_into(&parts, &mut heard).unwrap();
        assert_eq!(group.bytes_sent().unwrap() - before, 3 * (1000 + HEAD as u64));
        heard
    });
    for (own, heard) in (0..).zip(all) {
        let expected: Vec<_> = (0..4).flat_map(|from| [16 * from + own; 1000]).collect();
        assert_eq!(heard, expected);
    }
}

#[test]
fn a_rank_that_announces_more_bytes_than_exist_ends_the_group() {
    let errors = ranks(2, |mut tcp| {
        if tcp.rank().index() == 0 {
            let length = (u64::MAX / 2).to_le_bytes();
            let call = Call::of_any(Operation::Broadcast, ElementKind::U8);
            let exchange = vec![Exchange::default(), Exchange::both(&length, &mut [])];
            tcp.members.transfer(call, exchange).unwrap();
            return tcp.meet(Call::BARRIER).unwrap_err().to_string();
        }
        let mut group = Group::new(Box::new(tcp));
        let first = group.broadcast_vec(&mut Vec::<u8>::new(), 0).unwrap_err().to_string();
        let again = group.barrier().unwrap_err().to_string();
        assert!(again.contains("in an earlier call"), "{again}");
        first
    });
    let announced = "it announced 9223372036854775807 u8, more than this rank can allocate";
    assert!(errors[1].contains(announced), "{errors:?}");
    assert!(errors[0].contains(&format!("gave up on this rank: {announced}")), "{errors:?}");
}

#[test]
fn a_group_outlives_the_one_that_it_is_split_from() {
    let all = ranks(4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own / 2, 0).unwrap();
        drop(world);
        group.all_gather(&[own as u8]).unwrap().concat()
    });
    assert_eq!(all, [[0, 1], [0, 1], [2, 3], [2, 3]]);
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_that_wait_in_a_group_sleep_though_another_rank_has_exited() {
    const WAIT: Duration = Duration::from_secs(1);
    /// How long this thread has run on any processor.
    fn on_processor() -> Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }
    ranks(3, |mut tcp| {
        let own = tcp.rank().index();
        let mut pair = tcp.split(u32::from(own == 2), 0).unwrap();
        if own == 2 {
            return;
        }
        drop(tcp);
        pair.meet(Call::BARRIER).unwrap();
        if own == 0 {
            thread::sleep(WAIT);
        }
        let before = on_processor();
        pair.meet(Call::BARRIER).unwrap();
        assert!(on_processor() - before < WAIT / 4);
    });
}

#[test]
fn a_rank_that_is_lost_in_a_group_is_named_by_its_rank_in_the_world() {
    let all_are_split = Barrier::new(4);
    let errors = ranks(4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own % 2, own).unwrap();
        all_are_split.wait();
        if own == 3 {
            world.members.links().fail_silently();
            return None;
        }
        let heard = if own == 1 { group.meet(Call::BARRIER) } else { world.meet(Call::BARRIER) };
        Some(heard.unwrap_err())
    });
    for error in errors.iter().flatten() {
        assert!(error.to_string().starts_with("rank 3 on "), "{error}");
    }
    assert_eq!(errors.iter().flatten().count(), 3);
}

#[test]
fn a_rank_that_hangs_in_a_group_is_named_by_its_rank_in_the_world() {
    let timeout = longer_than(Duration::from_secs(2), || {
        ranks(4, |mut world| {
            let own = world.rank().index();
            world.split(own / 2, 0).unwrap().all_reduce_sum(&mut [1.0]).unwrap();
            world.meet(Call::BARRIER).unwrap();
        });
    });
    let errors = ranks_within(timeout, 4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own / 2, 0).unwrap();
        if own == 2 {
            thread::sleep(5 * timeout);
            return None;
        }
        // The other group works, and waits for this one later.
        let first = group.all_reduce_sum(&mut [1.0]).err();
        assert_eq!(first.is_some(), own == 3);
        Some(first.unwrap_or_else(|| world.meet(Call::BARRIER).unwrap_err()))
    });
    for error in errors.iter().flatten() {
        assert!(
            matches!(
                error,
                CollectiveError::TimedOut { rank: 2, .. } | CollectiveError::Lost { rank: 2, .. }
            ),
            "{error}"
        );
    }
    assert_eq!(errors.iter().flatten().count(), 3);
}

#[test]
fn lengths_that_differ_in_a_group_are_named_by_the_rank_in_the_world() {
    let others_are_through = Barrier::new(4);
    let errors = ranks(4, |mut world| {
        let own = world.rank().index();
        let mut group = world.split(own / 2, 0).unwrap();
        let mut sum = |length| group.all_reduce_sum(&mut vec![1.0; length]).err();
        if own < 2 {
            // A rank that still waits for others reports what it hears, and would be named for
            // that.
            assert!(sum(4).is_none());
            others_are_through.wait();
            return None;
        }
        others_are_through.wait();
        sum(if own == 3 { 5 } else { 4 }).filter(|_| own == 2)
    });
    let error = errors[2].as_ref().unwrap();
    match error {
        CollectiveError::Differs { rank: 3, own: 2, .. } => {}
        // The other rank noticed first and reported it.
        CollectiveError::Disagree { rank: 3, difference }
            if difference.starts_with("rank 2 called all_reduce_sum of 4 f64, rank 3 ") => {}
        _ => panic!("{error}"),
    }
}

#[test]
fn calls_on_different_groups_are_distinguished() {
    let errors = ranks(2, |mut world| {
        let mut groups = [world.split(0, 0).unwrap(), world.split(1, 0).unwrap()];
        let turn = world.rank().index() as usize;
        groups[turn].meet(Call::BARRIER).err().map(|error| error.to_string())
    });
    assert!(
        errors.iter().flatten().any(|error| error.contains("they are calls of two groups")),
        "{errors:?}"
    );
}

#[test]
fn a_message_that_two_ranks_pass_in_different_groups_is_distinguished() {
    let errors = ranks(2, |mut world| {
        let part = world.split(0, 0).unwrap();
        let own = world.rank().index();
        let (mut world, mut part) = (Group::new(Box::new(world)), Group::new(part));
        let passed = match own {
            0 => part.send(&[1.0], 1),
            _ => world.receive(&mut [0.0], 0),
        };
        passed.unwrap_err().to_string()
    });
    for error in errors {
        let called = "rank 0 send of 1 f64 to rank 1: they are calls of two groups";
        let sent =
            "rank 0 called send of 1 f64 to rank 1, rank 1 receive of 1 f64 from rank 0: they";
        assert!(error.contains(called) || error.contains(sent), "{error}");
    }
}
