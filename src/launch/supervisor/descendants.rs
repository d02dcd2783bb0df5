//! Tracks the workers' descendants, and adopts those that lose their parents.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, getpid, waitid, waitpid};

use super::family::{Family, ancestors};
use super::processes::{Listing, Process};

/// How many launches this process has begun.
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// Tracks the workers' descendants.
#[derive(Debug)]
pub(super) struct Descendants {
    family: Family,
    /// If this process adopts orphans: its children that do not descend from a worker.
    subreaper: Option<Vec<Pid>>,
    /// Whether this process adopted orphans before.
    adopted: bool,
}

impl Descendants {
    /// Tracks a launch that starts now. `as_subreaper` requests adopting orphans, in a process
    /// without other children.
    pub(super) fn new(as_subreaper: bool) -> Descendants {
        let time =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let count = BEGUN.fetch_add(1, Ordering::Relaxed);
        let marker = format!("MPIENV_LAUNCH_{}_{count}_{time}", process::id());
        let since = Listing::open()
            .and_then(|listing| listing.one(getpid()))
            .map_or(0, |process| process.start);
        // The program that this one replaced, such as a shell that called exec, may have adopted
        // orphans already.
        let adopted = subreaper();
        let subreaper =
            as_subreaper && ended_child() == Err(Errno::CHILD) && (adopted || adopt(true));
        Descendants {
            family: Family::new(marker, since),
            subreaper: subreaper.then(Vec::new),
            adopted,
        }
    }

    /// Returns what identifies the descendants.
    pub(super) fn family(&self) -> &Family {
        &self.family
    }

    /// Excludes a child of this process that is not a worker and does not descend from one.
    pub(super) fn except(&mut self, child: Pid) {
        if let Some(own) = &mut self.subreaper {
            own.push(child);
        }
    }

    /// Ends the exception of a child that was reaped. Another process may get its ID.
    pub(super) fn no_longer_except(&mut self, child: Pid) {
        if let Some(own) = &mut self.subreaper {
            own.retain(|other| *other != child);
        }
    }

    /// Returns the descendants that are alive, including these workers.
    pub(super) fn living(
        &mut self,
        listing: Listing,
        workers: &[Pid],
        all: &[Process],
    ) -> Vec<Process> {
        let own = getpid();
        let is_adopted = |process: &Process| {
            self.subreaper
                .as_ref()
                .is_some_and(|none| process.parent == Some(own) && !none.contains(&process.id))
        };
        let is_first = |process: &Process| workers.contains(&process.id) || is_adopted(process);
        self.family.living(listing, all, &ancestors(Some(listing)), is_first)
    }

    /// Reaps adopted processes, which have no other parent.
    pub(super) fn reap(&self, workers: &[Pid]) {
        let Some(own) = &self.subreaper else { return };
        if ended_child() != Ok(true) {
            return;
        }
        let Some(listing) = Listing::open() else { return };
        let me = getpid();
        for process in listing.all() {
            let is_other = !own.contains(&process.id) && !workers.contains(&process.id);
            if process.parent == Some(me) && !process.lives && is_other {
                let _ = waitpid(Some(process.id), WaitOptions::NOHANG);
            }
        }
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        if self.subreaper.is_some() && !self.adopted {
            adopt(false);
        }
    }
}

/// Starts or stops adopting descendants that lose their parents. Returns whether the system agreed.
#[cfg(target_os = "linux")]
fn adopt(does: bool) -> bool {
    rustix::process::set_child_subreaper(does.then(getpid)).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn adopt(_: bool) -> bool {
    false
}

/// Returns whether this process adopts orphans now.
#[cfg(target_os = "linux")]
fn subreaper() -> bool {
    matches!(rustix::process::child_subreaper(), Ok(Some(_)))
}

#[cfg(not(target_os = "linux"))]
fn subreaper() -> bool {
    false
}

/// Returns whether a child of this process has exited and has not been reaped.
fn ended_child() -> Result<bool, Errno> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, look).map(|status| status.is_some())
}
