//! Kills the workers if their launcher is killed and cannot do so itself.
//!
//! Without it, a launch that is killed with SIGKILL, as by the kernel when memory is short, would
//! leave its workers' processes on the machine, with the GPUs and the ports that they hold.
//!
//! The launcher starts its own program once more, as a process that reads the workers' process
//! groups from a pipe. Only the launcher has the other end, which the system closes however the
//! launcher exits. The watchdog then kills what is left of the workers. A program takes part by
//! calling [`serve_as_watchdog`]. Linux's parent-death signal would not reach a worker's children,
//! and the worker itself has to request it: see [`end_with_parent`](crate::end_with_parent).
//!
//! The arguments of the watchdog's process are the variable that workers and all their descendants
//! inherit, when the launcher started, and the processes to which the system may give the workers'
//! orphans. It reads lines: the group of each worker that is started, and `done`.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use signal_hook::flag;

use super::descendants::{Descendants, ancestors};
use super::processes::{Listing, Process};
use crate::process::own_program;
use crate::tell;

/// The name of such a process. Linux keeps 15 bytes of it.
const NAME: &str = "mpienv-watchdog";
/// The first argument of such a process.
const WORD: &str = "__mpienv-watchdog";
/// The line after which nothing is left to do.
const DONE: &str = "done";
/// The minimum time between two starts of a watchdog.
const START_EVERY: Duration = Duration::from_secs(1);

/// Whether this program serves as a watchdog when it is started as one.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Lets this program serve as the watchdog of its own workers. Call it in the first line of `main`.
///
/// [`Launch`](crate::Launch) then starts the program a second time, as a process that only waits.
/// If the first process is killed by a signal that it cannot catch, this watchdog kills the workers
/// and their descendants. In the watchdog, this function returns true once it has finished, and
/// `main` must then return. In all other processes it returns false. In a program that does not
/// call this function, workers have no watchdog. Workers that call
/// [`end_with_parent`](crate::end_with_parent) are still killed, but the processes that they
/// started are not.
///
/// ```no_run
/// use std::process::Command;
/// use mpienv::{ClusterInfo, Launch};
///
/// if mpienv::serve_as_watchdog() {
///     return Ok(());
/// }
/// let info = ClusterInfo::from_env()?;
/// Launch::new(&info, 2)?.run(|_worker| Command::new("./train"))?;
/// # Ok::<(), mpienv::LaunchError>(())
/// ```
#[must_use = "the watchdog's process has nothing more to do"]
pub fn serve_as_watchdog() -> bool {
    SERVES.store(true, Ordering::SeqCst);
    let mut arguments = std::env::args_os().skip(1);
    let is_watchdog = arguments.next().as_deref() == Some(OsStr::new(WORD));
    if is_watchdog {
        serve(arguments.filter_map(|argument| argument.into_string().ok()));
    }
    is_watchdog
}

/// The watchdog's process, and the launcher's end of the pipe.
#[derive(Debug)]
pub(super) struct Watchdog {
    process: Option<(Child, ChildStdin)>,
    /// When the last process was started.
    started: Instant,
    /// Whether its absence has been reported.
    is_missed: bool,
}

impl Watchdog {
    /// Starts a watchdog for these descendants.
    pub(super) fn new(descendants: &Descendants) -> Watchdog {
        let mut watchdog = Watchdog { process: None, started: Instant::now(), is_missed: false };
        watchdog.start(descendants);
        watchdog
    }

    /// Replaces a process that was killed, and continues one that was stopped. `groups` are those
    /// of all workers that have not been reaped. Returns how long to wait before the next try, if
    /// the process cannot be started now.
    pub(super) fn renew(&mut self, descendants: &Descendants, groups: &[Pid]) -> Option<Duration> {
        if !SERVES.load(Ordering::SeqCst) {
            return None;
        }
        if let Some((child, _)) = &mut self.process {
            let process = Pid::from_child(child);
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            if waitid(WaitId::Pid(process), options).is_ok_and(|stop| stop.is_some()) {
                let _ = kill_process(process, Signal::CONT);
            }
            // An error means that something else has reaped it.
            if matches!(child.try_wait(), Ok(None)) {
                return None;
            }
            self.process = None;
        }
        // One that is killed at once must not keep this process busy.
        let early = START_EVERY.saturating_sub(self.started.elapsed());
        if !early.is_zero() {
            return Some(early);
        }
        self.start(descendants);
        groups.iter().for_each(|group| self.watch(*group));
        self.process.is_none().then_some(START_EVERY)
    }

    fn start(&mut self, descendants: &Descendants) {
        self.started = Instant::now();
        match start(descendants) {
            Ok(process) => self.process = process,
            Err(error) if !self.is_missed => {
                self.is_missed = true;
                tell(&format!(
                    "cannot start the watchdog: {error}; until it starts, workers survive if \
                     mpienv is killed with SIGKILL"
                ));
            }
            Err(_) => {}
        }
    }

    pub(super) fn process(&self) -> Option<Pid> {
        self.process.as_ref().map(|(child, _)| Pid::from_child(child))
    }

    /// From now on, this group does not outlive the launcher.
    pub(super) fn watch(&mut self, group: Pid) {
        self.say(group);
    }

    fn say(&mut self, line: impl Display) {
        if let Some((_, stdin)) = &mut self.process {
            // In one write, which cannot be cut in two. If the watchdog was killed, `renew` tells
            // the next one.
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The workers and all their processes have exited.
        self.say(DONE);
        if let Some((mut child, stdin)) = self.process.take() {
            drop(stdin);
            // One that is stopped would not end.
            let _ = kill_process(Pid::from_child(&child), Signal::CONT);
            let _ = child.wait();
        }
    }
}

/// Starts this program once more, if it can serve as a watchdog.
fn start(descendants: &Descendants) -> io::Result<Option<(Child, ChildStdin)>> {
    if !SERVES.load(Ordering::SeqCst) {
        return Ok(None);
    }
    let mut command = Command::new(own_program().ok_or(io::ErrorKind::NotFound)?);
    command.arg0(NAME).arg(WORD).arg(&descendants.marker).arg(descendants.since.to_string());
    command.args(ancestors(Listing::open()).iter().map(Pid::to_string));
    // A group of its own, so that Ctrl-C and a signal to the launcher's group do not end it first.
    command.current_dir("/").env_clear().process_group(0);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(child.stdin.take().map(|stdin| (child, stdin)))
}

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

/// Waits until the launcher has exited, and kills what is left of its workers.
fn serve(mut arguments: impl Iterator<Item = String>) {
    // top and pgrep show this name, and would otherwise show that of the file in /proc, `exe`.
    if let Ok(name) = std::ffi::CString::new(NAME) {
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
    end_all(&groups, Descendants::new(marker, since), &ancestors);
}

fn end_all(groups: &[Group], mut descendants: Descendants, ancestors: &[Pid]) {
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
        let living = descendants.living(listing, &all, ancestors, is_first);
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
