//! Collective calls: sum, gather, broadcast, barrier.

pub mod alone;
#[cfg(feature = "mpi")]
pub mod mpi;
mod split;
pub mod tcp;
pub mod threads;

/// A group of ranks. Every rank of it makes the same calls in the same order.
///
/// After a sum, all ranks hold the same bits. MPI does not promise this but does so in practice.
///
/// # Errors
/// Every call fails if a rank is lost or does not arrive within the timeout.
pub trait Collective {
    /// This rank and the size of the group.
    fn rank(&self) -> mpienv::Rank;

    /// Adds the ranks' `values` element by element. Every rank gets the sum.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Every rank gets the bytes of every rank, in rank order. Lengths may differ.
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Every rank gets the bytes of rank `root`.
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError>;

    /// Returns once every rank has called it.
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Calls `last_words` and exits all ranks of the job, including this one, with `code`.
    ///
    /// If the transport cannot exit other ranks, it does nothing and returns.
    fn abort(&mut self, _code: u8, _last_words: &mut dyn FnMut()) {}

    /// Closes the transport once every rank has called it. Groups split from it cannot be used afterwards.
    fn end(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// Splits the group into one group for each `color`, ordered by `key`, then by rank. This rank gets its own group.
    ///
    /// Both groups can be used afterwards, in any order that is the same on all their ranks. Errors of the new group name
    /// ranks by their number in the original group.
    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Collective>, CollectiveError>;

    /// Adds the ranks' `values` and returns this rank's part of the sum, which is cut in equal parts in rank order.
    ///
    /// By default, every rank computes the whole sum.
    fn reduce_scatter_sum(&mut self, values: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        let mut sum = values.to_vec();
        self.all_reduce_sum(&mut sum)?;
        let rank = self.rank();
        let part = values.len() / rank.size() as usize;
        let start = part * rank.index() as usize;
        Ok(sum[start..start + part].to_vec())
    }

    /// Sends part r to rank r and returns the parts that every rank sent to this one, in rank order.
    ///
    /// All parts of all ranks have the same length. By default, all parts travel to all ranks.
    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let rank = self.rank();
        let length = parts.first().map_or(0, Vec::len);
        let start = length * rank.index() as usize;
        let own = |all: Vec<u8>| all.get(start..start + length).map(<[u8]>::to_vec).unwrap_or_default();
        Ok(self.all_gather(&parts.concat())?.into_iter().map(own).collect())
    }
}

/// Why a collective call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank closed its connection or was killed.
    #[error("rank {rank} on {host} is lost: {reason}")]
    Lost { rank: u32, host: String, reason: String },
    /// A rank did not arrive in time.
    #[error("rank {rank} on {host} did not come within {seconds} s: it hangs, is cut off, or was never started")]
    TimedOut { rank: u32, host: String, seconds: f64 },
    /// An unknown rank did not arrive in time.
    #[error("a rank did not come within {seconds} s over MPI; the launcher names the one that was lost")]
    SomeTimedOut { seconds: f64 },
    /// The ranks of an MPI job cannot be monitored.
    #[cfg(feature = "mpi")]
    #[error("cannot monitor the ranks: {0}")]
    Watch(std::io::Error),
    /// MPI returned an error.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(mpienv::mpi::MpiError),
    /// A rank contributed another count of numbers to a sum.
    #[error(
        "rank {rank} brought {found} numbers to a sum of {expected}: all ranks must run the same program with the same options"
    )]
    Length { rank: u32, found: usize, expected: usize },
}

impl CollectiveError {
    pub fn is_timeout(&self) -> bool {
        matches!(self, CollectiveError::TimedOut { .. } | CollectiveError::SomeTimedOut { .. })
    }
}
