use std::time::{Duration, Instant};

use super::*;
use crate::call::Results;
use crate::element::ElementKind;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::hosts;
use crate::tcp::tests::ranks_within;
use crate::tests::PLENTY;
use crate::tests::hangs::{
    check_that_a_hung_rank_is_named, check_that_a_rank_without_messages_is_named,
};

/// Runs `run` on every rank, each in its own thread, over shared memory.
fn ranks<T: Send>(size: u32, run: impl Fn(Shared) -> T + Sync) -> Vec<T> {
    sharing_within(PLENTY, size, run)
}

fn sharing_within<T: Send>(
    timeout: Duration,
    size: u32,
    run: impl Fn(Shared) -> T + Sync,
) -> Vec<T> {
    ranks_within(timeout, size, |tcp| match Shared::share(tcp, false, hosts::join).unwrap() {
        Sharing::Memory(shared) => run(shared),
        Sharing::Refused { why, .. } => panic!("{why}"),
    })
}

fn group(shared: Shared) -> Group {
    Group::new(Box::new(shared))
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    for length in [10, 1 << 20] {
        let errors = ranks(4, |mut shared| {
            let mut values = vec![1.0_f32; length];
            let sum = Call::reduction(Reduction::Sum, Results::ToAll, ElementKind::F32, length);
            shared.reduce(sum, Numbers::new(&mut values), Reduction::Sum, None).unwrap();
            if shared.rank().index() == 2 {
                // As when a process is killed: its connections close.
                shared.tcp.members().fail_silently();
                return None;
            }
            let begun = Instant::now();
            let again = shared.reduce(sum, Numbers::new(&mut values), Reduction::Sum, None);
            let error = again.unwrap_err();
            assert!(begun.elapsed() < PLENTY / 2);
            let again = shared.meet(Call::BARRIER).unwrap_err();
            assert!(again.to_string().starts_with("rank 2 on "), "{again}");
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(&error, CollectiveError::Lost { rank: 2, .. }), "{error}");
        }
    }
}

#[test]
fn a_rank_that_exits_too_early_is_named() {
    let errors = ranks(3, |shared| {
        let mut group = group(shared);
        group.barrier().unwrap();
        if group.rank().index() == 1 {
            None
        } else {
            Some(group.barrier().unwrap_err().to_string())
        }
    });
    for error in errors.into_iter().flatten() {
        assert!(
            error.starts_with("rank 1 on ") && error.contains("it exited before this rank did"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_hangs_is_named_by_all_others() {
    check_that_a_hung_rank_is_named(1, 1, |timeout, run| {
        sharing_within(timeout, 4, |shared| run(group(shared)))
    });
}

#[test]
fn a_rank_that_passes_no_messages_is_named_by_all_others() {
    check_that_a_rank_without_messages_is_named(1, |timeout, run| {
        sharing_within(timeout, 4, |shared| run(group(shared)))
    });
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_that_pass_messages() {
    for length in [8, 3_000_000] {
        let errors = ranks(4, |mut shared| {
            let (own, mut into) = (shared.rank().index(), vec![0; length]);
            let mut ring = |shared: &mut Shared| {
                let (to, from) = ((own + 1) % 4, (own + 3) % 4);
                let sent = Message::to(to, own, ElementKind::U8, length).as_half();
                let received = Message::from(from, own, ElementKind::U8, length).as_half();
                shared.pass(Some((sent, &vec![1; length])), Some((received, &mut into)))
            };
            ring(&mut shared).unwrap();
            if own == 2 {
                // As when a process is killed: its connections close.
                shared.tcp.members().fail_silently();
                return None;
            }
            // A rank that has done without it fails next.
            let error = (0..3).find_map(|_| ring(&mut shared).err()).unwrap();
            let again = ring(&mut shared).unwrap_err();
            assert!(again.to_string().starts_with("rank 2 on "), "{again}");
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(&error, CollectiveError::Lost { rank: 2, .. }), "{error}");
        }
    }
}

#[test]
fn the_reason_why_memory_is_not_shared_is_the_same_on_all_ranks() {
    let reasons = ranks_within(PLENTY, 3, |mut tcp| {
        // A rank other than 0 fails to map the memory.
        let mapped = if tcp.rank().index() == 2 { Err("no such file".to_owned()) } else { Ok(()) };
        let reasons =
            tcp.gather_any(Call::ALL_GATHER, mapped.err().unwrap_or_default().as_bytes()).unwrap();
        first_reason(&reasons)
    });
    assert!(
        reasons
            .iter()
            .all(|reason| reason.as_deref() == Some("rank 2 cannot share memory: no such file"))
    );
}
