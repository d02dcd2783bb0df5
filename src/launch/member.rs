//! One started process: who it is among the job's.

use std::fmt;
use std::process::Child;

use crate::launch::output::Captured;

/// A worker, or the helper that some programs need beside rank 0's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Rank(u32),
    Scheduler,
}

impl Who {
    /// The folder of its output.
    pub(super) fn folder(self) -> String {
        match self {
            Who::Rank(rank) => format!("rank.{rank}"),
            Who::Scheduler => "scheduler".to_owned(),
        }
    }

    /// The rank of a worker.
    pub(super) fn rank(self) -> Option<u32> {
        match self {
            Who::Rank(rank) => Some(rank),
            Who::Scheduler => None,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Rank(rank) => rank.fmt(f),
            Who::Scheduler => f.write_str("scheduler"),
        }
    }
}

/// A process that was started and has not been waited for.
#[derive(Debug)]
pub(super) struct Member {
    pub who: Who,
    pub child: Child,
    pub captured: Captured,
}
