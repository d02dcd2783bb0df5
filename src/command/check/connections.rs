//! Rank 0 gives orders to all other ranks and gets their answers, over connections that stay open
//! after a meeting.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use mpienv_rendezvous::seam::star::{Heard, Star};
use mpienv_rendezvous::seam::{Role, stay_connected};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::CheckError;
use crate::printable;
use crate::rendezvous::Rendezvous;

/// How long an end may be silent. A rank that measures sends no heartbeat meanwhile.
const SILENCE: Duration = Duration::from_secs(120);
/// How long the other ranks may take to close their connections at the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// What rank 0 says to all other ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// These pairs of hosts measure what is between them.
    Measure { pairs: Vec<(usize, usize)>, attempt: usize },
    /// Every rank measures its cores.
    Compute,
    /// Everything is measured.
    End,
    /// This rank was lost, which ends the check.
    Lost { rank: u32, host: String, reason: String },
}

/// This rank's end of the connections: to all other ranks, or to rank 0.
pub(super) struct Connections {
    star: Star,
    /// What has arrived and was not yet returned. Two orders may arrive at once.
    heard: VecDeque<(u32, Heard)>,
}

impl Connections {
    /// Meets the other ranks.
    pub(super) fn meet(rendezvous: &Rendezvous) -> Result<Connections, CheckError> {
        let nothing = Vec::new;
        let met = stay_connected(rendezvous, Role::Checks, SILENCE, nothing(), |_| nothing());
        let (_, star) = met?;
        let star = star.map_err(CheckError::Socket)?;
        Ok(Connections { star, heard: VecDeque::new() })
    }

    /// Gives an order to all other ranks, does rank 0's own part, and returns the answers of these
    /// ranks in their order.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        order: &Order,
        ranks: &[u32],
        own: impl FnOnce() -> T,
    ) -> Result<Vec<T>, CheckError> {
        let begun = Instant::now();
        self.say(order)?;
        let mut answers: Vec<Option<T>> = ranks.iter().map(|_| None).collect();
        if let Some(at) = ranks.iter().position(|&rank| rank == 0) {
            answers[at] = Some(own());
        }
        while let Some(at) = answers.iter().position(Option::is_none) {
            if begun.elapsed() > SILENCE {
                return Err(CheckError::lost(ranks[at], &io::ErrorKind::TimedOut.into()));
            }
            if let Some((rank, bytes)) = self.hear()?
                && let Some(at) = ranks.iter().position(|&other| other == rank)
            {
                answers[at] = Some(serde_json::from_slice(&bytes).map_err(CheckError::Report)?);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns rank 0's next order.
    pub(super) fn next(&mut self) -> Result<Order, CheckError> {
        loop {
            if let Some((_, bytes)) = self.hear()? {
                return serde_json::from_slice(&bytes).map_err(CheckError::Report);
            }
        }
    }

    /// Returns what has arrived next, and from whom. `None` if it is not a message, or if nothing has
    /// arrived for a while.
    fn hear(&mut self) -> Result<Option<(u32, Vec<u8>)>, CheckError> {
        if self.heard.is_empty() {
            self.heard.extend(self.star.turn(&[]).map_err(CheckError::Socket)?);
        }
        match self.heard.pop_front() {
            Some((rank, Heard::Said(bytes))) => Ok(Some((rank, bytes))),
            Some((rank, Heard::Lost(error))) => Err(CheckError::lost(rank, &error)),
            Some((_, Heard::Came)) | None => Ok(None),
        }
    }

    /// Sends a message to the other end of every connection.
    pub(super) fn say(&mut self, message: &impl Serialize) -> Result<(), CheckError> {
        self.star.send_to_all(&serde_json::to_vec(message).map_err(CheckError::Report)?);
        Ok(())
    }

    /// Ends the check on rank 0, for all ranks.
    pub(super) fn end(mut self, order: &Order) -> Result<(), CheckError> {
        self.say(order)?;
        self.star.close(FAREWELL);
        Ok(())
    }
}

impl CheckError {
    fn lost(rank: u32, error: &io::Error) -> CheckError {
        let reason = printable(error.to_string().as_bytes());
        CheckError::LostRank { rank, host: String::new(), reason }
    }
}
