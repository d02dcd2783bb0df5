//! Kills the workers if their launcher is killed and cannot do so itself.
//!
//! Without it, a launch that is killed with SIGKILL, as by the kernel when memory is short, would
//! leave its workers' processes on the machine, with the GPUs and the ports that they hold.
//!
//! The launcher starts its own program once more, as a process that reads the workers' process
//! groups from a pipe. Only the launcher has the other end, which the system closes however the
//! launcher exits. The watchdog then kills what is left of the workers. A program takes part by
//! calling [`serve_as_watchdog`](crate::serve_as_watchdog). Linux's parent-death signal would not
//! reach a worker's children, and the worker itself has to request it: see `end_with_parent`.

mod duty;

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::family::{Family, ancestors};
use super::processes::Listing;
use crate::launch::exec::own_program;
use crate::launch::tell;

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

/// Does the watchdog's part if this process was started as one. Returns whether it was.
pub(crate) fn serve() -> bool {
    SERVES.store(true, Ordering::SeqCst);
    let mut arguments = std::env::args_os().skip(1);
    let is_asked = arguments.next().as_deref() == Some(OsStr::new(WORD));
    if is_asked {
        duty::serve(arguments.filter_map(|argument| argument.into_string().ok()));
    }
    is_asked
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
    /// Starts a watchdog for this family.
    pub(super) fn new(family: &Family) -> Watchdog {
        let mut watchdog = Watchdog { process: None, started: Instant::now(), is_missed: false };
        watchdog.start(family);
        watchdog
    }

    /// Replaces a process that was killed, and continues one that was stopped. `groups` are those
    /// of all workers that have not been reaped. Returns how long to wait before the next try, if
    /// the process cannot be started now.
    pub(super) fn renew(&mut self, family: &Family, groups: &[Pid]) -> Option<Duration> {
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
        self.start(family);
        groups.iter().for_each(|group| self.watch(*group));
        self.process.is_none().then_some(START_EVERY)
    }

    fn start(&mut self, family: &Family) {
        self.started = Instant::now();
        match start(family) {
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
fn start(family: &Family) -> io::Result<Option<(Child, ChildStdin)>> {
    if !SERVES.load(Ordering::SeqCst) {
        return Ok(None);
    }
    let mut command = Command::new(own_program().ok_or(io::ErrorKind::NotFound)?);
    command.arg0(NAME).arg(WORD).arg(&family.marker).arg(family.since.to_string());
    command.args(ancestors(Listing::open()).iter().map(Pid::to_string));
    // A group of its own, so that Ctrl-C and a signal to the launcher's group do not end it first.
    command.current_dir("/").env_clear().process_group(0);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(child.stdin.take().map(|stdin| (child, stdin)))
}
