//! What ranks do together: sum, gather, broadcast, wait.

pub mod alone;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod tcp;
pub mod threads;

/// The same calls, in the same order, made by every rank of a group.
///
/// All ranks hold the same bits after a sum; over MPI in practice, not by promise.
pub trait Collective {
    /// This rank, and the size of the group.
    fn rank(&self) -> mpienv::Rank;

    /// Adds the ranks' `values` element by element; every rank gets the sum.
    ///
    /// # Errors
    /// When a rank is lost, hangs beyond the timeout, or brings another length.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Every rank gets the bytes of every rank, in rank order; lengths may differ.
    ///
    /// # Errors
    /// As [`Collective::all_reduce_sum`].
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Every rank gets the bytes of rank `root`.
    ///
    /// # Errors
    /// As [`Collective::all_reduce_sum`].
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Collective::all_reduce_sum`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Ends all ranks of the job, this one too, with exit code `code`, after this rank has said its `last_words`.
    ///
    /// Where a rank can only end by itself, it does nothing and returns.
    fn abort(&mut self, _code: u8, _last_words: &mut dyn FnMut()) {}
}

/// Why ranks could not do a thing together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank closed its connection, died or was killed.
    #[error("rank {rank} on {host} is lost: {reason}")]
    Lost {
        /// The rank that is gone.
        rank: u32,
        /// Where it ran, as far as this rank knows.
        host: String,
        /// What was seen.
        reason: String,
    },
    /// A rank did not come in time.
    #[error("rank {rank} on {host} did not come within {seconds} s: it hangs, is cut off, or was never started")]
    TimedOut {
        /// The first rank that is missing.
        rank: u32,
        /// Where it runs, as far as this rank knows.
        host: String,
        /// How long this rank waited, in seconds.
        seconds: f64,
    },
    /// A rank did not come in time, and nothing tells which.
    #[error("a rank did not come within {seconds} s over MPI; the launcher names the one that was lost")]
    SomeTimedOut {
        /// How long this rank waited, in seconds.
        seconds: f64,
    },
    /// MPI returned an error.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(mpienv::mpi::Error),
    /// A rank brought more or fewer numbers to a sum.
    #[error(
        "rank {rank} brought {found} numbers to a sum of {expected}: all ranks must run the same program with the same options"
    )]
    Length {
        /// The rank that differs.
        rank: u32,
        /// How many numbers it brought.
        found: usize,
        /// How many this rank brought.
        expected: usize,
    },
}

impl CollectiveError {
    /// Whether a rank did not come in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, CollectiveError::TimedOut { .. } | CollectiveError::SomeTimedOut { .. })
    }
}
