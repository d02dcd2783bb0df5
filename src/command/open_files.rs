//! The soft limit of open files while this process is rank 0 of a meeting, or serves the nodes of a
//! launch.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::ClusterInfo;

/// How many files each rank may take: its connection in the meeting, and one that a measurement
/// adds.
const FOR_EACH_RANK: u64 = 2;

/// A raised soft limit. Dropping it restores the limit that was there before: a program that this
/// process starts must not inherit the raised one, because some close every possible descriptor,
/// and `select` fails above 1024.
#[must_use]
pub(crate) struct OpenFiles {
    /// The soft limit that was there before, if it was raised.
    pub(crate) before: Option<u64>,
}

impl OpenFiles {
    /// Raises the limit as far as rank 0 of this job needs and the hard limit allows. The other
    /// ranks need no more files.
    pub(crate) fn for_meeting(info: &ClusterInfo) -> OpenFiles {
        let others = u64::from(info.world_size().saturating_sub(1));
        let limit = getrlimit(Resource::Nofile);
        // Without a soft limit there is nothing to raise.
        let before = limit.current.filter(|_| info.rank().is_first() && others > 0);
        // If this fails, the meeting may still fit, and its own error says what it lacks.
        let is_raised = |soft: &u64| {
            let needed = soft.saturating_add(FOR_EACH_RANK * others);
            set(limit.maximum.map_or(needed, |hard| needed.min(hard))).is_ok()
        };
        OpenFiles { before: before.filter(is_raised) }
    }
}

/// Lowers the soft limit of this process, which it or its parent has raised.
pub(crate) fn restore(before: u64) {
    // To lower it is always allowed, and files above it stay open.
    let _ = set(before);
}

fn set(soft: u64) -> rustix::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), ..limit })
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        self.before.into_iter().for_each(restore);
    }
}
