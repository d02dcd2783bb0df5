//! Finds the descendants of a launch's workers, including those that left their group or lost their
//! parents. Without it, a daemon that a worker has started would survive the job.
//!
//! A process that has a parent is found through the parent. If its parents have exited, Linux has
//! given it to an ancestor of the launching process, or to that process itself if it adopts orphans
//! (`PR_SET_CHILD_SUBREAPER`). It is then recognized by an inherited variable whose name is unique to
//! this launch. A process that has the variable but another parent got the variable from another
//! process, as jobs do from schedulers, and does not descend from a worker. Only adoption finds a
//! process that also cleared its environment.

use std::process;

use rustix::io::Errno;
use rustix::process::{
    Pid, WaitId, WaitIdOptions, WaitOptions, child_subreaper, getpid, set_child_subreaper, waitid,
    waitpid,
};

use crate::process::random;

use super::processes::{Listing, Process};

/// The processes of one launch that have been seen.
#[derive(Debug)]
pub(super) struct Descendants {
    /// The variable that workers and all their descendants inherit.
    pub marker: String,
    /// When the launching process started. Orphans of its workers are younger.
    pub since: u64,
    /// The processes that the last look found, and when they started.
    known: Vec<(Pid, u64)>,
}

impl Descendants {
    /// The descendants of a launch that this process begins now.
    pub(super) fn of_this_process() -> Descendants {
        let marker = format!("MPIENV_LAUNCH_{}_{}", process::id(), random());
        let own = Listing::open().and_then(|listing| listing.one(getpid()));
        Descendants::new(marker, own.map_or(0, |process| process.start))
    }

    pub(super) fn new(marker: String, since: u64) -> Descendants {
        Descendants { marker, since, known: Vec::new() }
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
    let parent = |of: &Pid| listing?.one(*of)?.parent;
    let mut ancestors: Vec<_> = std::iter::successors(Some(getpid()), parent).collect();
    ancestors.push(Pid::INIT);
    ancestors
}

/// While this exists, this process adopts orphans.
#[derive(Debug)]
pub(super) struct Adoption {
    /// Whether this process adopted orphans before.
    before: bool,
}

impl Adoption {
    /// Begins to adopt orphans, in a process without other children.
    pub(super) fn begin() -> Option<Adoption> {
        // The program that this one replaced, such as a shell that called exec, may have adopted
        // orphans already.
        let before = matches!(child_subreaper(), Ok(Some(_)));
        let may = ended_child() == Err(Errno::CHILD)
            && (before || set_child_subreaper(Some(getpid())).is_ok());
        may.then_some(Adoption { before })
    }

    /// Reaps adopted processes, but no child that `is_other` accepts.
    pub(super) fn reap(&self, is_other: impl Fn(Pid) -> bool) {
        if ended_child() != Ok(true) {
            return;
        }
        for process in Listing::open().map(Listing::all).unwrap_or_default() {
            if process.parent == Some(getpid()) && !process.lives && !is_other(process.id) {
                let _ = waitpid(Some(process.id), WaitOptions::NOHANG);
            }
        }
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        if !self.before {
            let _ = set_child_subreaper(None);
        }
    }
}

/// Returns whether a child of this process has exited and has not been reaped, or an error if there
/// is no child.
fn ended_child() -> Result<bool, Errno> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).map(|status| status.is_some())
}
