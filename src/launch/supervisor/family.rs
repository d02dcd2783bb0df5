//! Finds the descendants of a launch's workers, including those that left their group or lost their
//! parents.
//!
//! A process that has a parent is found through the parent. If its parents have exited, Linux has
//! given it to an ancestor of the launching process, or to that process itself. It is then
//! recognized by an inherited variable whose name is unique to this launch. A process that has the
//! variable but another parent got the variable from another process, as jobs do from schedulers,
//! and does not descend from a worker.

use rustix::process::{Pid, getpid};

use super::processes::{Listing, Process};

/// The processes of one launch that have been seen.
#[derive(Debug)]
pub(super) struct Family {
    /// The variable that workers and all their descendants inherit.
    pub marker: String,
    /// When the launching process started. Orphans of its workers are younger.
    pub since: u64,
    /// The processes that the last look found, and when they started.
    known: Vec<(Pid, u64)>,
}

impl Family {
    pub(super) fn new(marker: String, since: u64) -> Family {
        Family { marker, since, known: Vec::new() }
    }

    /// Returns the living processes that `is_first` accepts, the orphans that were given to one of
    /// `ancestors`, and all descendants of these and of the processes found before.
    pub(super) fn living(
        &mut self,
        listing: Listing,
        all: &[Process],
        ancestors: &[Pid],
        is_first: impl Fn(&Process) -> bool,
    ) -> Vec<Process> {
        let is_orphan = |process: &Process| {
            process.parent.is_some_and(|parent| ancestors.contains(&parent))
                // Only orphans are checked, because reading a stuck process's variables can block
                // forever.
                && process.start >= self.since
                && listing.has_variable(process.id, &self.marker)
        };
        let is_known = |process: &Process| self.known.contains(&(process.id, process.start));
        let is_root =
            |process: &&Process| is_first(process) || is_known(process) || is_orphan(process);
        let mut found: Vec<Process> = all.iter().filter(is_root).copied().collect();
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|process| process.id) {
            let is_new = |process: &&Process| {
                process.parent == Some(parent) && found.iter().all(|known| known.id != process.id)
            };
            let children: Vec<Process> = all.iter().filter(is_new).copied().collect();
            found.extend(children);
            next += 1;
        }
        self.known = found.iter().map(|process| (process.id, process.start)).collect();
        found.retain(|process| process.lives);
        found
    }
}

/// Returns the processes to which Linux may give the workers' orphans: this process, its ancestors,
/// and process 1.
pub(super) fn ancestors(listing: Option<Listing>) -> Vec<Pid> {
    let mut ancestors = vec![getpid()];
    let parent = |of: &Pid| listing?.one(*of)?.parent;
    while let Some(next) =
        ancestors.last().and_then(parent).filter(|next| !ancestors.contains(next))
    {
        ancestors.push(next);
    }
    if !ancestors.contains(&Pid::INIT) {
        ancestors.push(Pid::INIT);
    }
    ancestors
}
