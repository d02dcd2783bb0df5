//! A collective that counts what its calls send, in the same way as plans do.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use mpienv::Rank;
use mpienv::collective::seam::{Call, Numbers, Reduction, Transport, group_over, transport_of};
use mpienv::collective::{CollectiveError, Group, threads};
use mpienv_sharding::traffic::Traffic;

/// A group that counts its calls, and those of the groups that are split from it.
pub struct Counting {
    transport: Box<dyn Transport>,
    world: u64,
    count: Rc<Cell<Traffic>>,
}

impl Counting {
    /// Counts the calls on `group`, which is the world.
    pub fn new(group: Group) -> Counting {
        let world = u64::from(group.size());
        Counting { transport: transport_of(group), world, count: Rc::default() }
    }

    /// What was sent since the start or since [`Counter::take`]. The counter stays valid after the
    /// group has moved.
    pub fn counter(&self) -> Counter {
        Counter(Rc::clone(&self.count))
    }

    fn ranks(&self) -> u64 {
        u64::from(self.transport.rank().size())
    }

    fn count(&self, traffic: Traffic) {
        let mut sum = self.count.get();
        sum += traffic;
        self.count.set(sum);
    }
}

/// What a [`Counting`] group has counted.
#[derive(Clone, Debug)]
pub struct Counter(Rc<Cell<Traffic>>);

impl Counter {
    /// Returns the count and resets it.
    pub fn take(&self) -> Traffic {
        self.0.take()
    }
}

impl Transport for Counting {
    fn rank(&self) -> Rank {
        self.transport.rank()
    }

    fn describe(&self) -> String {
        self.transport.describe()
    }

    fn all_reduce(
        &mut self,
        mut numbers: Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        self.count(Traffic::of_all_reduce(self.world, self.ranks(), numbers.bytes().len() as u64));
        self.transport.all_reduce(numbers, by)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.count(Traffic::of_all_gather(self.world, self.ranks(), bytes.len() as u64));
        self.transport.all_gather(bytes)
    }

    /// Not counted, because no step of a plan broadcasts.
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
        self.transport.broadcast(bytes, root)
    }

    fn meet(&mut self, call: Call) -> Result<(), CollectiveError> {
        self.transport.meet(call)
    }

    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        self.transport.abort(code, last_words);
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>, CollectiveError> {
        let transport = self.transport.split(color, key)?;
        Ok(Box::new(Counting { transport, world: self.world, count: Rc::clone(&self.count) }))
    }

    fn reduce_scatter(
        &mut self,
        mut numbers: Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        self.count(Traffic::of_reduce_scatter(
            self.world,
            self.ranks(),
            numbers.bytes().len() as u64,
        ));
        self.transport.reduce_scatter(numbers, by)
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let bytes: usize = parts.iter().map(Vec::len).sum();
        self.count(Traffic::of_reduce_scatter(self.world, self.ranks(), bytes as u64));
        self.transport.all_to_all(parts)
    }
}

#[test]
fn calls_are_counted_as_rings_send_them() {
    let counts = threads::run(8, Duration::from_secs(1200), |rank| {
        let group = rank.split(0, 0).unwrap();
        let counting = Counting::new(group);
        let counter = counting.counter();
        let mut group = group_over(Box::new(counting));
        let own = group.rank().index();
        let mut half = group.split(own / 4, own).unwrap();
        let mut counts = Vec::new();
        group.all_reduce_sum(&mut [0.0_f32]).unwrap();
        counts.push(counter.take());
        half.all_reduce_sum(&mut [0.0_f32; 128]).unwrap();
        counts.push(counter.take());
        half.reduce_scatter_sum(&[0.0_f32; 128]).unwrap();
        half.all_gather(&[0; 256]).unwrap();
        half.all_to_all(&vec![vec![0; 64]; 4]).unwrap();
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
