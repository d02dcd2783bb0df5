//! Waits in which no bytes of this rank's call are due over its connections: because they go by
//! other means, such as shared memory, or because the rank looks at a message before it receives it.

use std::time::{Duration, Instant};

use super::super::peer::{Fault, Peer, Progress};
use super::{Culprit, Exchange, Links};
use crate::call::{Call, Difference};
use crate::error::{CollectiveError, Result};
use crate::transport::Connection;

/// Moves what can move of the messages that pass by other means during a transfer.
pub(crate) type Beside<'a> = dyn FnMut() -> Result<Progress, Difference> + 'a;

/// How long a transfer sleeps while such messages pass, which do not wake it.
pub(super) const NAP: Duration = Duration::from_millis(1);

impl Links {
    /// Begins a call. Fails as [`Links::check`] does.
    pub(in super::super) fn begin(&mut self, call: Call) -> Result<()> {
        self.check()?;
        // The times of earlier calls tell nothing of this one. Reading the clock would take as long
        // as some of the calls.
        (self.current.call, self.awaited, self.ended) = (call, None, None);
        Ok(())
    }

    /// Checks for peers that are lost or have given up, while this rank has been waiting since
    /// `since` for those `awaited` by means other than their connections. If what it waits for
    /// `has_come`, this call goes on and the next one fails.
    pub(in super::super) fn check_while_waiting(
        &mut self,
        awaited: &[usize],
        since: Instant,
        has_come: &dyn Fn() -> bool,
    ) -> Result<()> {
        if self.cancel.ends_wait() {
            return Err(self.give_up_canceled(&[]));
        }
        self.awaited = awaited.first().map(|&first| (first, since));
        for (index, peer) in self.peers.iter_mut().enumerate() {
            if let Some(peer) = peer {
                peer.is_through = !awaited.contains(&index);
            }
        }
        let culprit = self.sleep(Duration::ZERO, true, &|| !has_come());
        let culprit = culprit.or_else(|| self.out_of_order(&|_| false));
        let has_left = |index: &&usize| {
            let peer = self.peers.get(**index).and_then(Option::as_ref);
            peer.is_some_and(Peer::has_said_goodbye) && !has_come()
        };
        let left = awaited.iter().find(has_left);
        let culprit = culprit.or(left.map(|&index| Culprit(index, Fault::left(self.current.call))));
        let is_due = |index| awaited.contains(&index);
        let culprit = culprit.or_else(|| self.noted_since(since, &is_due).filter(|_| !has_come()));
        culprit.map_or(Ok(()), |culprit| Err(self.give_up(&[], culprit)))
    }

    /// Gives up because a peer's message, by other means, is not what this rank's call needs.
    pub(super) fn give_up_differing(
        &mut self,
        all: &[Exchange<'_>],
        difference: Difference,
    ) -> CollectiveError {
        self.current.call = difference.own;
        let fault = difference.found.map_or_else(Fault::unreadable, Fault::Differs);
        self.give_up(all, Culprit(difference.rank, fault))
    }

    /// Waits until the head of a peer's next message, which has this number, has arrived, but not
    /// longer than `longest`. Returns its call. The message stays in the connection.
    pub(in super::super) fn next_message(
        &mut self,
        index: usize,
        number: u32,
        longest: Duration,
    ) -> Result<Call> {
        self.check()?;
        self.peers.iter_mut().flatten().for_each(Peer::begin);
        let begun = Instant::now();
        loop {
            if let Some(call) = self.arrived(index, number)? {
                return Ok(call);
            }
            if self.cancel.is_set() {
                return Err(self.give_up_canceled(&[]));
            }
            self.wait(index, begun, longest, longest, &[])?;
        }
    }

    /// Whether the head of a peer's next message, which has this number, has arrived.
    pub(in super::super) fn has_message(&mut self, index: usize, number: u32) -> Result<bool> {
        self.check()?;
        self.peers.iter_mut().flatten().for_each(Peer::begin);
        Ok(self.arrived(index, number)?.is_some())
    }

    /// The call of a peer's next message, which has this number, once its head has arrived.
    fn arrived(&mut self, index: usize, number: u32) -> Result<Option<Call>> {
        let Some(peer) = &mut self.peers[index] else { return Ok(None) };
        match peer.arrived(number) {
            Ok(call) => {
                // The sender waits from now on, however long ago this rank's last call was.
                self.ended = self.ended.filter(|_| call.is_none());
                Ok(call)
            }
            Err(fault) => Err(self.give_up(&[], Culprit(index, fault))),
        }
    }

    /// The connection to a peer.
    pub(in super::super) fn connection(&self, index: usize) -> Option<Connection> {
        let peer = self.peers.get(index)?.as_ref()?;
        Some(Connection { descriptor: peer.descriptor(), host: peer.host.clone() })
    }
}
