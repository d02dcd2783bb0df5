//! Counts the traffic of a plan's collective calls, assuming ring algorithms.

use std::ops::AddAssign;

/// The number of collective calls of a rank, and the bytes that all ranks send in them.
///
/// In a ring of p ranks, a rank sends 2(p-1)/p of the bytes of an all-reduce, (p-1)/p of the bytes
/// of a reduce-scatter or an all-to-all, and p-1 times its own bytes in an all-gather. The total
/// over all ranks is a whole number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    /// The bytes that all ranks of the world send.
    pub bytes: u64,
    /// The number of calls of each rank.
    pub calls: u64,
}

impl Traffic {
    /// The traffic of an all-reduce of `bytes` bytes in each group of `ranks` ranks, out of `world`
    /// ranks.
    pub fn of_all_reduce(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world / ranks * 2 * (ranks - 1) * bytes, calls: 1 }
    }

    /// The traffic of a reduce-scatter or all-to-all of `bytes` bytes in each group.
    pub fn of_reduce_scatter(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world / ranks * (ranks - 1) * bytes, calls: 1 }
    }

    /// The traffic of an all-gather in each group, to which each rank contributes `bytes` bytes.
    pub fn of_all_gather(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world * (ranks - 1) * bytes, calls: 1 }
    }

    /// Returns the mean number of bytes per rank.
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
