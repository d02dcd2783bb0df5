//! What carries the calls of a group.

use super::call::Call;
use super::element::{Numbers, Reduction};
use super::error::{CollectiveError, Result};
use crate::value::rank::Rank;

/// What carries the calls of a [`Group`](super::Group): shared memory, TCP, MPI or threads.
///
/// Implement this trait to put something between a group and its transport, such as a counter or,
/// in tests, a fault. Every rank makes the same calls in the same order. [`Group`](super::Group)
/// has already checked the arguments.
///
/// ```
/// use mpienv::Rank;
/// use mpienv::collective::{CollectiveError, Group, Numbers, Reduction, Transport};
///
/// /// Counts the numbers that are reduced.
/// struct Counting(Box<dyn Transport>, usize);
///
/// impl Transport for Counting {
///     fn rank(&self) -> Rank {
///         self.0.rank()
///     }
///     fn describe(&self) -> String {
///         format!("{}, {} numbers so far", self.0.describe(), self.1)
///     }
///     fn all_reduce(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<(), CollectiveError> {
///         self.1 += numbers.count();
///         self.0.all_reduce(numbers, by)
///     }
///     fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
///         self.0.all_gather(bytes)
///     }
///     fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<(), CollectiveError> {
///         self.0.broadcast(bytes, root)
///     }
///     fn barrier(&mut self) -> Result<(), CollectiveError> {
///         self.0.barrier()
///     }
///     fn refuse(&mut self, call: &'static str) -> Result<(), CollectiveError> {
///         self.0.refuse(call)
///     }
///     fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>, CollectiveError> {
///         self.0.split(color, key)
///     }
/// }
///
/// let mut group = Group::new(Box::new(Counting(Group::alone().into_transport(), 0)));
/// group.all_reduce_sum(&mut [1.0_f32; 5])?;
/// assert_eq!(group.describe(), "a single rank, 5 numbers so far");
/// # Ok::<(), CollectiveError>(())
/// ```
pub trait Transport {
    /// This rank and the size of the group.
    fn rank(&self) -> Rank;

    /// What the transport is, and why it was chosen.
    fn describe(&self) -> String;

    /// Reduces the ranks' numbers element by element. Every rank gets the result in place.
    ///
    /// # Errors
    /// If a rank is lost, hangs or makes another call.
    fn all_reduce(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<()>;

    /// Like [`Transport::all_reduce`], but every rank needs only its part: the numbers from
    /// `rank * count / size` to `(rank + 1) * count / size`. The other numbers are then undefined.
    ///
    /// By default, every rank computes all parts.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn reduce_scatter(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.all_reduce(numbers, by)
    }

    /// Every rank gets the bytes of every rank, in rank order. Lengths may differ.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Sends part r to rank r and returns the parts that every rank sent to this one, in rank
    /// order. There is one part for each rank, and all parts have the same length.
    ///
    /// By default, all parts go to all ranks.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let all = self.all_gather(&parts.concat())?;
        parts_for(self.rank(), parts[self.rank().index() as usize].len(), &all)
    }

    /// Every rank gets the bytes of rank `root`.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()>;

    /// Returns once every rank has made this call.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn barrier(&mut self) -> Result<()>;

    /// Tells the other ranks that this one refuses its own arguments of `call`, so that they do not
    /// wait for it. If all ranks refuse the same call, this succeeds, and the transport can still
    /// be used.
    ///
    /// Does nothing by default: a transport around another one must pass this on.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn refuse(&mut self, _call: &'static str) -> Result<()> {
        Ok(())
    }

    /// Splits the group into one group for each `color`, ordered by `key`, then by rank. Returns
    /// this rank's new group.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>>;

    /// Calls `last_words` and exits all ranks of the job, including this one, with `code`.
    ///
    /// By default, or if the transport cannot exit other ranks, returns without doing anything.
    fn abort(&mut self, _code: u8, _last_words: &mut dyn FnMut()) {}

    /// Closes the transport, after waiting for all ranks if it needs to. Does nothing by default.
    ///
    /// # Errors
    /// As [`Transport::all_reduce`].
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    /// How many bytes this rank has written to other ranks, protocol included; `None`, the default,
    /// if unknown.
    fn bytes_sent(&self) -> Option<u64> {
        None
    }

    /// How many connections were rejected because they were not from ranks of this job; 0 by
    /// default.
    fn rejected(&self) -> u64 {
        0
    }
}

/// Takes this rank's part from the bytes of each rank, which are one part of `length` for each rank.
fn parts_for(own: Rank, length: usize, all: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let (start, size) = (length * own.index() as usize, own.size() as usize);
    let part = |(bytes, rank): (&Vec<u8>, Rank)| {
        if bytes.len() == length * size {
            return Ok(bytes[start..start + length].to_vec());
        }
        let [found, expected] = [bytes.len() / size, length].map(Call::all_to_all);
        Err(CollectiveError::different_calls(rank.index(), found, own.index(), expected))
    };
    all.iter().zip(own.all()).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_whose_parts_have_another_length_is_named() {
        let own = Rank::new(1, 2).unwrap();
        let parts = |other: &[u8]| parts_for(own, 2, &[other.to_vec(), vec![5, 6, 7, 8]]);
        assert_eq!(parts(&[1, 2, 3, 4]).unwrap(), [[3, 4], [7, 8]]);
        assert_eq!(parts(&[1, 2]).unwrap_err().rank(), Some(0));
    }
}
