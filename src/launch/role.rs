//! One started process: who it is among the job's.

use std::fmt;
use std::process::Child;

use crate::launch::output::Captured;

/// A worker, or the helper that some programs need beside rank 0's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Rank(u32),
    Scheduler,
}

impl Role {
    /// The folder of its output.
    pub(super) fn folder(self) -> String {
        match self {
            Role::Rank(rank) => format!("rank.{rank}"),
            Role::Scheduler => "scheduler".to_owned(),
        }
    }

    /// The rank of a worker.
    pub(super) fn rank(self) -> Option<u32> {
        match self {
            Role::Rank(rank) => Some(rank),
            Role::Scheduler => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Rank(rank) => rank.fmt(f),
            Role::Scheduler => f.write_str("scheduler"),
        }
    }
}

/// A process that was started and has not been waited for.
#[derive(Debug)]
pub(super) struct Member {
    pub role: Role,
    pub child: Child,
    pub captured: Captured,
}
