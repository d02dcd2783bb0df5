//! Counts what a group's calls send, as rings would send it.

use std::cell::Cell;
use std::ops::{Add, AddAssign};
use std::rc::Rc;

use mpienv::Rank;

use super::{Collective, CollectiveError};

/// Calls of a rank, and what all ranks together send in them.
///
/// A rank of a ring of p sends 2(p-1)/p of the bytes of a sum, (p-1)/p of those of a reduce-scatter or an all-to-all,
/// and p-1 times its own bytes in an all-gather. Not every share is whole, but that of all ranks together is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    /// Bytes that all ranks of the world send.
    pub bytes: u64,
    /// How often a rank calls.
    pub calls: u64,
}

impl Traffic {
    /// A sum over each of the `world`'s groups of `ranks` ranks, each with `bytes` bytes.
    pub fn of_all_reduce(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world / ranks * 2 * (ranks - 1) * bytes, calls: 1 }
    }

    /// The same, each rank keeping a part; and an all-to-all of as many bytes.
    pub fn of_reduce_scatter(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world / ranks * (ranks - 1) * bytes, calls: 1 }
    }

    /// Every rank's `bytes` bytes brought to all of its group.
    pub fn of_all_gather(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world * (ranks - 1) * bytes, calls: 1 }
    }

    /// Bytes that one of the `world`'s ranks sends; all send the same.
    pub fn bytes_per_rank(self, world: u32) -> f64 {
        self.bytes as f64 / f64::from(world)
    }
}

impl Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic { bytes: self.bytes + other.bytes, calls: self.calls + other.calls }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        *self = *self + other;
    }
}

/// A group whose calls, and those of the groups split from it, are counted.
pub struct Counting {
    group: Box<dyn Collective>,
    world: u64,
    count: Rc<Cell<Traffic>>,
}

impl Counting {
    /// Counts what is called on `group`, which is the world.
    pub fn new(group: Box<dyn Collective>) -> Counting {
        let world = u64::from(group.rank().size());
        Counting { group, world, count: Rc::default() }
    }

    /// What was sent since the beginning, or since [`Counter::take`]; lives on when the group is given away.
    pub fn counter(&self) -> Counter {
        Counter(Rc::clone(&self.count))
    }

    fn ranks(&self) -> u64 {
        u64::from(self.group.rank().size())
    }

    fn count(&self, traffic: Traffic) {
        self.count.set(self.count.get() + traffic);
    }
}

/// What a [`Counting`] group has counted.
#[derive(Clone, Debug)]
pub struct Counter(Rc<Cell<Traffic>>);

impl Counter {
    /// What was counted; the count begins again.
    pub fn take(&self) -> Traffic {
        self.0.take()
    }
}

impl Collective for Counting {
    fn rank(&self) -> Rank {
        self.group.rank()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.count(Traffic::of_all_reduce(self.world, self.ranks(), size_of_val(values) as u64));
        self.group.all_reduce_sum(values)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.count(Traffic::of_all_gather(self.world, self.ranks(), bytes.len() as u64));
        self.group.all_gather(bytes)
    }

    /// Not counted: no step of a plan broadcasts.
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        self.group.broadcast(bytes, root)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.group.barrier()
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        let group = self.group.split(color, key)?;
        Ok(Box::new(Counting { group, world: self.world, count: Rc::clone(&self.count) }))
    }

    fn reduce_scatter_sum(&mut self, values: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        self.count(Traffic::of_reduce_scatter(self.world, self.ranks(), size_of_val(values) as u64));
        self.group.reduce_scatter_sum(values)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let bytes: usize = parts.iter().map(Vec::len).sum();
        self.count(Traffic::of_reduce_scatter(self.world, self.ranks(), bytes as u64));
        self.group.all_to_all(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::threads;
    use std::time::Duration;

    #[test]
    fn calls_are_counted_as_rings_send_them() {
        let counts = threads::run(8, Duration::from_secs(10), |rank| {
            let group = rank.split(0, 0).unwrap();
            let mut group = Counting::new(group);
            let counter = group.counter();
            let own = group.rank().index();
            let mut half = group.split(own / 4, own).unwrap();
            let mut counts = Vec::new();
            group.all_reduce_sum(&mut [0.0]).unwrap();
            counts.push(counter.take());
            half.all_reduce_sum(&mut [0.0; 128]).unwrap();
            counts.push(counter.take());
            half.reduce_scatter_sum(&[0.0; 128]).unwrap();
            half.all_gather(&[0; 256]).unwrap();
            half.all_to_all(&vec![vec![0; 64]; 4]).unwrap();
            counts.push(counter.take());
            counts
        })
        .unwrap();
        for counts in counts {
            let shares: Vec<_> = counts.iter().map(|count| (count.calls, count.bytes_per_rank(8))).collect();
            assert_eq!(shares, [(1, 7.0), (1, 768.0), (3, 384.0 + 768.0 + 192.0)]);
        }
    }
}
