//! Waits for other ranks: by polling, then by yielding, then asleep.

use std::time::{Duration, Instant};

use super::Shared;
use crate::error::{CollectiveError, Result};

/// How long a rank polls before it yields, if every rank has its own core.
const SPIN: Duration = Duration::from_micros(50);
/// How long after the start of the wait a rank polls and yields before it sleeps.
const YIELD: Duration = Duration::from_millis(1);
/// The first and the longest sleep before a check for lost ranks.
const NAPS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

impl Shared {
    /// Waits until a rank has published the current round.
    pub(super) fn wait_for(&self, rank: usize) -> Result<()> {
        let (memory, members) = (&self.memory, &self.tcp.members);
        let has_published = || memory.has_published(rank);
        let sleep = |longest| memory.sleep(rank, longest);
        // A rank that waits for this one in a message has not made this call.
        let fault = || {
            let (other, found) = memory.waiting_after(self.calls.wrapping_sub(1))?;
            Some(members.differs(other, found))
        };
        self.wait(self.timeout(), &[rank], has_published, sleep, fault)
    }

    /// Whether all other ranks publish the current round within `longest`, for which this rank polls.
    /// A rank that shares its core with another does not: it would only keep the other from coming.
    pub(super) fn have_come(&self, longest: Duration) -> bool {
        let (memory, begun) = (&self.memory, Instant::now());
        self.others().all(|rank| {
            while !memory.has_published(rank) {
                if memory.is_on_this_processor(rank) || begun.elapsed() >= longest {
                    return false;
                }
                std::hint::spin_loop();
            }
            true
        })
    }

    /// How long a rank waits for another in a call.
    pub(super) fn timeout(&self) -> Duration {
        self.tcp.members.links().timeout
    }

    /// Waits until what ranks must do `has_come`. `sleep` ends early when it comes; after each sleep,
    /// `fault` looks for a rank that makes another call.
    pub(super) fn wait(
        &self,
        timeout: Duration,
        ranks: &[usize],
        has_come: impl Fn() -> bool,
        sleep: impl Fn(Duration),
        fault: impl Fn() -> Option<CollectiveError>,
    ) -> Result<()> {
        // Often it has already come. Do not read the clock then.
        if has_come() {
            return Ok(());
        }
        let begun = Instant::now();
        let shares_core = || ranks.iter().any(|&rank| self.memory.is_on_this_processor(rank));
        // First poll: a rank on a core of its own comes within microseconds, before a yield would
        // return. A rank that shares this core cannot come until this one gives it up.
        while self.spins && begun.elapsed() < SPIN && !shares_core() {
            for _ in 0..32 {
                if has_come() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        // Then yield: ranks that share a core take turns, and no sleep delays the answer.
        while begun.elapsed() < YIELD {
            if has_come() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        // Then sleep until the rank wakes this one. A killed rank never does, but its connection
        // closes: look at the connections after each nap.
        let (mut nap, members) = (NAPS[0], &self.tcp.members);
        loop {
            sleep(nap);
            if has_come() {
                return Ok(());
            }
            members.check_while_waiting(ranks, begun, &has_come)?;
            if let Some(error) = fault() {
                return Err(error);
            }
            if begun.elapsed() >= timeout {
                return Err(members.late_after(ranks[0], timeout));
            }
            nap = (2 * nap).min(NAPS[1]);
        }
    }
}
