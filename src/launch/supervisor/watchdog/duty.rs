//! The watchdog's own process: waits until its launcher has exited, and kills what is left.
//!
//! It reads lines:
//! - `marker NAME`: the variable that workers and all their descendants inherit;
//! - `since START`: when the launcher started;
//! - `ancestors PID...`: the processes to which the system may give the workers' orphans;
//! - `group PID`: the group of a worker that is running now;
//! - `done`: nothing is left to do.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::flag;

use crate::launch::supervisor::family::Family;
use crate::launch::supervisor::processes::{Listing, Process};

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

#[derive(Default)]
struct Orders {
    marker: String,
    since: u64,
    ancestors: Vec<Pid>,
    groups: Vec<Group>,
    is_done: bool,
}

pub(super) fn serve() {
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2]
    {
        // The signals are meant for the launcher, which passes them on.
        let _ = flag::register(signal.as_raw(), Arc::new(AtomicBool::new(false)));
    }
    let orders = read(io::stdin().lock());
    if !orders.is_done {
        carry_out(orders);
    }
}

fn read(mut from: impl BufRead) -> Orders {
    let mut orders = Orders::default();
    let mut line = String::new();
    while !orders.is_done && from.read_line(&mut line).is_ok_and(|length| length > 0) {
        let (what, value) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        let process = |text: &str| text.parse().ok().and_then(Pid::from_raw);
        match what {
            "marker" => value.clone_into(&mut orders.marker),
            "since" => orders.since = value.parse().unwrap_or(0),
            "ancestors" => orders.ancestors = value.split(' ').filter_map(process).collect(),
            "group" => orders.groups.extend(process(value).map(|id| {
                // The launcher has not reaped the worker yet, so the ID is still its own.
                let start = Listing::open()
                    .and_then(|listing| listing.one(id))
                    .map(|process| process.start);
                Group { id, start }
            })),
            "done" => orders.is_done = true,
            _ => {}
        }
        line.clear();
    }
    orders
}

fn carry_out(orders: Orders) {
    let Orders { marker, since, ancestors, groups, .. } = orders;
    let Some(listing) = Listing::open() else {
        // Until a moment ago, the launcher kept these IDs from being reused.
        for group in &groups {
            let _ = kill_process_group(group.id, Signal::KILL);
        }
        return;
    };
    let mut family = Family::new(marker, since);
    let mut end = |ancestors: &[Pid]| {
        let all = listing.all();
        let is_first = |process: &Process| groups.iter().any(|group| group.has(process, &all));
        let living = family.living(listing, &all, ancestors, is_first);
        for process in &living {
            listing.send(Signal::KILL, process);
        }
        !living.is_empty()
    };
    // First kills the processes that are found without reading any process's variables.
    end(&[]);
    let (mut quiet, mut looks) = (0, 0);
    while quiet < QUIET_LOOKS && looks < LOOKS {
        quiet = if end(&ancestors) { 0 } else { quiet + 1 };
        looks += 1;
        thread::sleep(PAUSE);
    }
}
