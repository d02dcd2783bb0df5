//! Connecting and calls have limits of their own.

use std::net::TcpListener;
use std::sync::mpsc;

use super::measured::longer_than;
use super::*;
use crate::cluster::info::ClusterInfo;
use crate::error::{ConnectError, Result};
use crate::value::host::Host;
use crate::value::port::Port;
use crate::{Backend, GroupBuilder};

/// Two ranks that connect with the settings of `set`. Each gets its group and its index.
fn two<T: Send>(
    set: impl Fn(GroupBuilder<'_>) -> GroupBuilder<'_> + Sync,
    run: impl Fn(Result<Group, ConnectError>, u32) -> T + Sync,
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
