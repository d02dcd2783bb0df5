//! What a group's settings do while it connects and after.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Instant;

use super::*;
use crate::error::Result;
use crate::tests::PLENTY;
use crate::tests::measured::longer_than;
use mpienv_core::ErrorKind;

impl From<Duration> for Timeouts {
    fn from(both: Duration) -> Timeouts {
        Timeouts { connecting: both, calls: both }
    }
}

#[test]
fn over_mpi_a_process_exits_by_default_as_a_program_that_gets_the_error() {
    let info = ClusterInfo::from_vars([("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap();
    let on_lost = Group::builder(&info).on_lost;
    let (host, reason) = ("node1".to_owned(), "it was killed".to_owned());
    let lost = CollectiveError::Lost { rank: 1, host: host.clone(), reason };
    let late = CollectiveError::TimedOut { rank: 1, host, seconds: 1.0 };
    assert_eq!([lost, late].map(|error| (on_lost.0)(&error)), [3, 124]);
}

/// Two ranks that connect with the settings of `set`. Each gets its group and its index.
fn two<T: Send>(
    set: impl Fn(GroupBuilder<'_>) -> GroupBuilder<'_> + Sync,
    run: impl Fn(Result<Group, CollectiveError>, u32) -> T + Sync,
) -> Vec<T> {
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = Port::new(listener.local_addr().unwrap().port()).unwrap();
    let (set, run, listener) = (&set, &run, Mutex::new(Some(listener)));
    let listener = &listener;
    thread::scope(|scope| {
        let start = |rank: u32| {
            scope.spawn(move || {
                let own = rank.to_string();
                let info = ClusterInfo::from_vars([("RANK", &*own), ("WORLD_SIZE", "2")]).unwrap();
                let builder = set(Group::builder(&info).quiet(true));
                let builder = match listener.lock().unwrap().take_if(|_| rank == 0) {
                    Some(listener) => builder.listener(listener),
                    None => builder.meet_at(Host::LOOPBACK, port),
                };
                run(builder.connect(), rank)
            })
        };
        let ranks = [start(0), start(1)];
        ranks.map(|rank| rank.join().unwrap()).into_iter().collect()
    })
}

const BACKENDS: [Backend; 2] = [Backend::Tcp, Backend::SharedMemory];

#[test]
fn a_rank_that_was_never_started_is_named_long_before_a_call_would_time_out() {
    let info = ClusterInfo::from_vars([("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap();
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let builder = Group::builder(&info).quiet(true).listener(listener).timeout(PLENTY);
    let begun = Instant::now();
    let error = builder.connect_timeout(Duration::from_millis(100)).connect().unwrap_err();
    assert!(error.to_string().starts_with("rank 1 of 2 has not connected"), "{error}");
    assert!(begun.elapsed() < PLENTY / 2);
}

#[test]
fn a_timeout_of_zero_is_refused_before_any_rank_is_awaited() {
    let info = ClusterInfo::from_vars([("RANK", "1"), ("WORLD_SIZE", "2")]).unwrap();
    let builder = || Group::builder(&info).quiet(true).meet_at(Host::LOOPBACK, Port::ONE_NODE);
    let check = |builder: GroupBuilder<'_>, call: &str| {
        let error = builder.connect().unwrap_err().to_string();
        let reason = "no rank can arrive within 0 s: set a longer time";
        assert_eq!(error, format!("{call}: {reason}"));
    };
    check(builder().timeout(Duration::ZERO), "timeout");
    check(builder().timeout(Duration::ZERO).connect_timeout(PLENTY), "timeout");
    check(builder().connect_timeout(Duration::ZERO), "connect_timeout");
}

#[test]
fn ranks_with_different_backends_are_named_with_what_they_connect() {
    let connected = two(
        |builder| {
            let backend = BACKENDS[builder.info.rank().index() as usize];
            builder.backend(backend)
        },
        |group, _| group.err().map(|error| (error.kind(), error.to_string())),
    );
    for (rank, error) in connected.into_iter().enumerate() {
        let called = ["connect without shared memory", "connect with shared memory"];
        let (other, rule) = (1 - rank, "all ranks must use the same backend");
        let (found, expected) = (called[other], called[rank]);
        let text = format!("rank {other} called {found}, rank {rank} {expected}: {rule}");
        assert_eq!(error, Some((ErrorKind::Refused, text)));
    }
}

#[test]
fn two_groups_that_were_connected_one_after_the_other_make_calls_in_two_threads() {
    for backend in BACKENDS {
        let port = crate::tcp::tests::free_port();
        let rank = |index: &str| {
            let vars = [("RANK", index), ("WORLD_SIZE", "2")];
            let info = ClusterInfo::from_vars(vars).unwrap();
            let connect = || {
                let builder = Group::builder(&info).quiet(true).backend(backend);
                builder.timeout(PLENTY).meet_at(Host::LOOPBACK, port).connect().unwrap()
            };
            let (mut first, mut second) = (connect(), connect());
            if index == "1" {
                second.barrier().unwrap();
                first.barrier().unwrap();
                return;
            }
            // The call of the first group ends only after that of the second.
            thread::scope(|scope| {
                scope.spawn(|| first.barrier().unwrap());
                second.barrier().unwrap();
            });
        };
        thread::scope(|scope| {
            scope.spawn(|| rank("0"));
            rank("1");
        });
    }
}

#[test]
fn a_call_times_out_long_before_connecting_would() {
    for backend in BACKENDS {
        let (ended, end) = mpsc::channel();
        let end = Mutex::new(end);
        let errors = two(
            |builder| {
                let builder = builder.backend(backend).timeout(Duration::from_millis(100));
                builder.connect_timeout(PLENTY)
            },
            |group, rank| {
                if rank == 1 {
                    // It makes no call, and stays until the other has given up.
                    end.lock().unwrap().recv_timeout(PLENTY / 2).unwrap();
                    return None;
                }
                let error = group.unwrap().barrier().unwrap_err().to_string();
                ended.send(()).unwrap();
                Some(error)
            },
        );
        let error = errors.into_iter().flatten().next().unwrap();
        let is_named = error.starts_with("rank 1 on ") && error.contains("within 0.1 s");
        assert!(is_named, "{backend:?}: {error}");
    }
}

#[test]
fn a_call_waits_for_a_rank_that_computes_for_longer_than_connecting_may_take() {
    for backend in BACKENDS {
        let connect = |timeout: Duration, pause: Duration| {
            let results = two(
                |builder| builder.backend(backend).timeout(PLENTY).connect_timeout(timeout),
                |group, rank| {
                    let mut group = group.unwrap();
                    if rank == 1 {
                        thread::sleep(pause);
                    }
                    group.barrier().map_err(|error| error.to_string())
                },
            );
            assert_eq!(results, [Ok(()), Ok(())], "{backend:?}");
        };
        let quick = || connect(PLENTY, Duration::ZERO);
        let timeout = longer_than(Duration::from_secs(2), quick);
        connect(timeout, timeout + timeout / 2);
    }
}
