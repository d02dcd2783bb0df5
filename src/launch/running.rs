//! The workers that run, until all have exited.

use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::launch::attempts::{Event, Haste, Link};
use crate::launch::ending::{Ending, How, SIGKILL, killed, signal};
use crate::launch::error::LaunchError;
use crate::launch::output::{Captured, Copier, Fault, Faults, Place};
use crate::launch::report::LaunchReport;
use crate::launch::role::{Member, Role};
use crate::launch::start_error::StartError;
use crate::launch::stop::{Grace, Request, is_request};
use crate::launch::stopped;
use crate::launch::supervisor::{Signals, Supervisor};
use crate::value::host_name::host_name;

/// The signal that kills a process when it writes to a pipe without a reader.
const SIGPIPE: i32 = 13;
/// How long after the first failure the death of a killed worker may still be its cause.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);
/// How long after a request to end the job the workers that remain are named.
const NAMED_AFTER: Duration = Duration::from_secs(2);

/// Workers that have not exited. Dropping this kills them.
#[derive(Debug)]
pub(super) struct Running {
    members: Vec<Member>,
    /// The output of workers that have exited, whose last lines may still be on their way.
    ended: Vec<Captured>,
    supervisor: Supervisor,
    signals: Arc<Signals>,
    /// How soon another node asked this one to stop.
    haste: Option<Haste>,
    output: Place,
    copier: Option<Copier>,
    faults: Faults,
    grace: Grace,
    /// A request that follows from a worker that the terminal stopped after it was asked to exit.
    stuck: Option<Request>,
    /// Whether the workers that remain after a request have been named.
    is_named: bool,
    /// Whether no process is left.
    is_over: bool,
    /// Whether a signal cut short the wait for the reader of the last lines.
    is_cut: bool,
    /// How workers ended, except the first one that failed.
    endings: Vec<Ending>,
    started: Instant,
    /// When the first worker failed.
    failed: Option<Instant>,
    /// A worker that was killed from outside, which other workers may have noticed before this
    /// process did.
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
        output: Place,
        grace: Grace,
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
            haste: None,
            output,
            copier,
            faults,
            grace,
            stuck: None,
            is_named: false,
            is_over: false,
            is_cut: false,
            endings: Vec::new(),
            started: Instant::now(),
            failed: None,
            killed: None,
        })
    }

    /// Starts a worker, or the scheduler of a rank.
    pub(super) fn start(
        &mut self,
        role: Role,
        rank: u32,
        command: &mut Command,
    ) -> Result<(), LaunchError> {
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

    /// Waits for all workers of an attempt, and stops the others when one fails here or on another
    /// node.
    pub(super) fn wait(&mut self, link: &Link, again: u32) -> Result<Exit, LaunchError> {
        loop {
            if let Some(fault) = self.faults.take_if(|fault| !fault.is_by_reader()) {
                link.send(Event::Failing { haste: Haste::Failure });
                self.end(false, link, again)?;
                return Err(fault.into());
            }
            if let Some((member, status)) = self.reap()? {
                self.failed = Some(Instant::now());
                let request = self.request();
                link.send(Event::Failing { haste: Running::haste_of(request) });
                self.end(true, link, again)?;
                let (first, other) = match self.killed.take() {
                    Some(killed) if !is_killed(status) => (killed, Some((member, status))),
                    other => ((member, status), other),
                };
                if let Some((member, status)) = other {
                    self.keep(member, How::of(status, false));
                }
                return Err(self.failure(&first.0, first.1, request));
            }
            if let Some(haste) = link.stop(again) {
                self.haste = Some(haste);
                let noticed = Instant::now();
                self.end(true, link, again)?;
                // Another node noticed that this worker was killed before this process did.
                let Some((member, status)) = self.killed.take() else { return Ok(Exit::Stopped) };
                self.failed = Some(noticed);
                return Err(self.failure(&member, status, None));
            }
            if self.members.iter().all(|member| member.role == Role::Scheduler) {
                break;
            }
            self.tell_stops();
            let until = match self.request() {
                Some(request) if Instant::now() >= request.deadline(self.grace.after_signal) => {
                    self.failed = Some(Instant::now());
                    link.send(Event::Failing { haste: Running::haste_of(Some(request)) });
                    let rank =
                        self.members.iter().find_map(|member| member.role.rank()).unwrap_or(0);
                    self.end(false, link, again)?;
                    return Err(self.stopped(rank, request));
                }
                Some(request) => {
                    Some(self.name_after(request, request.deadline(self.grace.after_signal)))
                }
                None => None,
            };
            self.supervisor.wait(until);
        }
        // The scheduler exits by itself once the last worker of all nodes has disconnected.
        let deadline = Instant::now() + self.grace.after_failure;
        while !self.members.is_empty() && Instant::now() < self.no_later(deadline) {
            self.supervisor.wait(Some(deadline.saturating_duration_since(Instant::now())));
            // If the scheduler fails, the workers that needed it report the failure.
            self.reap()?;
        }
        self.end(false, link, again)?;
        if self.is_cut {
            // Incomplete output is not a success.
            self.signals.end_process();
        }
        match self.faults.take_if(|_| true) {
            Some(fault) => Err(fault.into()),
            None => self.output.try_room().map(|()| Exit::Done),
        }
    }

    /// Reports workers that a signal has stopped, because the job would otherwise hang without a
    /// visible reason.
    fn tell_stops(&mut self) {
        for member in &self.members {
            if let Some(stop) = self.supervisor.newly_stopped(&member.child) {
                // A signal handler that uses the terminal is stopped again each time it continues.
                let is_stuck = stop.is_by_terminal() && self.supervisor.has_asked_to_end();
                if is_stuck {
                    self.stuck.get_or_insert_with(Request::by_hang_up);
                }
                stopped::tell(
                    member.role,
                    member.child.id(),
                    stop,
                    is_stuck.then_some(self.grace.after_signal),
                );
            }
        }
    }

    /// Returns the request to end the job that this process has received, if any.
    fn request(&self) -> Option<Request> {
        self.signals.request().or(self.stuck)
    }

    /// Returns how soon the workers of other nodes must exit because of a request, or of a failure.
    fn haste_of(request: Option<Request>) -> Haste {
        match request {
            None => Haste::Failure,
            Some(request) if request.is_repeated => Haste::Now,
            Some(_) => Haste::Signal,
        }
    }

    /// Returns this deadline, or an earlier one that a request sets.
    fn no_later(&self, deadline: Instant) -> Instant {
        self.request()
            .map_or(deadline, |request| deadline.min(request.deadline(self.grace.after_signal)))
    }

    /// Names the workers that do not follow a request, once. Returns how long to wait before the
    /// next look.
    ///
    /// `deadline`: when workers that remain are killed.
    fn name_after(&mut self, request: Request, deadline: Instant) -> Duration {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let silent = (request.since + NAMED_AFTER).saturating_duration_since(now);
        if self.is_named || !silent.is_zero() {
            return if self.is_named { left } else { left.min(silent) };
        }
        self.is_named = true;
        let ranks = self.members.iter().filter_map(|member| member.role.rank()).collect();
        stopped::tell_remaining(ranks, request.signal, left);
        left
    }

    /// Removes the members that have exited, up to the first worker that failed, and returns that
    /// worker.
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

    /// Stops all processes: asks them to exit, waits for the grace period, and kills them. May keep
    /// a worker that was killed from outside.
    fn end(&mut self, finds_cause: bool, link: &Link, again: u32) -> Result<(), LaunchError> {
        let asked = Instant::now();
        // A worker that exits because of a request does not shorten the time of the others, which
        // may save their state.
        let request = self.request().filter(|_| finds_cause);
        let grace = match self.haste {
            Some(Haste::Signal) => self.grace.after_signal,
            _ => self.grace.after_failure,
        };
        let mut deadline =
            request.map_or(asked + grace, |request| request.deadline(self.grace.after_signal));
        let mut is_told = false;
        loop {
            if link.stop(again) == Some(Haste::Now) {
                deadline = asked;
            }
            // The node that a second signal has reached tells the others.
            if finds_cause && !is_told && self.request().is_some_and(|request| request.is_repeated)
            {
                is_told = true;
                link.send(Event::Failing { haste: Haste::Now });
            }
            // A second failure is a consequence of the first.
            while let Some((member, status)) = self.reap()? {
                // This process sends SIGKILL only after the grace period, and reaps none of those
                // workers here. If it is sent later, the request to exit may be the reason.
                let may_be_cause = finds_cause && asked.elapsed() < CAUSE_WITHIN;
                if is_killed(status) && may_be_cause && self.killed.is_none() {
                    self.killed = Some((member, status));
                } else {
                    self.keep(member, How::of(status, true));
                }
            }
            let left = self.no_later(deadline).saturating_duration_since(Instant::now());
            if !self.is_left() {
                break;
            }
            if left.is_zero() {
                self.kill();
                break;
            }
            // Repeated, because processes whose parents exit must be asked, too.
            self.supervisor.terminate(finds_cause);
            let until = self.no_later(deadline);
            let look = self.request().map(|request| self.name_after(request, until));
            self.supervisor.wait(Some(look.map_or(left, |look| look.min(left))));
        }
        self.is_over = true;
        self.supervisor.let_go();
        self.is_cut =
            !self.ended.iter().all(|captured| captured.finish(|| self.signals.is_hurried()));
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

    /// Returns the error for a job that a request has ended. `rank` is one of the workers that it
    /// ended.
    fn stopped(&self, rank: u32, request: Request) -> LaunchError {
        let (signal, is_repeated) =
            (request.signal, self.request().is_some_and(|request| request.is_repeated));
        let killed = killed(&self.endings).map(|ranks| match is_repeated {
            true => format!("a second signal killed {ranks}"),
            false => format!("killed after {} s: {ranks}", self.grace.after_signal.as_secs_f64()),
        });
        LaunchError::Stopped {
            rank: Some(rank),
            host: None,
            signal,
            killed,
            report: Box::default(),
        }
    }

    /// Returns the error for a worker's failure. `request`: what had asked the job to end before.
    fn failure(
        &self,
        member: &Member,
        status: ExitStatus,
        request: Option<Request>,
    ) -> LaunchError {
        member.captured.finish(|| self.signals.is_hurried());
        let signal = signal(status);
        let is_by_pipe = signal == Some(SIGPIPE) || status.code() == Some(128 + SIGPIPE);
        // Whatever kept this process from writing is the cause of what followed.
        if let Some(fault) = self.faults.take_if(|fault| is_by_pipe || !fault.is_by_reader()) {
            return fault.into();
        }
        let rank = member.role.rank().unwrap_or(0);
        let is_asked = |code: i32| signal == Some(code) || status.code() == Some(128 + code);
        // A worker may exit because of another signal than the first: the others get SIGTERM.
        if let Some(request) =
            request.filter(|request| is_asked(request.signal) || signal.is_some_and(is_request))
        {
            return self.stopped(rank, request);
        }
        let passed_on = signal.is_some_and(|signal| self.supervisor.has_passed(signal));
        let (stderr, report) = member.captured.quote().map(LaunchReport::of_quote).unzip();
        let report = Box::new(report.unwrap_or_default());
        let after = request.map(|request| request.signal);
        LaunchError::Failed { rank, host: host_name(), status, passed_on, after, stderr, report }
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
