//! Adopts processes that lose their parents (`PR_SET_CHILD_SUBREAPER`).
//!
//! Otherwise Linux gives them to an ancestor of this process, and one that also cleared its
//! environment would survive the job.

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, getpid, waitid, waitpid};

use super::processes::Listing;
use super::system::{adopt, adopts};

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
        let before = adopts();
        let may = ended_child() == Err(Errno::CHILD) && (before || adopt(true));
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
            adopt(false);
        }
    }
}

/// Returns whether a child of this process has exited and has not been reaped, or an error if there
/// is no child.
fn ended_child() -> Result<bool, Errno> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).map(|status| status.is_some())
}
