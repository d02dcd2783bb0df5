//! The workers that run, until all have ended.

use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::launch::attempts::{Event, Link};
use crate::launch::ending::{Ending, How, SIGKILL, signal};
use crate::launch::error::LaunchError;
use crate::launch::output::{Captured, Copier, Fault, Faults, Output};
use crate::launch::report::LaunchReport;
use crate::launch::role::{Member, Role};
use crate::launch::start_error::StartError;
use crate::launch::stopped;
use crate::launch::supervisor::{Signals, Supervisor};
use crate::value::host_name::host_name;

/// The signal of a process that writes to a pipe without a reader.
const SIGPIPE: i32 = 13;
/// How long after the first failure a worker that was killed is taken for its cause.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);

/// Workers that have not exited; dropping this kills them.
#[derive(Debug)]
pub(super) struct Running {
    members: Vec<Member>,
    /// The output of workers that have exited: their last lines may still be on the way.
    ended: Vec<Captured>,
    supervisor: Supervisor,
    signals: Arc<Signals>,
    output: Output,
    copier: Option<Copier>,
    faults: Faults,
    grace: Duration,
    /// Workers that the terminal stopped after they had been asked to end, by process number, and when they are killed.
    stuck: Vec<(u32, Instant)>,
    /// Whether no process is left.
    is_over: bool,
    /// Whether a signal ended the wait for the reader of the last lines.
    is_cut: bool,
    /// How workers ended, but for the first that failed.
    endings: Vec<Ending>,
    started: Instant,
    /// When the first worker failed.
    failed: Option<Instant>,
    /// A worker that was killed from outside, of which the others may have heard before this process.
    killed: Option<(Member, ExitStatus)>,
}

/// How the workers came to an end without a failure here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// All have finished.
    Done,
    /// Another node's failure stopped them.
    Stopped,
}

impl Running {
    pub(super) fn new(
        output: Output,
        grace: Duration,
        subreaper: bool,
        signals: &Arc<Signals>,
    ) -> Result<Running, LaunchError> {
        output.try_room()?;
        // Before the first worker: later the limit of threads may be reached.
        let copier = output.copier().map_err(LaunchError::Thread)?;
        let faults = Faults::new(signals.waker().map_err(LaunchError::Signals)?);
        let signals = Arc::clone(signals);
        Ok(Running {
            members: Vec::new(),
            ended: Vec::new(),
            supervisor: Supervisor::new(subreaper, Arc::clone(&signals)),
            signals,
            output,
            copier,
            faults,
            grace,
            stuck: Vec::new(),
            is_over: false,
            is_cut: false,
            endings: Vec::new(),
            started: Instant::now(),
            failed: None,
            killed: None,
        })
    }

    /// Starts a worker, or the scheduler of the rank.
    pub(super) fn start(&mut self, role: Role, rank: u32, command: &mut Command) -> Result<(), LaunchError> {
        self.output.direct(role, command)?;
        self.supervisor.prepare(command);
        let child = command.spawn().map_err(|error| StartError::new(command, error));
        let mut child = child.map_err(|error| LaunchError::Start { rank, error })?;
        self.supervisor.started(&child);
        let captured = self.output.capture(role, &mut child, self.copier.as_ref(), &self.faults);
        let (captured, outcome) = match captured {
            Ok(captured) => (captured, Ok(())),
            Err(error) => (Captured::Nothing, Err(LaunchError::Thread(error))),
        };
        self.members.push(Member { role, child, captured });
        outcome
    }

    /// Ends all workers at once: not all could be started.
    pub(super) fn abort(&mut self) {
        self.kill();
        self.is_over = true;
    }

    /// How workers ended, but for the first that failed.
    pub(super) fn endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    /// How long after the start the first worker failed, or how long it has been.
    pub(super) fn ran_for(&self) -> Duration {
        self.failed.unwrap_or_else(Instant::now).saturating_duration_since(self.started)
    }

    /// Whether output could not be written, and no error says so.
    pub(super) fn has_fault(&self) -> bool {
        self.faults.is_left()
    }

    /// Waits for all workers of an attempt, and ends the others when one fails, here or on another node.
    pub(super) fn wait(&mut self, link: &Link, again: u32) -> Result<Exit, LaunchError> {
        loop {
            if let Some(fault) = self.faults.take_if(|fault| !fault.is_by_reader()) {
                link.send(Event::Failing);
                self.end(false)?;
                return Err(fault.into());
            }
            if let Some((member, status)) = self.reap()? {
                self.failed = Some(Instant::now());
                link.send(Event::Failing);
                self.end(true)?;
                let (first, other) = match self.killed.take() {
                    Some(killed) if !is_killed(status) => (killed, Some((member, status))),
                    other => ((member, status), other),
                };
                if let Some((member, status)) = other {
                    self.keep(member, How::of(status, false));
                }
                return Err(self.failure(&first.0, first.1));
            }
            if link.is_stopped(again) {
                let noticed = Instant::now();
                self.end(true)?;
                // Another node noticed the end of this worker before this one did.
                let Some((member, status)) = self.killed.take() else { return Ok(Exit::Stopped) };
                self.failed = Some(noticed);
                return Err(self.failure(&member, status));
            }
            if self.members.iter().all(|member| member.role == Role::Scheduler) {
                break;
            }
            self.tell_stops();
            let until = self.kill_stuck();
            self.supervisor.wait(until);
        }
        // The scheduler ends by itself when the last worker of all nodes has left it.
        let deadline = Instant::now() + self.grace;
        while !self.members.is_empty() && Instant::now() < deadline {
            self.supervisor.wait(Some(deadline.saturating_duration_since(Instant::now())));
            // The workers that needed it report its failure.
            self.reap()?;
        }
        self.end(false)?;
        if self.is_cut {
            // That is no success.
            self.signals.end_process();
        }
        match self.faults.take_if(|_| true) {
            Some(fault) => Err(fault.into()),
            None => self.output.try_room().map(|()| Exit::Done),
        }
    }

