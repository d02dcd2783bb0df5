//! A rank that is always inside its size.

use std::fmt;
use std::num::NonZeroU32;

/// A rank within a group of known size: `0 <= rank < size`, by construction.
///
/// ```
/// use mpienv::Rank;
///
/// let rank = Rank::new(3, 8)?;
/// assert_eq!((rank.index(), rank.size()), (3, 8));
/// assert!(!rank.is_first());
/// assert!(Rank::new(8, 8).is_err());
/// # Ok::<(), mpienv::RankError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    index: u32,
    size: NonZeroU32,
}

impl Rank {
    /// Rank `index` of a group of `size`.
    ///
    /// # Errors
    /// When `size` is 0, or `index` is not below it.
    pub const fn new(index: u32, size: u32) -> Result<Rank, RankError> {
        match NonZeroU32::new(size) {
            None => Err(RankError::NoMembers),
            Some(_) if index >= size => Err(RankError::Outside { index, size }),
            Some(size) => Ok(Rank { index, size }),
        }
    }

    /// The only rank of a group of one.
    pub const ALONE: Rank = Rank { index: 0, size: NonZeroU32::MIN };

    /// The number of this rank, counted from 0.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many ranks the group has; at least 1.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.size.get()
    }

    /// Whether this is rank 0.
    #[must_use]
    pub const fn is_first(self) -> bool {
        self.index == 0
    }

    /// All ranks of the group, in order.
    pub fn all(self) -> impl Iterator<Item = Rank> {
        let size = self.size;
        (0..size.get()).map(move |index| Rank { index, size })
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.index, self.size)
    }
}

/// Why two numbers are not a [`Rank`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// The size is 0.
    #[error("a group has at least one rank")]
    NoMembers,
    /// The rank is not below the size.
    #[error("ranks of a group of {size} are 0 to {}", size - 1)]
    Outside {
        /// The rank that was given.
        index: u32,
        /// The size it was given with.
        size: u32,
    },
}
