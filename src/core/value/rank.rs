//! A rank that is always smaller than its group's size.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

/// A rank in a group of known size. It prints as its [`index`](Rank::index). The constructor guarantees `rank < size`.
///
/// ```
/// use mpienv::{Rank, RankError};
///
/// let rank = Rank::new(3, 8)?;
/// assert_eq!((rank.index(), rank.size()), (3, 8));
/// assert!(!rank.is_first());
/// assert_eq!(rank.all().nth(3), Some(rank));
/// assert_eq!(Rank::new(0, 1)?, Rank::ALONE);
/// assert_eq!(Rank::new(8, 8), Err(RankError::Outside { index: 8, size: 8 }));
/// # Ok::<(), RankError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    index: u32,
    size: NonZeroU32,
}

impl Rank {
    /// Creates rank `index` of a group of `size` ranks.
    ///
    /// # Errors
    /// Returns an error if `size` is 0 or `index >= size`.
    pub const fn new(index: u32, size: u32) -> Result<Rank, RankError> {
        match NonZeroU32::new(size) {
            None => Err(RankError::NoMembers),
            Some(_) if index >= size => Err(RankError::Outside { index, size }),
            Some(size) => Ok(Rank { index, size }),
        }
    }

    /// The only rank of a group of one.
    pub const ALONE: Rank = Rank { index: 0, size: NonZeroU32::MIN };

    /// Returns the number of this rank, starting at 0.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the number of ranks in the group, at least 1.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.size.get()
    }

    /// Returns whether this is rank 0.
    #[must_use]
    pub const fn is_first(self) -> bool {
        self.index == 0
    }

    /// Returns all ranks of the group, in order.
    pub fn all(self) -> impl Iterator<Item = Rank> {
        let size = self.size;
        (0..size.get()).map(move |index| Rank { index, size })
    }

    /// Returns this rank's share of `count` samples, rows or numbers: from `rank * count / size` to
    /// `(rank + 1) * count / size`.
    ///
    /// The shares of all ranks are consecutive, and their sizes differ by at most one. Some shares
    /// are empty if there are more ranks than samples.
    ///
    /// ```
    /// use mpienv::Rank;
    ///
    /// let shares: Vec<_> = Rank::new(0, 3)?.all().map(|rank| rank.share_of(64)).collect();
    /// assert_eq!(shares, [0..21, 21..42, 42..64]);
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    #[must_use]
    pub fn share_of(self, count: usize) -> Range<usize> {
        share(count, self.index as usize, self.size() as usize)
    }
}

/// Returns the share of `count` items that member `index` of `size` has.
pub fn share(count: usize, index: usize, size: usize) -> Range<usize> {
    let at = |index: usize| (count as u128 * index as u128 / size.max(1) as u128) as usize;
    at(index)..at(index + 1)
}

/// Prints the [`index`](Rank::index), as logs and file names have it.
impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.index.fmt(f)
    }
}

/// The rank of a process on its node and the number of processes there, if they are known.
///
/// The constructor guarantees `local rank < local size <= world size`.
///
/// ```
/// use mpienv::{Local, Rank};
///
/// let world = Rank::new(5, 8)?;
/// let local = Local::new(Some(1), Some(4), world)?;
/// assert_eq!((local.rank(), local.size()), (Some(1), Some(4)));
/// assert_eq!(Local::new(None, None, world)?, Local::UNKNOWN);
/// assert!(Local::new(Some(4), Some(4), world).is_err());
/// assert!(Local::new(Some(1), Some(9), world).is_err());
/// # Ok::<(), mpienv::RankError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Local {
    rank: Option<u32>,
    size: Option<u32>,
}

impl Local {
    /// Neither the local rank nor the local size is known.
    pub const UNKNOWN: Local = Local { rank: None, size: None };

    /// Creates a local rank and a local size, of which either may be unknown, in a job of
    /// `world.size()` ranks.
    ///
    /// # Errors
    /// Returns an error if the local size is 0 or larger than the world size, or if the local rank
    /// is not smaller than the local size. If the local size is unknown, the local rank must be
    /// smaller than the world size.
    pub fn new(rank: Option<u32>, size: Option<u32>, world: Rank) -> Result<Local, RankError> {
        if let Some(size) = size.filter(|&size| size > world.size()) {
            return Err(RankError::AboveWorld { size, world: world.size() });
        }
        if let Some(index) = rank {
            Rank::new(index, size.unwrap_or(world.size()))?;
        } else if size == Some(0) {
            return Err(RankError::NoMembers);
        }
        Ok(Local { rank, size })
    }

    /// Returns the rank among the processes of this node, starting at 0. `None` if it is unknown.
    #[must_use]
    pub const fn rank(self) -> Option<u32> {
        self.rank
    }

    /// Returns the number of the job's processes on this node. `None` if it is unknown.
    #[must_use]
    pub const fn size(self) -> Option<u32> {
        self.size
    }
}

/// The error of [`Rank::new`] and [`Local::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// The size is 0.
    #[error("must be at least 1")]
    NoMembers,
    /// The rank is not below the size.
    #[error("must be from 0 to {}, because the size is {size}", size - 1)]
    Outside {
        /// The rank that was given.
        index: u32,
        /// The size it was given with.
        size: u32,
    },
    /// The node has more processes than the whole job.
    #[error("this node has {size} processes, but the whole job has only {world}")]
    AboveWorld {
        /// The local size that was given.
        size: u32,
        /// The world size it was given with.
        world: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_each_other_and_differ_by_one_at_most() {
        for (count, size) in [(0, 3), (1, 4), (7, 3), (12, 4), (usize::MAX, 7)] {
            let shares: Vec<_> =
                Rank::new(0, size).unwrap().all().map(|rank| rank.share_of(count)).collect();
            assert_eq!((shares[0].start, shares[size as usize - 1].end), (0, count));
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = || shares.iter().map(|share| share.end - share.start);
            assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1, "{shares:?}");
        }
    }
}
