//! What carries the calls of a group.

use super::call::Call;
use super::element::{Numbers, Reduction};
use super::error::Result;
use crate::value::rank::Rank;

/// What carries the calls of a [`Group`](super::Group): shared memory, TCP, MPI or threads.
///
/// Every rank makes the same calls in the same order, and the group has already checked the
/// arguments. If a rank is lost, hangs or makes another call, every call fails on all others.
#[expect(clippy::missing_errors_doc, reason = "all calls fail for the reasons above")]
pub trait Transport {
    /// This rank and the size of the group.
    fn rank(&self) -> Rank;

    /// What the transport is, and why it was chosen.
    fn describe(&self) -> String;

    /// Reduces the ranks' numbers element by element. Every rank gets the result in place.
    fn all_reduce(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<()>;

    /// Like [`Transport::all_reduce`], but every rank needs only its part: the numbers from
    /// `rank * count / size` to `(rank + 1) * count / size`. The other numbers are then undefined.
    fn reduce_scatter(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.all_reduce(numbers, by)
    }

    /// Every rank gets the bytes of every rank, in rank order. Lengths may differ.
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Sends part r to rank r and returns the parts that every rank sent to this one, in rank
    /// order. There is one part for each rank, and all parts have the same length.
    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>>;

    /// Every rank gets the bytes of rank `root`.
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()>;

    /// Returns once every rank has made this call, which exchanges nothing else: a barrier, or a
    /// call whose arguments every rank refuses.
    fn meet(&mut self, call: Call) -> Result<()>;

    /// Splits the group into one group for each `color`, ordered by `key`, then by rank. Returns
    /// this rank's new group.
    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>>;

    /// Makes the calls of all other ranks fail, because this rank aborts the job. A transport that
    /// can exit the other ranks calls `last_words` and exits all ranks, including this one, with
    /// `code`.
    fn abort(&mut self, code: u8, last_words: &mut dyn FnMut());

    /// Closes the transport, after waiting for all ranks if it needs to.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    /// How many bytes this rank has written to other ranks, protocol included; `None` if unknown.
    fn bytes_sent(&self) -> Option<u64> {
        None
    }

    /// How many connections were rejected because they were not from ranks of this job.
    fn rejected(&self) -> u64 {
        0
    }
}
