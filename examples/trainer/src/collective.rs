//! What ranks do together: sum, gather, broadcast, wait.

pub mod alone;
#[cfg(feature = "mpi")]
pub mod mpi;
mod split;
pub mod tcp;
pub mod threads;

/// The same calls, in the same order, made by every rank of a group.
///
/// All ranks hold the same bits after a sum; over MPI in practice, not by promise.
pub trait Collective {
    /// This rank, and the size of the group.
    fn rank(&self) -> mpienv::Rank;

    /// Adds the ranks' `values` element by element; every rank gets the sum.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Every rank gets the bytes of every rank, in rank order; lengths may differ.
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Every rank gets the bytes of rank `root`.
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError>;

    /// Returns when every rank has called it.
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Ends all ranks of the job, this one too, with exit code `code`, after this rank has said its `last_words`.
    ///
    /// Where a rank can only end by itself, it does nothing and returns.
    fn abort(&mut self, _code: u8, _last_words: &mut dyn FnMut()) {}

    /// Ends what joins the ranks, once every rank is through; groups split from it cannot be used any more.
    fn end(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// Splits the group into groups of one `color` each, ordered by `key`, then by rank; this rank gets its own.
    ///
    /// Every rank of this group calls it. Both groups can be used afterwards, in any order that is the same on all
    /// their ranks. Errors of the new group name ranks of the group that was there first.
    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Collective>, CollectiveError>;

    /// Adds the ranks' `values`, and returns this rank's part of the sum: one of as many equal parts as there are
    /// ranks, in rank order.
    ///
    /// What does not do it otherwise sums everything on every rank.
    fn reduce_scatter_sum(&mut self, values: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        let mut sum = values.to_vec();
        self.all_reduce_sum(&mut sum)?;
        let rank = self.rank();
        let part = values.len() / rank.size() as usize;
        let start = part * rank.index() as usize;
        Ok(sum[start..start + part].to_vec())
    }

    /// Sends part number r to rank r, and returns what every rank sent to this one, in rank order.
    ///
    /// There is a part for every rank, and all parts of all ranks have the same length. What does not do it otherwise
    /// brings all parts to all ranks.
    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let rank = self.rank();
        let length = parts.first().map_or(0, Vec::len);
        let start = length * rank.index() as usize;
        let own = |all: Vec<u8>| all.get(start..start + length).map(<[u8]>::to_vec).unwrap_or_default();
        Ok(self.all_gather(&parts.concat())?.into_iter().map(own).collect())
    }
}

/// Why ranks could not do a thing together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank closed its connection, died or was killed.
    #[error("rank {rank} on {host} is lost: {reason}")]
    Lost { rank: u32, host: String, reason: String },
    /// A rank did not come in time.
    #[error("rank {rank} on {host} did not come within {seconds} s: it hangs, is cut off, or was never started")]
    TimedOut { rank: u32, host: String, seconds: f64 },
    /// A rank did not come in time, and nothing tells which.
    #[error("a rank did not come within {seconds} s over MPI; the launcher names the one that was lost")]
    SomeTimedOut { seconds: f64 },
    /// Nothing can watch over the ranks of an MPI job.
    #[cfg(feature = "mpi")]
    #[error("nothing can watch over the ranks: {0}")]
    Watch(std::io::Error),
    /// MPI returned an error.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(mpienv::mpi::MpiError),
    /// A rank brought more or fewer numbers to a sum.
    #[error(
        "rank {rank} brought {found} numbers to a sum of {expected}: all ranks must run the same program with the same options"
    )]
    Length { rank: u32, found: usize, expected: usize },
}

impl CollectiveError {
    /// Whether a rank did not come in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, CollectiveError::TimedOut { .. } | CollectiveError::SomeTimedOut { .. })
    }
}
