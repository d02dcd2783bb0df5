//! Controls the processes that a launch starts.
//!
//! Each worker leads a process group, which receives signals and is stopped as a whole. All other
//! descendants of the worker are stopped with it, in any process group.
//!
//! A worker that has exited is not reaped until its group is empty. Until then, no other process
//! and no other group can get its ID, so that a signal cannot reach a stranger.
//!
//! Without groups, the children of a worker that fails would survive it, and Ctrl-C would reach
//! them a second time from the terminal.

mod descendants;
mod processes;
mod signals;
mod watchdog;

use std::collections::HashSet;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, kill_process,
    kill_process_group, test_kill_process_group, waitid, waitpgid, waitpid,
};

pub(crate) use self::signals::{Signals, Waker};
pub use self::watchdog::serve_as_watchdog;

use self::descendants::{Adoption, Descendants, ancestors};
use self::processes::{Listing, Process};
use self::signals::ENDING;
use self::watchdog::Watchdog;

/// The interval at which leftovers are checked: the system reports only the exit of this process's
/// own children.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The minimum pause after a check, in multiples of the check's duration: machines may have
/// thousands of processes.
const PAUSE_PER_LOOK: u32 = 10;
/// How long killed processes may take to disappear. One that hangs in a system call exits when that
/// call returns.
const KILLED_WITHIN: Duration = Duration::from_secs(30);

/// Signals, stops and reaps the workers.
#[derive(Debug)]
pub(crate) struct Supervisor {
    signals: Arc<Signals>,
    watchdog: Watchdog,
    descendants: Descendants,
    /// If this process adopts orphans.
    adoption: Option<Adoption>,
    /// The groups of all workers that have not been reaped.
    groups: Vec<Group>,
    /// How long until the next check, if the last one found processes.
    look_again: Option<Duration>,
    passed: Vec<Signal>,
    /// Processes that were asked to exit without their group, and when they started.
    asked_alone: HashSet<(Pid, u64)>,
}

/// A worker, and the process group that it leads.
#[derive(Debug)]
struct Group {
    id: Pid,
    /// Whether the worker is running. If not, it may have left processes behind.
    runs: bool,
    /// Whether a signal has stopped the worker.
    is_stopped: bool,
    /// Whether the group was asked to exit with SIGTERM.
    is_asked: bool,
    /// Whether the group was asked to exit with SIGINT.
    is_interrupted: bool,
}

impl Group {
    /// Sends a signal to all processes of the group. If it has just become empty, none needs it.
    fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.id, signal);
    }

    /// A stopped worker receives a signal only when it continues.
    fn go_on(&mut self) {
        if std::mem::take(&mut self.is_stopped) && self.runs {
            self.send(Signal::CONT);
        }
    }
}

/// The workers' processes at one moment.
struct Snapshot {
    listing: Listing,
    /// Living descendants of workers.
    living: Vec<Process>,
    /// Living processes in a worker's group.
    in_groups: Vec<Process>,
}

impl Supervisor {
    /// `subreaper`: this process has no other children, so it may adopt processes that lose their
    /// parents.
    pub(crate) fn new(subreaper: bool, signals: Arc<Signals>) -> Supervisor {
        let descendants = Descendants::of_this_process();
        Supervisor {
            signals,
            // Before the watchdog is started, which is a child, too.
            adoption: if subreaper { Adoption::begin() } else { None },
            watchdog: Watchdog::new(&descendants),
            descendants,
            groups: Vec::new(),
            look_again: None,
            passed: Vec::new(),
            asked_alone: HashSet::new(),
        }
    }

    pub(crate) fn prepare(&self, command: &mut Command) {
        command.process_group(0).env(&self.descendants.marker, "1");
    }

    pub(crate) fn started(&mut self, child: &Child) {
        let id = Pid::from_child(child);
        self.watchdog.watch(id);
        let (is_stopped, is_asked, is_interrupted) = (false, false, false);
        self.groups.push(Group { id, runs: true, is_stopped, is_asked, is_interrupted });
    }

