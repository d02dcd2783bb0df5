//! Each worker leads a process group, which receives signals and is stopped as a whole. On Linux,
//! all other descendants of the worker are stopped with it.
//!
//! A worker that has exited is not reaped until its group is empty. Until then, no other process
//! and no other group can get its ID.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, kill_process,
    kill_process_group, test_kill_process_group, waitid, waitpgid, waitpid,
};

use super::descendants::Descendants;
use super::processes::{Listing, Process};
use super::signals::{ENDING, Signals};
use super::watchdog::Watchdog;
use crate::launch::stopped::Stop;

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
    /// The groups of workers that are running.
    running: Vec<Pid>,
    /// The groups of workers that have exited and may have left processes behind.
    leftovers: Vec<Pid>,
    /// Workers that a signal has stopped.
    stopped: Vec<Pid>,
    /// How long until the next check, if the last one found processes.
    look_again: Option<Duration>,
    passed: Vec<Signal>,
    /// Groups that were asked to exit with SIGTERM.
    terminated: Vec<Pid>,
    /// Groups that were asked to exit with SIGINT.
    interrupted: Vec<Pid>,
    /// Processes outside these groups that were asked to exit, and when they started.
    asked_alone: Vec<(Pid, u64)>,
}

/// Interrupts a wait from another thread.
#[derive(Debug)]
pub(crate) struct Waker(UnixStream);

impl Waker {
    pub(super) fn new(stream: UnixStream) -> Waker {
        Waker(stream)
    }

    pub(crate) fn wake(&self) {
        // An error means that nothing waits anymore.
        let _ = (&self.0).write(&[0]);
    }
}

