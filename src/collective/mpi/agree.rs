//! The comparison of what the ranks call, which MPI leaves out.

use std::sync::Arc;

use super::{Mpi, lost};
use crate::call::{Call, Message};
use crate::error::{CollectiveError, Result, UNREADABLE};
use crate::transport::Transport as _;

/// The tag of what two ranks call.
const CALLED: u16 = 1;

/// How ranks compare a call over MPI.
impl Call {
    /// Two numbers that differ between calls. Their sums over 2^21 ranks are exact.
    pub(crate) fn fingerprints(self) -> [f64; 2] {
        // The last step of SplitMix64, once for each of the two parts.
        let mix = |bits: u64| {
            let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^ (bits >> 31)
        };
        let [operation, kind, refused] = self.codes();
        let codes = u64::from(u32::from_le_bytes([operation, kind, refused, 1]));
        let codes = codes | u64::from(self.root) << 32;
        let print = mix(mix(self.count.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ codes);
        [(print >> 32) as u32, print as u32].map(f64::from)
    }

    /// Encodes the whole call.
    pub(crate) fn described(self) -> Vec<u8> {
        [&self.count.to_le_bytes()[..], &self.root.to_le_bytes(), &self.codes()].concat()
    }

    /// Decodes what [`Call::described`] returns; `None` if it is something else.
    pub(crate) fn from_described(described: &[u8]) -> Option<Call> {
        let (count, rest) = described.split_first_chunk()?;
        let (root, codes) = rest.split_first_chunk()?;
        let codes = codes.try_into().ok()?;
        Call::from_codes(codes, u64::from_le_bytes(*count), u32::from_le_bytes(*root))
    }
}

impl Mpi {
    /// Compares this call with those of all other ranks, because MPI does not. Returns once all
    /// ranks have made it.
    ///
    /// Every call begins with this one MPI call, so that MPI itself never sees calls that differ.
    pub(super) fn agree(&self, call: Call) -> Result<()> {
        self.job.watch.notes([call; 2], &self.numbers);
        let mut prints = call.fingerprints();
        if self.job.spins {
            self.call(|ranks| ranks.all_reduce_sum(&mut prints))?;
        } else {
            let sum = self.wait(|ranks| ranks.start_all_reduce_sum(prints.to_vec()))?;
            prints.copy_from_slice(&sum);
        }
        // If any two ranks differ, no rank's fingerprints are the mean of all, so that all ranks go
        // on here. The exception are three or more calls whose fingerprints happen to have this
        // mean, one case in 2^64.
        let size = f64::from(self.rank().size());
        if prints == call.fingerprints().map(|print| size * print) {
            // The ranks have gone on after an error.
            self.ranks.communicator().note_failed(false);
            Ok(())
        } else {
            self.name_difference(call)
        }
    }

    /// Exchanges whole calls, which tell who has made another one.
    fn name_difference(&self, call: Call) -> Result<()> {
        let own = self.own_number();
        let described = call.described();
        let all = self.wait(|ranks| ranks.start_all_gather(&described))?;
        let all = all.chunks(described.len()).map(Call::from_described);
        let other = self.numbers.iter().zip(all).find(|(_, found)| *found != Some(call));
        other.map_or(Ok(()), |(&rank, found)| {
            Err(self.fail(|| match found {
                Some(found) => self.different_calls(rank, found, own, call),
                None => lost(rank, UNREADABLE),
            }))
        })
    }

    fn different_calls(&self, rank: u32, found: Call, own: u32, call: Call) -> CollectiveError {
        let [found, call] = [found, call].map(|call| call.in_job(&self.numbers));
        CollectiveError::different_calls(rank, found, own, call)
    }

    /// Returns the error of the call that fails, and keeps it for [`close`](crate::Group::close).
    pub(super) fn fail(&self, error: impl Fn() -> CollectiveError) -> CollectiveError {
        self.ranks.communicator().note_failed(true);
        self.job.failed.get_or_init(|| Arc::new(error()));
        error()
    }

    /// Compares the calls of the ranks that send and receive messages.
    pub(super) fn agree_on(&self, messages: &[Message]) -> Result<()> {
        let mut open = Vec::new();
        for Message { other, said, .. } in messages {
            let own = said.described();
            let room = vec![0; own.len()];
            let received = self.call(|ranks| ranks.start_receive(room, *other, CALLED))?;
            let sent = self.call(|ranks| ranks.start_send(own, *other, CALLED))?;
            open.push((*other, received, sent));
        }
        let mut calls = Vec::new();
        for (other, received, sent) in open {
            let found = self.wait(|_| Ok(received))?;
            self.wait(|_| Ok(sent))?;
            let unreadable = || self.fail(|| lost(self.numbers[other as usize], UNREADABLE));
            calls.push((other, Call::from_described(&found).ok_or_else(unreadable)?));
        }
        for &Message { other, said, heard } in messages {
            // A rank that both sends and receives makes two calls, in any order.
            if calls.iter().any(|&(rank, call)| rank == other && call.answers(heard)) {
                continue;
            }
            let found = calls.iter().find(|(rank, _)| *rank == other);
            let (rank, own) = (self.numbers[other as usize], self.own_number());
            let found = found.map_or(said, |(_, found)| *found);
            return Err(self.fail(|| self.different_calls(rank, found, own, said)));
        }
        Ok(())
    }
}