    /// Returns the status of a worker that has exited.
    pub(crate) fn try_wait(&mut self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let worker = Pid::from_child(child);
        // NOWAIT leaves the worker a zombie, which keeps its ID.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(worker), options)?.as_ref().and_then(exit_status);
        if let Some(group) = self.group(worker).filter(|_| status.is_some()) {
            group.runs = false;
        }
        Ok(status)
    }

    /// Returns whether a worker that has not been reaped is dying.
    pub(crate) fn is_dying(&self, child: &Child) -> bool {
        Listing::open().is_some_and(|listing| listing.is_dying(Pid::from_child(child)))
    }

    /// Returns the signal that has stopped a worker, once for each stop.
    pub(crate) fn newly_stopped(&mut self, child: &Child) -> Option<i32> {
        let worker = Pid::from_child(child);
        // Without NOWAIT, the system reports each stop once.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let signal = waitid(WaitId::Pid(worker), options).ok()??.stopping_signal()?;
        self.group(worker)?.is_stopped = true;
        Some(signal)
    }

    fn group(&mut self, id: Pid) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.id == id)
    }

    fn ids(&self) -> Vec<Pid> {
        self.groups.iter().map(|group| group.id).collect()
    }

    /// Asks the workers' groups, and orphans outside of them, to exit. No process is asked twice.
    ///
    /// A process outside the groups is left to its parent if that is a living descendant, which may
    /// be a launcher.
    ///
    /// `spares_interrupted`: a group that got SIGINT may be saving its state. If its worker has
    /// exited, processes that ignore SIGINT are asked nevertheless: shells make their background
    /// processes do so.
    pub(crate) fn terminate(&mut self, spares_interrupted: bool) {
        let snapshot = self.snapshot();
        self.ask_groups(spares_interrupted);
        let Some(Snapshot { listing, living, in_groups }) = snapshot else { return };
        let is_orphan = |process: &&Process| {
            !in_groups.iter().any(|member| member.id == process.id)
                && !living.iter().any(|parent| process.parent == Some(parent.id))
        };
        let is_left = |process: &&Process| {
            let group = self.groups.iter().find(|group| process.group == Some(group.id));
            group.is_some_and(|group| !group.runs && group.is_interrupted && !group.is_asked)
                && listing.ignores(process.id, Signal::INT)
        };
        let orphans = living.iter().filter(is_orphan);
        for process in orphans.chain(in_groups.iter().filter(is_left)) {
            if self.asked_alone.insert((process.id, process.start)) {
                listing.send(Signal::TERM, process);
            }
        }
    }

    pub(crate) fn kill(&mut self) {
        let deadline = Instant::now() + KILLED_WITHIN;
        // Repeated, because processes may start while others are being killed.
        loop {
            let start = Instant::now();
            if !self.kill_all() || Instant::now() >= deadline {
                break;
            }
            thread::sleep(start.elapsed().max(Duration::from_millis(1)));
        }
        self.let_go();
    }

    /// Returns whether the workers, all of which have exited, left processes behind.
    pub(crate) fn has_remains(&mut self) -> bool {
        let start = Instant::now();
        let is_left = match self.snapshot() {
            Some(now) => !now.living.is_empty() || !now.in_groups.is_empty(),
            None => self.has_full_groups(),
        };
        self.look_again = is_left.then(|| LOOK_EVERY.max(start.elapsed() * PAUSE_PER_LOOK));
        is_left
    }

    /// Returns whether a group is left after its worker was reaped. Used if processes cannot be
    /// listed.
    ///
    /// A group keeps its ID until it is empty, so signals are sent immediately after this check.
    fn has_full_groups(&mut self) -> bool {
        self.groups.retain(|group| {
            // Reaps the worker, and members of its group that this process has adopted.
            while waitpgid(group.id, WaitOptions::NOHANG).is_ok_and(|ended| ended.is_some()) {}
            test_kill_process_group(group.id).is_ok()
        });
        !self.groups.is_empty()
    }

    /// Waits until a child has exited or a signal has arrived, and passes the signal on.
    pub(crate) fn wait(&mut self, at_most: Option<Duration>) {
        self.reap();
        let look_again = self.look_again.filter(|_| at_most.is_some());
        let watchdog = self.watchdog.renew(&self.descendants, &self.ids());
        let at_most = [at_most, look_again, watchdog].into_iter().flatten().min();
        for signal in self.signals.wait(at_most) {
            self.pass_on(signal);
        }
    }

    /// Reaps adopted processes, which have no other parent.
    fn reap(&self) {
        let (workers, watchdog) = (self.ids(), self.watchdog.process());
        if let Some(adoption) = &self.adoption {
            adoption.reap(|child| workers.contains(&child) || watchdog == Some(child));
        }
    }

    /// Reaps all workers that have exited. Their IDs may then be reused.
    pub(crate) fn let_go(&mut self) {
        self.reap();
        for group in self.groups.drain(..) {
            let _ = waitpid(Some(group.id), WaitOptions::NOHANG);
        }
    }

    /// Returns whether a signal of this number has been passed on.
    pub(crate) fn has_passed(&self, signal: i32) -> bool {
        self.passed.iter().any(|passed| passed.as_raw() == signal)
    }

    /// Returns whether a signal that asks to exit has been passed on.
    pub(crate) fn has_asked_to_end(&self) -> bool {
        self.passed.iter().any(|passed| ENDING.contains(passed))
    }

    fn pass_on(&mut self, signal: Signal) {
        self.passed.push(signal);
        if signal == Signal::TERM {
            return self.ask_groups(false);
        }
        for group in &mut self.groups {
            if [Signal::USR1, Signal::USR2].contains(&signal) {
                // Programs define their own meaning for these signals, which would kill their
                // helper processes.
                if group.runs {
                    let _ = kill_process(group.id, signal);
                }
                continue;
            }
            group.is_interrupted |= signal == Signal::INT;
            group.send(signal);
            group.go_on();
        }
    }

    /// Sends SIGTERM to the groups that have not got it.
    fn ask_groups(&mut self, spares_interrupted: bool) {
        for group in &mut self.groups {
            let is_spared = spares_interrupted && group.is_interrupted;
            if !group.is_asked && !is_spared {
                group.is_asked = true;
                group.send(Signal::TERM);
            }
            group.go_on();
        }
    }

    /// Lists all processes of the workers, before the first one exits and its children get another
    /// parent.
    fn snapshot(&mut self) -> Option<Snapshot> {
        let listing = Listing::open()?;
        let all = listing.all();
        let (workers, own) = (self.ids(), getpid());
        let watchdog = self.watchdog.process();
        let is_adopted = |process: &Process| {
            self.adoption.is_some() && process.parent == Some(own) && Some(process.id) != watchdog
        };
        let is_first = |process: &Process| workers.contains(&process.id) || is_adopted(process);
        let living = self.descendants.living(listing, &all, &ancestors(Some(listing)), is_first);
        let is_in_a_group =
            |process: &Process| process.group.is_some_and(|group| workers.contains(&group));
        let in_groups =
            all.into_iter().filter(|process| process.lives && is_in_a_group(process)).collect();
        Some(Snapshot { listing, living, in_groups })
    }

    /// Kills every group and every descendant. Returns whether there was any that this process may
    /// kill.
    fn kill_all(&mut self) -> bool {
        let snapshot = self.snapshot();
        self.groups.iter().for_each(|group| group.send(Signal::KILL));
        let Some(Snapshot { listing, living, in_groups }) = snapshot else {
            return self.has_full_groups();
        };
        let found = living.iter().chain(&in_groups);
        // Counted, so that each of them gets the signal.
        found.filter(|process| listing.send(Signal::KILL, process)).count() > 0
    }
}

/// Converts a status to the standard library's type.
fn exit_status(status: &WaitIdStatus) -> Option<ExitStatus> {
    let core = if status.dumped() { 0x80 } else { 0 };
    let code = status.exit_status().map(|code| (code & 0xff) << 8);
    code.or_else(|| Some(status.terminating_signal()? | core)).map(ExitStatus::from_raw)
}
