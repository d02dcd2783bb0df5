//! A process that was started, and its role in the job.

use std::fmt;
use std::process::Child;

use crate::output::Captured;

/// A worker, or the scheduler that some programs need besides rank 0's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Role {
    /// The rank that it belongs to.
    pub rank: u32,
    pub is_scheduler: bool,
}

impl Role {
    /// Returns the folder for the output.
    pub(super) fn folder(self) -> String {
        if self.is_scheduler { self.to_string() } else { format!("rank.{self}") }
    }

    /// Returns the rank of a worker, or `None` for the scheduler.
    pub(super) fn worker(self) -> Option<u32> {
        (!self.is_scheduler).then_some(self.rank)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_scheduler { f.write_str("scheduler") } else { self.rank.fmt(f) }
    }
}

/// A process that was started and has not been waited for.
#[derive(Debug)]
pub(super) struct Member {
    pub role: Role,
    pub child: Child,
    pub captured: Captured,
    /// Whether it was dying when the first worker failed.
    pub is_dying: bool,
}
