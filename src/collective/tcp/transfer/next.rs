//! Waits for a message without receiving it.

use std::time::{Duration, Instant};

use super::{Culprit, Links};
use crate::call::Call;
use crate::error::Result;
use crate::transport::Connection;

impl Links {
    /// Waits until the head of a peer's next message, which has this number, has arrived, but not
    /// longer than `longest`. Returns its call. The message stays in the connection.
    pub(in super::super) fn next_message(
        &mut self,
        index: usize,
        number: u32,
        longest: Duration,
    ) -> Result<Call> {
        self.check()?;
        self.peers.iter_mut().flatten().for_each(|peer| peer.begin());
        let begun = Instant::now();
        loop {
            match self.peers[index].as_mut().map(|peer| peer.arrived(number)) {
                Some(Ok(Some(call))) => return Ok(call),
                Some(Ok(None)) | None => {}
                Some(Err(fault)) => return Err(self.give_up(&[], Culprit(index, fault))),
            }
            if self.cancel.is_set() {
                return Err(self.give_up_canceled(&[]));
            }
            let waited = begun.elapsed();
            if waited < self.spin {
                std::hint::spin_loop();
                continue;
            }
            if waited >= longest {
                return Err(self.attribute_timeout(index, None));
            }
            self.awaited = Some((index, begun));
            if self.cancel.ends_wait() {
                return Err(self.give_up_canceled(&[]));
            }
            let rest = longest - waited;
            let nap = rest.min(self.cancel.patience().unwrap_or(rest));
            if let Some(culprit) = self.sleep(nap, false, &|| true) {
                return Err(self.give_up(&[], culprit));
            }
        }
    }

    /// The connection to a peer.
    pub(in super::super) fn connection(&self, index: usize) -> Option<Connection> {
        let peer = self.peers.get(index)?.as_ref()?;
        Some(Connection { descriptor: peer.descriptor(), host: peer.host.clone() })
    }
}
