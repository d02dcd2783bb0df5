//! What carries the calls of a group.

use std::sync::Arc;
use std::time::Duration;

use super::call::{Call, Message};
use super::cancel::Cancel;
use super::error::{CollectiveError, Result};
use super::numbers::Numbers;
use super::reduction::Reduction;
use crate::value::rank::Rank;

/// A connection to another rank.
#[derive(Clone, Debug)]
pub struct Connection {
    /// It stays open as long as the transport.
    pub descriptor: std::os::fd::RawFd,
    /// The other rank's host, as errors have it.
    pub host: String,
}

/// What carries the calls of a [`Group`](super::Group): shared memory, TCP, MPI or threads.
///
/// Every rank makes the same calls in the same order, and the group has already checked the
/// arguments. If a rank is lost, hangs or makes another call, every call fails on all others.
#[expect(clippy::missing_errors_doc, reason = "all calls fail for the reasons above")]
pub trait Transport: Send {
    /// This rank and the size of the group.
    fn rank(&self) -> Rank;

    /// What the transport is, and why it was chosen.
    fn describe(&self) -> String;

    /// Notes that the group has made `made` calls before the next one, apart from messages between
    /// two ranks. A transport may use it to notice that ranks make different calls.
    fn note(&mut self, made: u32) {
        let _ = made;
    }

    /// Reduces the ranks' numbers element by element. Every rank, or only `root`, gets the result
    /// in place. The numbers of the other ranks do not change.
    fn reduce(
        &mut self,
        call: Call,
        numbers: Numbers<'_>,
        by: Reduction,
        root: Option<u32>,
    ) -> Result<()>;

    /// Like [`Transport::reduce`] to all ranks, but `compute` overwrites the numbers first, `part`
    /// bytes at a time: it gets the place of the first byte and the bytes. A transport may reduce
    /// the first numbers while ranks compute the next. Parts may have other lengths on other ranks.
    /// `other_work` is called once, when the last part is computed.
    fn reduce_in_parts(
        &mut self,
        call: Call,
        mut numbers: Numbers<'_>,
        by: Reduction,
        part: usize,
        compute: &mut dyn FnMut(usize, &mut [u8]),
        other_work: &mut dyn FnMut(),
    ) -> Result<()> {
        numbers.compute(part, compute);
        other_work();
        self.reduce(call, numbers, by, None)
    }

    /// Like [`Transport::reduce`], but every rank gets only its part of the result: the numbers
    /// from `rank * count / size` to `(rank + 1) * count / size` of the ranks' `values`.
    fn reduce_scatter(
        &mut self,
        call: Call,
        values: &[u8],
        part: Numbers<'_>,
        by: Reduction,
    ) -> Result<()>;

    /// Every rank, or only `root`, gets the bytes of every rank, by rank: `into` is empty on ranks
    /// that get none. All ranks know all lengths, which `call` has or an earlier call exchanged.
    fn gather(
        &mut self,
        call: Call,
        bytes: &[u8],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()>;

    /// Every rank, or only `root`, sends part r to rank r: `parts` has no part on ranks that send
    /// none. `into` gets a part of each of these ranks, by rank, or only that of `root`. All parts
    /// have the same length.
    fn scatter(
        &mut self,
        call: Call,
        parts: &[&[u8]],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()>;

    /// Every rank gets the bytes of rank `root`.
    fn broadcast(&mut self, call: Call, bytes: &mut [u8], root: u32) -> Result<()>;

    /// Sends a message to a rank and receives one from a rank, or does one of both. Returns once
    /// the other ranks have made the other half of the call.
    fn pass(
        &mut self,
        send: Option<(Message, &[u8])>,
        receive: Option<(Message, &mut [u8])>,
    ) -> Result<()>;

    /// Waits for the next message that a rank sends to this one, for at most `longest`. Returns its
    /// call, and leaves the message to [`Transport::pass`].
    fn next_message(&mut self, from: u32, longest: Duration) -> Result<Call> {
        let _ = (from, longest);
        let reason = format!("messages with tags do not go over {}", self.describe());
        Err(CollectiveError::Argument { call: "receive", reason })
    }

    /// The connections to the ranks of the group, by rank; none to this one. It is empty if the
    /// ranks are connected by other means.
    fn connections(&self) -> Vec<Option<Connection>> {
        Vec::new()
    }

    /// Fails the group because a rank brought what this one cannot take, for this `reason`.
    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError;

    /// Returns once every rank has made this call, which exchanges nothing else: a barrier, or a
    /// call whose arguments every rank refuses.
    fn meet(&mut self, call: Call) -> Result<()>;

    /// Splits the group into one group for each `color`, ordered by `key`, then by rank. Returns
    /// this rank's new group.
    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>>;

    /// Makes the calls of all other ranks fail, because this rank aborts the job for this `reason`.
    /// A transport that cannot prints the reason and exits all ranks, including this one, with
    /// `code`.
    fn abort(&mut self, code: u8, reason: &str);

    /// What cancels the calls of the transport.
    fn cancel(&self) -> Arc<Cancel>;

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
