//! Waits for another rank: by polling, then by yielding, then asleep.

use std::time::{Duration, Instant};

use super::Shared;
use crate::error::Result;

/// How long a rank polls before it yields, if every rank has its own core.
const SPIN: Duration = Duration::from_micros(50);
/// How long after the start of the wait a rank polls and yields before it sleeps.
const YIELD: Duration = Duration::from_millis(1);
/// The first and the longest sleep before a check for lost ranks.
const NAPS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

impl Shared {
    /// Waits until a rank has published the current round.
    pub(super) fn wait_for(&self, rank: usize) -> Result<()> {
        let memory = &self.memory;
        // Often the rank has already published. Do not read the clock then.
        if memory.has_published(rank) {
            return Ok(());
        }
        let begun = Instant::now();
        // First poll: a rank on a core of its own publishes within microseconds, before a yield
        // would return. A rank that shares this core cannot publish until this one gives it up.
        while self.spins && begun.elapsed() < SPIN && !memory.is_on_this_processor(rank) {
            for _ in 0..32 {
                if memory.has_published(rank) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        // Then yield: ranks that share a core take turns, and no sleep delays the answer.
        while begun.elapsed() < YIELD {
            if memory.has_published(rank) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        // Then sleep until the rank wakes this one. A killed rank never does, but its connection
        // closes: look at the connections after each nap.
        let (mut nap, timeout) = (NAPS[0], self.tcp.members().timeout());
        loop {
            memory.sleep(rank, nap);
            if memory.has_published(rank) {
                return Ok(());
            }
            let has_come = || memory.has_published(rank);
            self.tcp.members().check_while_waiting(rank, begun, &has_come)?;
            if begun.elapsed() >= timeout {
                return Err(self.tcp.members().late(rank));
            }
            nap = (2 * nap).min(NAPS[1]);
        }
    }
}
