//! A process that was started, and its role in the job.

use std::fmt;
use std::process::Child;

use crate::output::Captured;

/// A worker, or the scheduler that some programs need besides rank 0's worker, with the rank that
/// it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Rank(u32),
    Scheduler(u32),
}

impl Role {
    /// Returns the folder for the output.
    pub(super) fn folder(self) -> String {
        match self {
            Role::Rank(rank) => format!("rank.{rank}"),
            Role::Scheduler(_) => "scheduler".to_owned(),
        }
    }

    /// Returns the rank that it belongs to.
    pub(super) fn belongs_to(self) -> u32 {
        match self {
            Role::Rank(rank) | Role::Scheduler(rank) => rank,
        }
    }

    /// Returns the rank of a worker, or `None` for the scheduler.
    pub(super) fn rank(self) -> Option<u32> {
        match self {
            Role::Rank(rank) => Some(rank),
            Role::Scheduler(_) => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Rank(rank) => rank.fmt(f),
            Role::Scheduler(_) => f.write_str("scheduler"),
        }
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
