//! The watchdog's own process: waits until its launcher has exited, and kills what is left.
//!
//! Its arguments are the variable that workers and all their descendants inherit, when the launcher
//! started, and the processes to which the system may give the workers' orphans. It reads lines:
//! the group of each worker that is started, and `done`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::flag;

use super::DONE;
use crate::launch::supervisor::groups::family::Family;
use crate::launch::supervisor::groups::processes::{Listing, Process};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// The maximum number of looks.
const LOOKS: u32 = 100;
/// How many looks in a row must find no process. A process that starts during the first is visible
/// to the second.
const QUIET_LOOKS: u32 = 2;

/// A worker's group.
struct Group {
    id: Pid,
    /// When the worker that leads the group started.
    start: Option<u64>,
}

impl Group {
    /// Returns whether a process is the worker or in its group, and the group's ID has not been
    /// reused.
    fn has(&self, process: &Process, all: &[Process]) -> bool {
        let is_of_another =
            || all.iter().any(|other| other.id == self.id && Some(other.start) != self.start);
        (process.id == self.id || process.group == Some(self.id)) && !is_of_another()
    }
}

pub(super) fn serve(mut arguments: impl Iterator<Item = String>) {
    // top and pgrep show this name, and would otherwise show that of the file in /proc, `exe`.
    if let Ok(name) = std::ffi::CString::new(super::NAME) {
        let _ = rustix::thread::set_name(&name);
    }
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2]
    {
        // The signals are meant for the launcher, which passes them on.
        let _ = flag::register(signal.as_raw(), Arc::new(AtomicBool::new(false)));
    }
    let marker = arguments.next().unwrap_or_default();
    let since = arguments.next().and_then(|since| since.parse().ok()).unwrap_or(0);
    let process = |text: &str| text.parse().ok().and_then(Pid::from_raw);
    let ancestors: Vec<Pid> = arguments.filter_map(|text| process(&text)).collect();
    let mut groups = Vec::new();
    for line in io::stdin().lines().map_while(Result::ok) {
        if line == DONE {
            return;
        }
        groups.extend(process(&line).map(|id| {
            // The launcher has not reaped the worker yet, so the ID is still its own.
            let leader = Listing::open().and_then(|listing| listing.one(id));
            Group { id, start: leader.map(|process| process.start) }
        }));
    }
    end_all(&groups, Family::new(marker, since), &ancestors);
}

fn end_all(groups: &[Group], mut family: Family, ancestors: &[Pid]) {
    let Some(listing) = Listing::open() else {
        // Until a moment ago, the launcher kept these IDs from being reused.
        for group in groups {
            let _ = kill_process_group(group.id, Signal::KILL);
        }
        return;
    };
    let mut end = |ancestors: &[Pid]| {
        let all = listing.all();
        let is_first = |process: &Process| groups.iter().any(|group| group.has(process, &all));
        let living = family.living(listing, &all, ancestors, is_first);
        for process in &living {
            listing.send(Signal::KILL, process);
        }
        !living.is_empty()
    };
    // First kills the processes that are found without reading any process's variables, because
    // reading those of a stuck process can block forever.
    end(&[]);
    let (mut quiet, mut looks) = (0, 0);
    while quiet < QUIET_LOOKS && looks < LOOKS {
        quiet = if end(ancestors) { 0 } else { quiet + 1 };
        looks += 1;
        thread::sleep(PAUSE);
    }
}
