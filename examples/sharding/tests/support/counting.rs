//! A collective that counts what its calls send, in the same way as plans do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mpienv::Rank;
use mpienv::collective::seam::{
    Call, Cancel, Message, Numbers, Reduction, Transport, group_over, transport_of,
};
use mpienv::collective::{CollectiveError, Group, threads};
use mpienv_sharding::traffic::Traffic;

/// A group that counts its calls, and those of the groups that are split from it.
pub struct Counting {
    transport: Box<dyn Transport>,
    world: u64,
    count: Arc<Mutex<Traffic>>,
    /// Whether an all-gather of bytes has exchanged its lengths.
    has_lengths: bool,
}

impl Counting {
    /// Counts the calls on `group`, which is the world.
    pub fn new(group: Group) -> Counting {
        let world = u64::from(group.size());
        Counting {
            transport: transport_of(group),
            world,
            count: Arc::default(),
            has_lengths: false,
        }
    }

    /// What was sent since the start or since [`Counter::take`]. The counter stays valid after the
    /// group has moved.
    pub fn counter(&self) -> Counter {
        Counter(Arc::clone(&self.count))
    }

    fn ranks(&self) -> u64 {
        u64::from(self.transport.rank().size())
    }

    fn count(&self, traffic: Traffic) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += traffic;
    }
}

/// What a [`Counting`] group has counted.
#[derive(Clone, Debug)]
pub struct Counter(Arc<Mutex<Traffic>>);

impl Counter {
    /// Returns the count and resets it.
    pub fn take(&self) -> Traffic {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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

    fn note(&mut self, made: u32) {
        self.transport.note(made);
    }

    fn reduce(
        &mut self,
        numbers: Numbers<'_>,
        by: Reduction,
        root: u32,
    ) -> Result<(), CollectiveError> {
        self.transport.reduce(numbers, by, root)
    }

    /// Not counted, because no step of a plan broadcasts.
    fn broadcast(
        &mut self,
        call: Call,
        bytes: &mut [u8],
        root: u32,
    ) -> Result<(), CollectiveError> {
        self.transport.broadcast(call, bytes, root)
    }

    fn pass(
        &mut self,
        send: Option<(Message, &[u8])>,
        receive: Option<(Message, &mut [u8])>,
    ) -> Result<(), CollectiveError> {
        self.transport.pass(send, receive)
    }

    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError {
        self.transport.give_up_on(rank, reason)
    }

    fn reduce_scatter(
        &mut self,
        values: &[u8],
        part: Numbers<'_>,
        by: Reduction,
    ) -> Result<(), CollectiveError> {
        self.count(Traffic::of_reduce_scatter(self.world, self.ranks(), values.len() as u64));
        self.transport.reduce_scatter(values, part, by)
    }

    fn gather(
        &mut self,
        call: Call,
        bytes: &[u8],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<(), CollectiveError> {
        // The lengths, which an all-gather of bytes exchanges first, are not part of a plan.
        if self.has_lengths {
            self.has_lengths = false;
            self.count(Traffic::of_all_gather(self.world, self.ranks(), bytes.len() as u64));
            return self.transport.gather(call, bytes, into, root);
        }
        self.transport.gather(call, bytes, into, root)?;
        self.has_lengths = into.iter().any(|length| length.iter().any(|&byte| byte != 0));
        Ok(())
    }

    fn scatter(
        &mut self,
        call: Call,
        parts: &[&[u8]],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<(), CollectiveError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.count(Traffic::of_reduce_scatter(self.world, self.ranks(), bytes as u64));
        self.transport.scatter(call, parts, into, root)
    }

    fn meet(&mut self, call: Call) -> Result<(), CollectiveError> {
        self.transport.meet(call)
    }

    fn cancel(&self) -> Arc<Cancel> {
        self.transport.cancel()
    }

    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        self.transport.abort(code, last_words);
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>, CollectiveError> {
        let transport = self.transport.split(color, key)?;
        let count = Arc::clone(&self.count);
        Ok(Box::new(Counting { transport, world: self.world, count, has_lengths: false }))
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