/// What one look at all processes found.
struct Look {
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
        let mut descendants = Descendants::new(subreaper);
        let watchdog = Watchdog::new(descendants.family());
        watchdog.process().into_iter().for_each(|watchdog| descendants.except(watchdog));
        Supervisor {
            signals,
            watchdog,
            descendants,
            running: Vec::new(),
            leftovers: Vec::new(),
            stopped: Vec::new(),
            look_again: None,
            passed: Vec::new(),
            terminated: Vec::new(),
            interrupted: Vec::new(),
            asked_alone: Vec::new(),
        }
    }

    pub(crate) fn prepare(&self, command: &mut Command) {
        command.process_group(0).env(&self.descendants.family().marker, "1");
    }

    pub(crate) fn started(&mut self, child: &Child) {
        let group = Pid::from_child(child);
        self.watchdog.watch(group);
        self.running.push(group);
    }

    /// Returns the status of a worker that has exited.
    pub(crate) fn try_wait(&mut self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let worker = Pid::from_child(child);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = waitid(WaitId::Pid(worker), look)?.as_ref().and_then(exit_status) else {
            return Ok(None);
        };
        self.running.retain(|running| *running != worker);
        self.leftovers.push(worker);
        Ok(Some(status))
    }

    /// Returns what has stopped a worker, once for each stop.
    pub(crate) fn newly_stopped(&mut self, child: &Child) -> Option<Stop> {
        let worker = Pid::from_child(child);
        let status =
            waitid(WaitId::Pid(worker), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).ok()??;
        let signal = status.stopping_signal()?;
        if !self.stopped.contains(&worker) {
            self.stopped.push(worker);
        }
        Some(match Signal::from_named_raw(signal) {
            Some(Signal::TTIN) => Stop::ReadsTerminal,
            Some(Signal::TTOU) => Stop::SetsTerminal,
            _ => Stop::Signal(signal),
        })
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
        let look = self.look();
        self.ask_groups(|this, group| !spares_interrupted || !this.interrupted.contains(&group));
        let Some(Look { listing, living, in_groups }) = look else { return };
        for process in &living {
            let is_in_a_group = in_groups.iter().any(|member| member.id == process.id);
            let has_a_parent = living.iter().any(|parent| process.parent == Some(parent.id));
            let this = (process.id, process.start);
            if !is_in_a_group && !has_a_parent && !self.asked_alone.contains(&this) {
                self.asked_alone.push(this);
                listing.send(Signal::TERM, process);
            }
        }
        for process in in_groups {
            let is_left = process.group.is_some_and(|group| {
                self.leftovers.contains(&group)
                    && self.interrupted.contains(&group)
                    && !self.terminated.contains(&group)
            });
            let this = (process.id, process.start);
            if is_left
                && !self.asked_alone.contains(&this)
                && listing.ignores(process.id, Signal::INT)
            {
                self.asked_alone.push(this);
                listing.send(Signal::TERM, &process);
            }
        }
    }

    pub(crate) fn kill(&mut self, _children: &mut dyn Iterator<Item = &mut Child>) {
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
        let is_left = match self.look() {
            Some(look) => !look.living.is_empty() || !look.in_groups.is_empty(),
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
        self.leftovers.retain(|group| {
            // Reaps the worker, and members of its group that this process has adopted.
            while waitpgid(*group, WaitOptions::NOHANG).is_ok_and(|ended| ended.is_some()) {}
            test_kill_process_group(*group).is_ok()
        });
        !self.leftovers.is_empty()
    }

    /// Waits until a child has exited or a signal has arrived, and passes the signal on.
    pub(crate) fn wait(&mut self, at_most: Option<Duration>) {
        self.reap();
        let at_most = at_most.map(|most| self.look_again.map_or(most, |again| most.min(again)));
        let soon = self.keep_watchdog();
        let at_most = at_most.map_or(soon, |most| Some(soon.map_or(most, |soon| most.min(soon))));
        for signal in self.signals.wait(at_most) {
            self.pass_on(signal);
        }
    }

    /// Replaces the watchdog if it was killed. Returns how long to wait before the next try, if it
    /// cannot be started now.
    fn keep_watchdog(&mut self) -> Option<Duration> {
        let before = self.watchdog.process();
        let groups = [&self.running[..], &self.leftovers].concat();
        let (ended, soon) = self.watchdog.renew(self.descendants.family(), &groups);
        ended.into_iter().for_each(|ended| self.descendants.no_longer_except(ended));
        // A new process may have the ID of the last one.
        let new = self.watchdog.process().filter(|_| before.is_none() || ended.is_some());
        new.into_iter().for_each(|new| self.descendants.except(new));
        soon
    }

    fn reap(&self) {
        self.descendants.reap(&[&self.running[..], &self.leftovers].concat());
    }

    /// Reaps all workers that have exited. Their IDs may then be reused.
    pub(crate) fn let_go(&mut self) {
        self.reap();
        for worker in self.running.drain(..).chain(self.leftovers.drain(..)) {
            let _ = waitpid(Some(worker), WaitOptions::NOHANG);
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
        if [Signal::USR1, Signal::USR2].contains(&signal) {
            // Programs define their own meaning for these signals, which would kill their helper
            // processes.
            for worker in &self.running {
                let _ = kill_process(*worker, signal);
            }
        } else if signal == Signal::TERM {
            self.ask_groups(|_, _| true);
        } else {
            if signal == Signal::INT {
                self.interrupted.extend(self.running.iter().chain(&self.leftovers));
            }
            for group in self.running.iter().chain(&self.leftovers) {
                let _ = kill_process_group(*group, signal);
            }
            self.let_go_on();
        }
    }

    /// Sends SIGTERM to those of the groups that have not got it.
    fn ask_groups(&mut self, is_meant: impl Fn(&Supervisor, Pid) -> bool) {
        for group in [&self.running[..], &self.leftovers].concat() {
            if !self.terminated.contains(&group) && is_meant(self, group) {
                self.terminated.push(group);
                // A group that has just exited needs no signal.
                let _ = kill_process_group(group, Signal::TERM);
            }
        }
        self.let_go_on();
    }

    /// A stopped worker receives a signal only when it continues.
    fn let_go_on(&mut self) {
        for worker in self.stopped.drain(..).filter(|worker| self.running.contains(worker)) {
            let _ = kill_process_group(worker, Signal::CONT);
        }
    }

    /// Lists all processes of the workers, before the first one exits and its children get another
    /// parent.
    fn look(&mut self) -> Option<Look> {
        let listing = Listing::open()?;
        let all = listing.all();
        let workers = [&self.running[..], &self.leftovers].concat();
        let living = self.descendants.living(listing, &workers, &all);
        let is_in_a_group =
            |process: &Process| process.group.is_some_and(|group| workers.contains(&group));
        let in_groups =
            all.into_iter().filter(|process| process.lives && is_in_a_group(process)).collect();
        Some(Look { listing, living, in_groups })
    }

    /// Kills every group and every descendant. Returns whether there was any that this process may
    /// kill.
    fn kill_all(&mut self) -> bool {
        let look = self.look();
        for group in self.running.iter().chain(&self.leftovers) {
            let _ = kill_process_group(*group, Signal::KILL);
        }
        match look {
            Some(Look { listing, living, in_groups }) => {
                living
                    .iter()
                    .chain(&in_groups)
                    .filter(|process| listing.send(Signal::KILL, process))
                    .count()
                    > 0
            }
            None => {
                self.leftovers.append(&mut self.running);
                self.has_full_groups()
            }
        }
    }
}

/// Converts a status to the standard library's type.
fn exit_status(status: &WaitIdStatus) -> Option<ExitStatus> {
    let core = if status.dumped() { 0x80 } else { 0 };
    let code = status.exit_status().map(|code| (code & 0xff) << 8);
    code.or_else(|| Some(status.terminating_signal()? | core)).map(ExitStatus::from_raw)
}
