//! Each worker is the first of a process group, which gets signals and ends as a whole; on Linux
//! with it whatever else descends from the worker.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use super::descendants::{self, Descendants};
use super::guard::Guard;
use super::processes::{self, Process};
use super::signals::Signals;

/// How often remains are looked at: the system tells the end of nobody else's children.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much longer than a look the pause after it is at least: machines may have thousands of processes.
const PAUSE_PER_LOOK: u32 = 10;
/// How often groups are looked at that may have become empty, and their numbers others'.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// How long who was killed may take to be gone; what hangs in the system itself ends when that lets it.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

/// The workers' ruler.
#[derive(Debug)]
pub(in crate::launch) struct Control {
    /// None once nobody is left to pass them on to.
    signals: Option<Signals>,
    guard: Guard,
    descendants: Descendants,
    /// The groups of workers that run.
    running: Vec<Pid>,
    /// The groups of workers that have ended and may have left processes behind.
    remains: Vec<Pid>,
    /// Where somebody was left when it was last looked: when to look again.
    look_again: Option<Duration>,
    passed: Vec<Signal>,
    /// Groups, and processes beside them, that were asked to end.
    asked: Vec<Pid>,
}

impl Control {
    /// `adopts`: this process has no other children, so that what loses its parent may be given to it.
    pub(in crate::launch) fn new(adopts: bool) -> io::Result<Control> {
        let signals = Some(Signals::new()?);
        let mut descendants = Descendants::new(adopts);
        let guard = Guard::new(descendants.mark(), &descendants::above());
        guard.process().into_iter().for_each(|guard| descendants.except(guard));
        let (running, remains) = (Vec::new(), Vec::new());
        let (passed, asked) = (Vec::new(), Vec::new());
        Ok(Control { signals, guard, descendants, running, remains, look_again: None, passed, asked })
    }

    pub(in crate::launch) fn prepare(&self, command: &mut Command) {
        command.process_group(0).env(self.descendants.mark(), "1");
    }

    pub(in crate::launch) fn started(&mut self, child: &Child) {
        let group = Pid::from_child(child);
        self.guard.watch(group);
        self.running.push(group);
    }

    pub(in crate::launch) fn ended(&mut self, child: &Child) {
        let group = Pid::from_child(child);
        self.running.retain(|running| *running != group);
        self.remains.push(group);
        // At once, before the number of a group that is no more becomes another's.
        self.forget_groups(None);
    }

    /// Asks all to end that have not been asked: the workers' groups, and beside them who has lost its parents.
    ///
    /// Who has a parent beside the groups is that one's to ask, which may itself be a launcher: no process is asked twice.
    pub(in crate::launch) fn terminate(&mut self) {
        let (all, living) = self.look();
        self.ask_groups(Signal::TERM);
        let groups = || self.running.iter().chain(&self.remains);
        for process in all.iter().filter(|process| living.contains(&process.id)) {
            let is_in_a_group = process.group.is_some_and(|of| groups().any(|group| *group == of));
            let has_a_parent = process.parent.is_some_and(|parent| living.contains(&parent));
            if !is_in_a_group && !has_a_parent && !self.asked.contains(&process.id) {
                self.asked.push(process.id);
                let _ = kill_process(process.id, Signal::TERM);
            }
        }
    }

    pub(in crate::launch) fn kill(&mut self, _children: &mut dyn Iterator<Item = &mut Child>) {
        let deadline = Instant::now() + KILLED_WITHIN;
        // Who starts another while it is looked is found by the next look.
        while self.kill_all() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        self.descendants.reap(&self.running);
    }

    /// Whether workers, all of which have ended, left processes behind.
    pub(in crate::launch) fn has_remains(&mut self) -> bool {
        let start = Instant::now();
        let (_, living) = self.look();
        let is_left = !self.remains.is_empty() || !living.is_empty();
        self.look_again = is_left.then(|| LOOK_EVERY.max(start.elapsed() * PAUSE_PER_LOOK));
        is_left
    }

    /// Forgets groups that have nobody who can still do anything.
    fn forget_groups(&mut self, all: Option<&[Process]>) {
        let guard = &mut self.guard;
        self.remains.retain(|group| {
            // Who ended and was not waited for counts here, and in many containers nobody ever waits.
            let lives = |process: &Process| process.group == Some(*group) && process.lives;
            let is_left = test_kill_process_group(*group).is_ok() && all.is_none_or(|all| all.iter().any(lives));
            if !is_left {
                guard.forget(*group);
            }
            is_left
        });
    }

    /// Waits until a child has ended or a signal has come, and passes that on.
    pub(in crate::launch) fn wait(&mut self, at_most: Option<Duration>) {
        self.descendants.reap(&self.running);
        self.forget_groups(None);
        let at_most = at_most.map(|most| self.look_again.map_or(most, |again| most.min(again)));
        let at_most = match self.remains.is_empty() {
            true => at_most,
            false => Some(at_most.map_or(FORGET_EVERY, |most| most.min(FORGET_EVERY))),
        };
        let come = self.signals.as_mut().map(|signals| signals.wait(at_most));
        for signal in come.unwrap_or_default() {
            self.pass_on(signal);
        }
    }

    /// From now on signals do again what they did before.
    pub(in crate::launch) fn stop_listening(&mut self) {
        self.descendants.reap(&self.running);
        self.signals = None;
    }

    /// Whether a signal of this number has been passed on.
    pub(in crate::launch) fn has_passed(&self, signal: i32) -> bool {
        self.passed.iter().any(|passed| passed.as_raw() == signal)
    }

    fn pass_on(&mut self, signal: Signal) {
        self.passed.push(signal);
        if [Signal::USR1, Signal::USR2].contains(&signal) {
            // A program has its own meaning for these; its helpers would die of them.
            for worker in &self.running {
                let _ = kill_process(*worker, signal);
            }
        } else if signal == Signal::TERM {
            self.ask_groups(signal);
        } else {
            for group in self.running.iter().chain(&self.remains) {
                let _ = kill_process_group(*group, signal);
            }
        }
    }

    /// Sends a signal that asks to end to the groups that have not been asked.
    fn ask_groups(&mut self, signal: Signal) {
        for group in self.running.iter().chain(&self.remains) {
            if !self.asked.contains(group) {
                self.asked.push(*group);
                // A group that has just ended gets none, and needs none.
                let _ = kill_process_group(*group, signal);
            }
        }
    }

    /// All processes, and which of them descend from workers and live; before the first of them ends and its children
    /// have another parent.
    fn look(&mut self) -> (Vec<Process>, Vec<Pid>) {
        let all = processes::all().ok();
        self.forget_groups(all.as_deref());
        let all = all.unwrap_or_default();
        let living = self.descendants.living(&self.running, &all);
        (all, living)
    }

    /// Kills every group and every descendant; whether there was any of these.
    fn kill_all(&mut self) -> bool {
        let (_, living) = self.look();
        for group in self.running.iter().chain(&self.remains) {
            let _ = kill_process_group(*group, Signal::KILL);
        }
        for process in &living {
            let _ = kill_process(*process, Signal::KILL);
        }
        !living.is_empty()
    }
}
