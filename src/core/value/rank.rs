//! A rank that is always smaller than its group's size.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

/// A rank in a group of known size. It prints as its [`index`](Rank::index). The constructor
/// guarantees `rank < size`.
///
/// ```
/// use mpienv::{Rank, RankError};
///
/// let rank = Rank::new(3, 8)?;
/// assert_eq!((rank.index(), rank.size()), (3, 8));
/// assert!(!rank.is_first());
/// assert_eq!(rank.all().nth(3), Some(rank));
/// assert_eq!(Rank::new(0, 1)?, Rank::ALONE);
/// assert!(matches!(Rank::new(8, 8), Err(RankError::Outside { index: 8, size: 8, .. })));
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

/// Why two numbers are not a rank and the size of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// The size is 0.
    #[error("must be at least 1")]
    NoMembers,
    /// The rank is not below the size.
    #[error("must be from 0 to {}, because the size is {size}", size - 1)]
    #[non_exhaustive]
    Outside {
        /// The rank that was given.
        index: u32,
        /// The size it was given with.
        size: u32,
    },
    /// The node has more processes than the whole job.
    #[error("this node has {size} processes, but the whole job has only {world}")]
    #[non_exhaustive]
    AboveWorld {
        /// The local size that was given.
        size: u32,
        /// The world size it was given with.
        world: u32,
    },
}

/// Returns the first and the last rank of each run of consecutive ranks.
pub fn runs(ranks: &[u32]) -> Vec<(u32, u32)> {
    let runs = ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    runs.filter_map(|run| Some((*run.first()?, *run.last()?))).collect()
}

/// Formats sorted numbers as `0-3,7`.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    list(&runs(numbers), ",")
}

/// Formats runs as `0-3` and `7`, with this text between them.
pub fn list<'a>(runs: impl IntoIterator<Item = &'a (u32, u32)>, between: &str) -> String {
    let texts = runs.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(between)
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
