//! A group that counts what its calls send, in the same way as plans do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mpienv::collective::seam::{Numbers, Reduce, Transport};
use mpienv::collective::{CollectiveError, Group, threads};
use mpienv_sharding::redistribute::Traffic;

use super::watched::{Watch, watched};

/// Counts the calls of `group`, which is the world, and those of the groups that are split from it.
/// The counter stays valid after the group has moved.
pub fn counting(group: Group) -> (Group, Counter) {
    let counter = Counter(Arc::default());
    let world = u64::from(group.size());
    let counting = Counting { world, counter: counter.clone() };
    (watched(group, counting), counter)
}

/// What a group has counted.
#[derive(Clone, Debug)]
pub struct Counter(Arc<Mutex<Traffic>>);

impl Counter {
    /// Returns the count and resets it.
    pub fn take(&self) -> Traffic {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, traffic: Traffic) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += traffic;
    }
}

struct Counting {
    world: u64,
    counter: Counter,
}

impl Watch for Counting {
    fn reduce(
        &mut self,
        transport: &mut dyn Transport,
        reduce: Reduce,
        mut numbers: Numbers<'_>,
    ) -> Result<(), CollectiveError> {
        // No step of a plan reduces to one rank, or broadcasts.
        if reduce.call.only_rank().is_none() {
            let (ranks, bytes) = (transport.rank().size().into(), numbers.bytes().len() as u64);
            self.counter.add(Traffic::of_rings(self.world, ranks, 2 * bytes));
        }
        transport.reduce(reduce, numbers)
    }

    fn reduce_scatters(&mut self, ranks: u32, bytes: usize) {
        self.counter.add(Traffic::of_rings(self.world, ranks.into(), bytes as u64));
    }

    fn gathers(&mut self, ranks: u32, bytes: usize) {
        self.counter.add(Traffic::of_rings(
            self.world,
            ranks.into(),
            u64::from(ranks) * bytes as u64,
        ));
    }

    fn scatters(&mut self, ranks: u32, bytes: usize) {
        self.counter.add(Traffic::of_rings(self.world, ranks.into(), bytes as u64));
    }

    fn of_part(&self) -> Counting {
        Counting { counter: self.counter.clone(), ..*self }
    }
}

#[test]
fn calls_are_counted_as_rings_send_them() {
    let counts = threads::run(8, Duration::from_secs(1200), |rank| {
        let group = rank.split(0, 0).unwrap();
        let (mut group, counter) = counting(group);
        let own = group.rank().index();
        let mut half = group.split(own / 4, own).unwrap();
        let mut counts = Vec::new();
        group.all_reduce_sum(&mut [0.0_f32]).unwrap();
        counts.push(counter.take());
        half.all_reduce_sum(&mut [0.0_f32; 128]).unwrap();
        counts.push(counter.take());
        half.reduce_scatter_sum(&[0.0_f32; 128]).unwrap();
        half.all_gather_into(&[0.0_f32; 64], &mut [0.0; 256]).unwrap();
        half.all_to_all_into(&[0.0_f32; 64], &mut [0.0; 64]).unwrap();
        counts.push(counter.take());
        counts
    })
    .unwrap();
    for counts in counts {
        let shares: Vec<_> =
            counts.iter().map(|count| (count.calls, count.bytes_per_rank(8))).collect();
        assert_eq!(shares, [(1, 7.0), (1, 768.0), (3, 384.0 + 768.0 + 192.0)]);
    }
}
