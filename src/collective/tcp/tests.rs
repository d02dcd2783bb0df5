use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::collective::group::Group;
use crate::collective::tests::check_that_a_hung_rank_is_named;
use crate::rendezvous::Rendezvous;
use crate::value::host::Host;
use crate::value::port::Port;

mod attacks;
mod bytes;
mod groups;
mod last_words;

/// Calls of a group, made directly on a transport.
trait Calls: Transport {
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.all_reduce(Numbers::new(values), Reduction::Sum)
    }

    fn reduce_scatter_sum(&mut self, values: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        let mut values = values.to_vec();
        let mut numbers = Numbers::new(&mut values);
        let part = numbers.part(self.rank().index() as usize, self.rank().size() as usize);
        self.reduce_scatter(Numbers::new(numbers.as_mut::<f32>().unwrap()), Reduction::Sum)?;
        Ok(values[part.start / 4..part.end / 4].to_vec())
    }
}

impl<T: Transport + ?Sized> Calls for T {}

const PLENTY: Duration = Duration::from_secs(1200);

fn free_port() -> Port {
    // Below the ephemeral range, so that no outgoing connection takes it meanwhile.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed)
            + u16::try_from(std::process::id() % 9000).unwrap();
        let port = 10_000 + offset % 10_000;
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
                run(Tcp::connect(rank, &place, timeout).unwrap())
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

fn check_sum(size: u32, length: usize) {
    let sums = ranks(size, |mut tcp| {
        let mut values = numbers(tcp.rank().index(), length);
        tcp.all_reduce_sum(&mut values).unwrap();
        let again = values.clone();
        tcp.all_reduce_sum(&mut values).unwrap();
        again
    });
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(
        sums.iter().all(|sum| bits(sum) == bits(&sums[0])),
        "{size} ranks hold different sums of {length}"
    );
    let all: Vec<Vec<f32>> = (0..size).map(|rank| numbers(rank, length)).collect();
    for (i, &sum) in sums[0].iter().enumerate() {
        let exact: f64 = all.iter().map(|values| f64::from(values[i])).sum();
        let size: f64 = all.iter().map(|values| f64::from(values[i].abs())).sum();
        assert!((f64::from(sum) - exact).abs() <= 1e-6 * size, "number {i}: {sum} for {exact}");
    }
}

#[test]
fn sums_are_right_and_the_same_bits_on_all_ranks() {
    for size in 1..=8 {
        for length in [0, 1, 7, 7850, 1 << 18] {
            check_sum(size, length);
        }
    }
}

#[test]
fn chunks_that_differ_by_one_number_at_a_piece_boundary_are_summed() {
    for length in [-1, 0, 1, 2].map(|more| (PIECE / 4 * 3).strict_add_signed(more)) {
        check_sum(3, length);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_length_is_summed(size in 1u32..6, length in prop_oneof![0usize..300, 16_000usize..40_000]) {
        check_sum(size, length);
    }
}

#[test]
fn bytes_of_different_lengths_are_gathered_and_broadcast() {
    let all = ranks(4, |mut tcp| {
        let own = vec![tcp.rank().index() as u8; tcp.rank().index() as usize * 300_000];
        let gathered = tcp.all_gather(&own).unwrap();
        let mut bytes = own;
        tcp.broadcast(&mut bytes, 2).unwrap();
        tcp.barrier().unwrap();
        (gathered, bytes)
    });
    for (gathered, bytes) in all {
        assert_eq!(bytes, [2; 600_000]);
        for (rank, row) in gathered.iter().enumerate() {
            assert!(
                row.len() == rank * 300_000 && row.iter().all(|&byte| usize::from(byte) == rank)
            );
        }
    }
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

#[test]
fn a_call_ends_well_though_a_rank_that_has_done_its_part_is_lost_meanwhile() {
    let errors = ranks(3, |mut tcp| {
        match tcp.rank().index() {
            2 => {
                tcp.members.transfer(Call::BARRIER, |_| Some(&[]), &mut NoInbox).unwrap();
                tcp.members.fail_silently();
                return None;
            }
            // Rank 1 sees the loss long before this rank comes.
            0 => thread::sleep(Duration::from_millis(300)),
            _ => {}
        }
        tcp.barrier().unwrap();
        Some(tcp.barrier().unwrap_err().to_string())
    });
    assert!(errors.into_iter().flatten().all(|error| error.starts_with("rank 2 on ")));
}

#[test]
fn a_lost_rank_that_has_done_its_part_is_named_soon_if_another_never_comes() {
    let ended = AtomicU32::new(0);
    let errors = ranks(3, |mut tcp| match tcp.rank().index() {
        0 => {
            let error = tcp.barrier().unwrap_err();
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
            tcp.members.transfer(Call::BARRIER, |_| Some(&[]), &mut NoInbox).unwrap();
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
fn ranks_that_bring_different_lengths_are_named() {
    for (length, odd) in [(100, 101), (100, 1 << 20), (1 << 20, (1 << 20) + 1)] {
        let errors = ranks(2, |mut tcp| {
            let length = if tcp.rank().index() == 1 { odd } else { length };
            tcp.all_reduce_sum(&mut vec![1.0; length]).unwrap_err()
        });
        for (own, error) in (0u32..).zip(&errors) {
            let lengths = if own == 0 { (odd, length) } else { (length, odd) };
            match error {
                CollectiveError::Length { rank, found, expected } => {
                    assert_eq!((*rank, (*found, *expected)), (1 - own, lengths));
                }
                // The other rank noticed first and reported it.
                CollectiveError::Disagree { rank, difference } => {
                    assert!(
                        *rank == 1 - own && difference.contains("numbers to a sum of"),
                        "{error}"
                    );
                }
                _ => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_rank_that_exits_with_success_is_not_lost_to_those_still_busy() {
    for _ in 0..20 {
        ranks(4, |mut tcp| {
            tcp.all_reduce_sum(&mut vec![1.0; 7850]).unwrap();
            tcp.barrier().unwrap();
        });
    }
}

#[test]
fn a_call_after_a_failure_fails_too() {
    let errors = ranks(2, |mut tcp| {
        if tcp.rank().index() == 1 {
            tcp.members.fail_silently();
            return None;
        }
        tcp.barrier().unwrap_err();
        Some(tcp.barrier().unwrap_err())
    });
    assert!(errors[0].as_ref().unwrap().to_string().contains("rank 1 on "));
}
