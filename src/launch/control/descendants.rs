//! Which processes descend from the workers, also those that left their group or lost their parents.
//!
//! A process that has a parent is found through it. One whose parents have ended was given to an
//! ancestor of this process by Linux, or to this process itself, and is known by a variable that it
//! inherited: its name is this launch's own. Whoever has that variable and another parent was given
//! it by somebody else, as jobs are by schedulers, and is no descendant.

use std::fs;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, getpid, waitid, waitpid};

use super::processes::{self, Process};

/// How many launches this process has begun.
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// Knows the workers' descendants.
#[derive(Debug)]
pub(super) struct Descendants {
    mark: String,
    /// Who had been found when it was last looked, and started when.
    known: Vec<(Pid, u64)>,
    /// Where this process adopts orphans: which of its children are none.
    adopts: Option<Vec<Pid>>,
    /// Whether it did so before.
    adopted: bool,
}

impl Descendants {
    /// Of a launch that begins now; to adopt is `wanted` of a process that has no children of its own.
    pub(super) fn new(wanted: bool) -> Descendants {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let count = BEGUN.fetch_add(1, Ordering::Relaxed);
        let mark = format!("MPIENV_LAUNCH_{}_{count}_{time}", process::id());
        // What was here before, as by a shell's exec, may have orphans too.
        let adopted = adopts();
        let adopts = wanted && ended_child() == Err(Errno::CHILD) && (adopted || adopt(true));
        Descendants { mark, known: Vec::new(), adopts: adopts.then(Vec::new), adopted }
    }

    /// The variable that workers and all that they start inherit.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// A child of this process that is neither a worker nor a worker's.
    pub(super) fn except(&mut self, child: Pid) {
        if let Some(own) = &mut self.adopts {
            own.push(child);
        }
    }

    /// Those that live, and these workers themselves where they do.
    pub(super) fn living(&mut self, workers: &[Pid], all: &[Process]) -> Vec<Pid> {
        let above = above();
        let own = getpid();
        let started = processes::one(own).map_or(0, |process| process.start);
        let is_first = |process: &Process| {
            workers.contains(&process.id)
                || self.known.contains(&(process.id, process.start))
                || self.adopts.as_ref().is_some_and(|none| process.parent == Some(own) && !none.contains(&process.id))
                || process.parent.is_some_and(|parent| above.contains(&parent))
                    // No other is asked: a stuck process can make whoever reads its variables wait.
                    && process.start >= started
                    && self.is_marked(process.id)
        };
        let mut found: Vec<Process> = all.iter().filter(|process| is_first(process)).copied().collect();
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|process| process.id) {
            let is_new =
                |process: &&Process| process.parent == Some(parent) && found.iter().all(|known| known.id != process.id);
            let children: Vec<Process> = all.iter().filter(is_new).copied().collect();
            found.extend(children);
            next += 1;
        }
        self.known = found.iter().map(|process| (process.id, process.start)).collect();
        found.iter().filter(|process| process.lives).map(|process| process.id).collect()
    }

    fn is_marked(&self, process: Pid) -> bool {
        // Another user's cannot be read, and could not be ended.
        let vars = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let mut names = vars.split(|byte| *byte == 0).filter_map(|var| var.split(|byte| *byte == b'=').next());
        names.any(|name| name == self.mark.as_bytes())
    }

    /// Waits for adopted processes that have ended: nobody else does.
    pub(super) fn reap(&self, workers: &[Pid]) {
        let Some(own) = &self.adopts else { return };
        if ended_child() != Ok(true) {
            return;
        }
        let me = getpid();
        for process in processes::all().unwrap_or_default() {
            let is_other = !own.contains(&process.id) && !workers.contains(&process.id);
            if process.parent == Some(me) && !process.lives && is_other {
                let _ = waitpid(Some(process.id), WaitOptions::NOHANG);
            }
        }
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        if self.adopts.is_some() && !self.adopted {
            adopt(false);
        }
    }
}

/// Whether this process now adopts, or no longer, who descends from it and loses its parent.
#[cfg(target_os = "linux")]
fn adopt(does: bool) -> bool {
    rustix::process::set_child_subreaper(does.then(getpid)).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn adopt(_: bool) -> bool {
    false
}

/// Whether this process adopts now.
#[cfg(target_os = "linux")]
fn adopts() -> bool {
    matches!(rustix::process::child_subreaper(), Ok(Some(_)))
}

#[cfg(not(target_os = "linux"))]
fn adopts() -> bool {
    false
}

/// Whether a child of this process has ended and was not waited for.
fn ended_child() -> Result<bool, Errno> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, look).map(|status| status.is_some())
}

/// To whom Linux may give the workers' orphans: this process, those above it, the first of all.
pub(super) fn above() -> Vec<Pid> {
    let mut above = vec![getpid()];
    let parent = |of: &Pid| processes::one(*of)?.parent;
    while let Some(next) = above.last().and_then(parent).filter(|next| !above.contains(next)) {
        above.push(next);
    }
    if !above.contains(&Pid::INIT) {
        above.push(Pid::INIT);
    }
    above
}
