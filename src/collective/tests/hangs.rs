//! All other ranks name a rank that hangs.

use super::measured::longer_than;
use super::*;

/// Checks that all other ranks name a rank that hangs in a sum of `length` numbers. `ranks` runs
/// all ranks with a timeout.
pub(crate) fn check_that_a_hung_rank_is_named(
    hung: u32,
    length: usize,
    ranks: impl Fn(
        Duration,
        &(dyn Fn(Group) -> Option<CollectiveError> + Sync),
    ) -> Vec<Option<CollectiveError>>,
) {
    let sum = |group: &mut Group| group.all_reduce_sum(&mut vec![1.0_f32; length]);
    check_that_a_rank_hung_in(&sum, hung, ranks);
}

/// Checks that all other ranks name a rank that passes no messages.
pub(crate) fn check_that_a_rank_without_messages_is_named(
    hung: u32,
    ranks: impl Fn(
        Duration,
        &(dyn Fn(Group) -> Option<CollectiveError> + Sync),
    ) -> Vec<Option<CollectiveError>>,
) {
    let ring = |group: &mut Group| {
        let (own, size) = (group.rank().index(), group.size());
        let (to, from) = ((own + 1) % size, (own + size - 1) % size);
        group.send_receive(&[0_u8; 100], to, &mut [0; 100], from)?;
        // Not every rank has it as a neighbor.
        group.barrier()
    };
    check_that_a_rank_hung_in(&ring, hung, ranks);
}

fn check_that_a_rank_hung_in(
    call: &(dyn Fn(&mut Group) -> Result<(), CollectiveError> + Sync),
    hung: u32,
    ranks: impl Fn(
        Duration,
        &(dyn Fn(Group) -> Option<CollectiveError> + Sync),
    ) -> Vec<Option<CollectiveError>>,
) {
    let ended = AtomicU32::new(0);
    let timeout = longer_than(Duration::from_secs(2), || {
        let make = |mut group: Group| call(&mut group).err();
        assert!(ranks(PLENTY, &make).iter().all(Option::is_none));
    });
    let errors = ranks(timeout, &|mut group| {
        if group.rank().index() == hung {
            while ended.load(Ordering::Relaxed) < group.size() - 1 {
                thread::sleep(Duration::from_millis(10));
            }
            return None;
        }
        let error = call(&mut group).unwrap_err();
        ended.fetch_add(1, Ordering::Relaxed);
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let (CollectiveError::TimedOut { rank, .. } | CollectiveError::Lost { rank, .. }) = error
        else {
            panic!("{error}")
        };
        assert_eq!(rank, hung);
    }
}
