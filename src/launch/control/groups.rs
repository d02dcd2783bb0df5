//! Each worker is the first of a process group, which gets signals and ends as a whole.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use super::guard::Guard;
use super::signals::Signals;

/// How often remains are looked at: the system tells the end of nobody else's children.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The workers' ruler.
#[derive(Debug)]
pub(in crate::launch) struct Control {
    /// None once nobody is left to pass them on to.
    signals: Option<Signals>,
    guard: Guard,
    /// The groups of workers that run.
    running: Vec<Pid>,
    /// The groups of workers that have ended and may have left processes behind.
    remains: Vec<Pid>,
    passed: Vec<Signal>,
}

impl Control {
    pub(in crate::launch) fn new() -> io::Result<Control> {
        let signals = Some(Signals::new()?);
        Ok(Control { signals, guard: Guard::new(), running: Vec::new(), remains: Vec::new(), passed: Vec::new() })
    }

    pub(in crate::launch) fn prepare(&self, command: &mut Command) {
        command.process_group(0);
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
        self.has_remains();
    }

    /// Asks every process of every group to end.
    pub(in crate::launch) fn terminate(&self) {
        self.signal_groups(Signal::TERM);
    }

    pub(in crate::launch) fn kill(&mut self, _children: &mut dyn Iterator<Item = &mut Child>) {
        self.signal_groups(Signal::KILL);
    }

    /// Whether a worker that has ended left processes behind.
    pub(in crate::launch) fn has_remains(&mut self) -> bool {
        let guard = &mut self.guard;
        self.remains.retain(|group| {
            let lives = is_alive(*group);
            if !lives {
                guard.forget(*group);
            }
            lives
        });
        !self.remains.is_empty()
    }

    /// Waits until a child has ended or a signal has come, and passes that on.
    pub(in crate::launch) fn wait(&mut self, at_most: Option<Duration>) {
        let at_most = if self.remains.is_empty() { at_most } else { at_most.map(|most| most.min(LOOK_EVERY)) };
        let come = self.signals.as_mut().map(|signals| signals.wait(at_most));
        for signal in come.unwrap_or_default() {
            self.pass_on(signal);
        }
    }

    /// From now on signals do again what they did before.
    pub(in crate::launch) fn stop_listening(&mut self) {
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
        } else {
            self.signal_groups(signal);
        }
    }

    fn signal_groups(&self, signal: Signal) {
        for group in self.running.iter().chain(&self.remains) {
            // A group that has just ended gets none, and needs none.
            let _ = kill_process_group(*group, signal);
        }
    }
}

/// Whether a group has a process that can still do anything.
fn is_alive(group: Pid) -> bool {
    // One that ended and that nobody has waited for counts there, and in many containers nobody ever does.
    test_kill_process_group(group).is_ok() && has_living(group).unwrap_or(true)
}

/// Whether a process of the group has not ended, by Linux's list of processes.
fn has_living(group: Pid) -> io::Result<bool> {
    let group = group.as_raw_pid().to_string();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(stat) = std::fs::read_to_string(entry?.path().join("stat")) else { continue };
        // pid (name) state parent group ...; the name may hold anything.
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, found) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        if found == group && !matches!(state, "Z" | "X") {
            return Ok(true);
        }
    }
    Ok(false)
}
