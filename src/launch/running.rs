//! The workers that run, until all have exited.

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

/// The signal that kills a process when it writes to a pipe without a reader.
const SIGPIPE: i32 = 13;
/// How long after the first failure the death of a killed worker may still be its cause.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);

/// Workers that have not exited. Dropping this kills them.
#[derive(Debug)]
pub(super) struct Running {
    members: Vec<Member>,
    /// The output of workers that have exited, whose last lines may still be on their way.
    ended: Vec<Captured>,
    supervisor: Supervisor,
    signals: Arc<Signals>,
    output: Output,
    copier: Option<Copier>,
    faults: Faults,
    grace: Duration,
    /// Workers that the terminal stopped after they were asked to exit, by process ID, and when they are killed.
    stuck: Vec<(u32, Instant)>,
    /// Whether no process is left.
    is_over: bool,
    /// Whether a signal cut short the wait for the reader of the last lines.
    is_cut: bool,
    /// How workers ended, except the first one that failed.
    endings: Vec<Ending>,
    started: Instant,
    /// When the first worker failed.
    failed: Option<Instant>,
    /// A worker that was killed from outside, which other workers may have noticed before this process did.
    killed: Option<(Member, ExitStatus)>,
}

/// How the workers ended without a failure on this node.
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
        // Before the first worker, because the limit of threads may be reached later.
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

    /// Starts a worker, or the scheduler of a rank.
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

    /// Kills all workers at once, because not all could be started.
    pub(super) fn abort(&mut self) {
        self.kill();
        self.is_over = true;
    }

    /// Takes how workers ended, except the first one that failed.
    pub(super) fn endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    /// Returns the time from the start to the first failure, or until now if there is none.
    pub(super) fn ran_for(&self) -> Duration {
        self.failed.unwrap_or_else(Instant::now).saturating_duration_since(self.started)
    }

    /// Returns whether output could not be written and no error has reported it.
    pub(super) fn has_fault(&self) -> bool {
        self.faults.is_left()
    }

    /// Waits for all workers of an attempt, and stops the others when one fails here or on another node.
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
                // Another node noticed that this worker was killed before this process did.
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
        // The scheduler exits by itself once the last worker of all nodes has disconnected.
        let deadline = Instant::now() + self.grace;
        while !self.members.is_empty() && Instant::now() < deadline {
            self.supervisor.wait(Some(deadline.saturating_duration_since(Instant::now())));
            // If the scheduler fails, the workers that needed it report the failure.
            self.reap()?;
        }
        self.end(false)?;
        if self.is_cut {
            // Incomplete output is not a success.
            self.signals.end_process();
        }
        match self.faults.take_if(|_| true) {
            Some(fault) => Err(fault.into()),
            None => self.output.try_room().map(|()| Exit::Done),
        }
    }

    /// Reports workers that a signal has stopped, because the job would otherwise hang without a visible reason.
    fn tell_stops(&mut self) {
        for member in &self.members {
            if let Some(stop) = self.supervisor.newly_stopped(&member.child) {
                let process = member.child.id();
                // A signal handler that uses the terminal is stopped again each time it continues.
                let is_stuck = stop.is_by_terminal() && self.supervisor.has_asked_to_end();
                if is_stuck && self.stuck.iter().all(|(known, _)| *known != process) {
                    self.stuck.push((process, Instant::now() + self.grace));
                }
                stopped::tell(member.role, process, stop, is_stuck.then_some(self.grace));
            }
        }
    }

    /// Kills the stuck workers that are still stopped after their grace period. Returns the time left for the next one.
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

    /// Removes the members that have exited, up to the first worker that failed, and returns that worker.
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

    /// Records a worker that has exited.
    fn keep(&mut self, member: Member, how: How) {
        self.endings.extend(member.role.rank().map(|rank| Ending { rank, how }));
        self.ended.push(member.captured);
    }

    /// Stops all processes: asks them to exit, waits for the grace period, and kills them. May keep a worker that was
    /// killed from outside.
    fn end(&mut self, finds_cause: bool) -> Result<(), LaunchError> {
        let asked = Instant::now();
        let deadline = asked + self.grace;
        loop {
            // A second failure is a consequence of the first.
            while let Some((member, status)) = self.reap()? {
                // This process sends SIGKILL only after the grace period, and reaps none of those workers here. If it
                // is sent later, the request to exit may be the reason.
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
            // Repeated, because processes whose parents exit must be asked, too.
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

    /// Returns the error for a worker's failure.
    fn failure(&self, member: &Member, status: ExitStatus) -> LaunchError {
        member.captured.finish(|| self.signals.is_hurried());
        let signal = signal(status);
        let is_by_pipe = signal == Some(SIGPIPE) || status.code() == Some(128 + SIGPIPE);
        // Whatever kept this process from writing is the cause of what followed.
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