    /// Reports workers that a signal has stopped: otherwise the job would hang without a reason.
    fn tell_stops(&mut self) {
        for member in &self.members {
            if let Some(stop) = self.supervisor.newly_stopped(&member.child) {
                let process = member.child.id();
                // A handler that uses the terminal is stopped as often as it goes on.
                let is_stuck = stop.is_by_terminal() && self.supervisor.has_asked_to_end();
                if is_stuck && self.stuck.iter().all(|(known, _)| *known != process) {
                    self.stuck.push((process, Instant::now() + self.grace));
                }
                stopped::tell(member.role, process, stop, is_stuck.then_some(self.grace));
            }
        }
    }

    /// Kills the stuck workers that are still stopped after their grace; how long until the next one's is over.
    fn kill_stuck(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let is_over = |(_, deadline): &mut (u32, Instant)| *deadline <= now;
        for (process, _) in self.stuck.extract_if(.., is_over) {
            if let Some(member) = self.members.iter().find(|member| member.child.id() == process) {
                self.supervisor.kill_if_stopped(&member.child);
            }
        }
        self.stuck.iter().map(|(_, deadline)| deadline.saturating_duration_since(now)).min()
    }

    /// Moves the members that have ended, up to the first worker that failed, and gives that one.
    fn reap(&mut self) -> Result<Option<(Member, ExitStatus)>, LaunchError> {
        let mut index = 0;
        while let Some(member) = self.members.get_mut(index) {
            let rank = member.role.rank().unwrap_or(0);
            let status = self.supervisor.try_wait(&mut member.child);
            let Some(status) = status.map_err(|error| LaunchError::Wait { rank, error })? else {
                index += 1;
                continue;
            };
            let member = self.members.remove(index);
            if member.role != Role::Scheduler && !status.success() {
                return Ok(Some((member, status)));
            }
            self.keep(member, How::of(status, false));
        }
        Ok(None)
    }

    /// Remembers a worker that has ended.
    fn keep(&mut self, member: Member, how: How) {
        self.endings.extend(member.role.rank().map(|rank| Ending { rank, how }));
        self.ended.push(member.captured);
    }

    /// Ends all processes: asks, waits for the grace period, kills. May keep a worker that was killed from outside.
    fn end(&mut self, finds_cause: bool) -> Result<(), LaunchError> {
        let asked = Instant::now();
        let deadline = asked + self.grace;
        loop {
            // A second failure is the first one's consequence.
            while let Some((member, status)) = self.reap()? {
                // This process kills only after the grace, and waits for none of these. Later, being asked may be the reason.
                let may_be_cause = finds_cause && asked.elapsed() < CAUSE_WITHIN;
                if is_killed(status) && may_be_cause && self.killed.is_none() {
                    self.killed = Some((member, status));
                } else {
                    self.keep(member, How::of(status, true));
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.is_left() {
                break;
            }
            if left.is_zero() {
                self.kill();
                break;
            }
            // Repeatedly: processes that lose their parents by it are asked, too.
            self.supervisor.terminate();
            self.supervisor.wait(Some(left));
        }
        self.is_over = true;
        self.supervisor.let_go();
        self.is_cut = !self.ended.iter().all(|captured| captured.finish(|| self.signals.is_hurried()));
        Ok(())
    }

    fn is_left(&mut self) -> bool {
        !self.members.is_empty() || self.supervisor.has_remains()
    }

    fn kill(&mut self) {
        self.supervisor.kill(&mut self.members.iter_mut().map(|member| &mut member.child));
        for member in std::mem::take(&mut self.members) {
            self.keep(member, How::Killed);
        }
    }

    /// The error for a worker's failure.
    fn failure(&self, member: &Member, status: ExitStatus) -> LaunchError {
        member.captured.finish(|| self.signals.is_hurried());
        let signal = signal(status);
        let is_by_pipe = signal == Some(SIGPIPE) || status.code() == Some(128 + SIGPIPE);
        // What kept this process from writing is the cause of what followed.
        if let Some(fault) = self.faults.take_if(|fault| is_by_pipe || !fault.is_by_reader()) {
            return fault.into();
        }
        let passed_on = signal.is_some_and(|signal| self.supervisor.has_passed(signal));
        let rank = member.role.rank().unwrap_or(0);
        let (stderr, lines) = member.captured.tail().unzip();
        let report = Box::new(LaunchReport::of_lines(lines.unwrap_or_default()));
        LaunchError::Failed { rank, host: host_name(), status, passed_on, stderr, report }
    }
}

fn is_killed(status: ExitStatus) -> bool {
    signal(status) == Some(SIGKILL)
}

impl From<Fault> for LaunchError {
    fn from(Fault { stream, error }: Fault) -> LaunchError {
        LaunchError::Output { stream, error }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}
