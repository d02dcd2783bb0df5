//! What a plan's collective calls send, counted as rings send it.

use std::ops::AddAssign;

/// The collective calls of a rank, and the bytes that all ranks send in them.
///
/// In a ring of p, a rank sends 2(p-1)/p of the bytes of a sum, (p-1)/p of those of a reduce-scatter or an all-to-all,
/// and p-1 times its own bytes in an all-gather. The total of all ranks is a whole number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    /// The bytes that all ranks of the world send.
    pub bytes: u64,
    /// The calls of each rank.
    pub calls: u64,
}

impl Traffic {
    /// A sum of `bytes` bytes in each of the `world`'s groups of `ranks` ranks.
    pub fn of_all_reduce(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world / ranks * 2 * (ranks - 1) * bytes, calls: 1 }
    }

    /// A reduce-scatter in each group, or an all-to-all of as many bytes.
    pub fn of_reduce_scatter(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world / ranks * (ranks - 1) * bytes, calls: 1 }
    }

    /// An all-gather in each group, to which each rank brings `bytes` bytes.
    pub fn of_all_gather(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world * (ranks - 1) * bytes, calls: 1 }
    }

    /// The mean over the ranks.
    pub fn bytes_per_rank(self, world: u32) -> f64 {
        self.bytes as f64 / f64::from(world)
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.bytes += other.bytes;
        self.calls += other.calls;
    }
}
