//! How the workers of an attempt are stopped: they are asked, get some time, and are then killed.

use std::process::ExitStatus;
use std::slice;
use std::time::{Duration, Instant};

use super::{Exit, Member, Running};
use crate::error::LaunchError;
use crate::job::{Event, Urgency};
use crate::output::Captured;
use crate::report::{How, LaunchReport, killed};
use crate::stop::{
    self, Request, SAME_REQUEST, SIGHUP, SIGPIPE, ended_by, is_by_request, is_killed, is_request,
};
use mpienv_core::seam::signal;
use mpienv_core::{ErrorKind, host_name};

/// How long after the first failure the death of a killed worker may still be its cause, and so may
/// any worker's failure if the first one has lost another.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);
/// How long after a request to end the job the workers that remain are named.
const NAMED_AFTER: Duration = Duration::from_secs(2);

impl Running {
    /// Stops the workers after the first one that failed.
    pub(super) fn fail(&mut self, member: Member, status: ExitStatus) -> Result<Exit, LaunchError> {
        self.failed = Some(Instant::now());
        if is_by_request(status) {
            self.await_request();
        }
        let request = self.request();
        self.failing(request);
        if has_lost_another(status) {
            self.await_cause()?;
        }
        self.end(Some(self.grace.after_failure))?;
        let (first, other) = match self.cause.take() {
            Some(cause) if is_consequence(status, cause.1) => (cause, Some((member, status))),
            other => ((member, status), other),
        };
        if let Some((member, status)) = other {
            self.keep(member, How::of(status, false));
        }
        Err(self.failure(&first.0, first.1, request))
    }

    /// Waits for the signal that has ended a worker: a scheduler signals the processes of a job one
    /// after another, and this process may be the last.
    fn await_request(&mut self) {
        let until = Instant::now() + SAME_REQUEST;
        while self.request().is_none() && Instant::now() < until {
            self.supervisor.wait(Some(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Lets the worker that the first failed one has lost end by itself, and keeps it as the cause:
    /// it may have left the others a moment before its process ends.
    fn await_cause(&mut self) -> Result<(), LaunchError> {
        let until = Instant::now() + CAUSE_WITHIN;
        loop {
            while let Some((member, status)) = self.reap()? {
                if !has_lost_another(status) {
                    self.cause = Some((member, status));
                    return Ok(());
                }
                self.keep(member, How::of(status, false));
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.members.is_empty() || left.is_zero() || self.request().is_some() {
                return Ok(());
            }
            self.supervisor.wait(Some(left));
        }
    }

    /// Stops the workers because another node has failed.
    pub(super) fn stop(&mut self, urgency: Urgency) -> Result<Exit, LaunchError> {
        let noticed = Instant::now();
        let grace = match urgency {
            Urgency::Signal => self.grace.after_signal,
            Urgency::Failure | Urgency::Now => self.grace.after_failure,
        };
        self.end(Some(grace))?;
        match self.cause.take() {
            // Another node noticed that this worker was killed before this process did.
            Some((member, status)) if is_killed(status) => {
                self.failed = Some(noticed);
                Err(self.failure(&member, status, None))
            }
            other => {
                if let Some((member, status)) = other {
                    self.keep(member, How::of(status, false));
                }
                Ok(Exit::Stopped)
            }
        }
    }

    /// Kills the workers, none of which has followed a request in time.
    pub(super) fn overdue(&mut self, request: Request) -> Result<Exit, LaunchError> {
        self.failed = Some(Instant::now());
        self.failing(Some(request));
        let rank = self.members.iter().find_map(|member| member.role.worker());
        self.end(None)?;
        Err(self.stopped(rank, request))
    }

    /// Tells the other nodes that this one has failed, or that a request ends it.
    pub(super) fn failing(&self, request: Option<Request>) {
        let urgency = match request {
            None => Urgency::Failure,
            Some(request) if request.is_repeated => Urgency::Now,
            Some(_) => Urgency::Signal,
        };
        self.link.send(Event::Failing { urgency });
    }

    /// Reports workers that a signal has stopped, because the job would otherwise hang without a
    /// visible reason.
    pub(super) fn tell_stops(&mut self) {
        for member in &self.members {
            if let Some(signal) = self.supervisor.newly_stopped(&member.child) {
                // A signal handler that uses the terminal is stopped again each time it continues.
                let is_stuck = stop::is_by_terminal(signal) && self.supervisor.has_asked_to_end();
                if is_stuck {
                    self.stuck.get_or_insert_with(|| Request::new(SIGHUP));
                }
                let killed_in = is_stuck.then_some(self.grace.after_signal);
                stop::tell_stop(member.role, member.child.id(), signal, killed_in);
            }
        }
    }

    /// Returns the request to end the job that this process has received, if any.
    pub(super) fn request(&self) -> Option<Request> {
        self.signals.request().or(self.stuck)
    }

    /// Returns this deadline, or an earlier one that a request sets.
    pub(super) fn no_later(&self, deadline: Instant) -> Instant {
        self.request()
            .map_or(deadline, |request| deadline.min(request.deadline(self.grace.after_signal)))
    }

    /// Names the workers that do not follow a request, once. Returns how long to wait before the
    /// next look.
    ///
    /// `deadline`: when workers that remain are killed.
    pub(super) fn name_after(&mut self, request: Request, deadline: Instant) -> Duration {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let silent = (request.since + NAMED_AFTER).saturating_duration_since(now);
        if self.is_named {
            return left;
        }
        if !silent.is_zero() {
            return left.min(silent);
        }
        self.is_named = true;
        let ranks = self.members.iter().filter_map(|member| member.role.worker()).collect();
        stop::tell_remaining(ranks, request.signal, left);
        left
    }

    /// Stops all processes: asks them to exit, waits for the grace period, and kills them.
    ///
    /// `after_failure`: the grace period after a worker has failed, here or on another node. The
    /// cause may then be a worker that was killed from outside or failed earlier, which is kept.
    pub(super) fn end(&mut self, after_failure: Option<Duration>) -> Result<(), LaunchError> {
        let asked = Instant::now();
        let finds_cause = after_failure.is_some();
        if finds_cause {
            // Killed or exiting before they are asked: on a busy machine, others notice it first,
            // and this process notices their exit first.
            for member in &mut self.members {
                member.is_dying = self.supervisor.is_dying(&member.child);
            }
        }
        let grace = after_failure.unwrap_or(self.grace.after_failure);
        // A worker that exits because of a request does not shorten the time of the others, which
        // may save their state.
        let request = self.request().filter(|_| finds_cause);
        let mut deadline =
            request.map_or(asked + grace, |request| request.deadline(self.grace.after_signal));
        let mut has_told = false;
        loop {
            if self.link.mailbox.stop(self.again) == Some(Urgency::Now) {
                deadline = asked;
            }
            // The node that a second signal has reached tells the others.
            let repeated = self.request().filter(|request| finds_cause && request.is_repeated);
            if repeated.is_some() && !has_told {
                has_told = true;
                self.failing(repeated);
            }
            self.reap_others(finds_cause.then_some(asked))?;
            let until = self.no_later(deadline);
            let left = until.saturating_duration_since(Instant::now());
            if self.members.is_empty() && !self.supervisor.has_remains() {
                break;
            }
            if left.is_zero() {
                self.kill();
                break;
            }
            // Repeated, because processes whose parents exit must be asked, too.
            self.supervisor.terminate(finds_cause);
            let pause = self.request().map_or(left, |request| self.name_after(request, until));
            self.supervisor.wait(Some(pause.min(left)));
        }
        self.is_over = true;
        self.supervisor.let_go();
        self.is_cut = !Captured::finish(&self.ended, || self.signals.is_hurried());
        Ok(())
    }

    /// Removes the members that have exited. A second failure is a consequence of the first, unless
    /// something outside has killed the worker before it could be asked, or it was exiting then.
    ///
    /// `asked`: when the workers were asked to exit because of a failure.
    fn reap_others(&mut self, asked: Option<Instant>) -> Result<(), LaunchError> {
        while let Some((member, status)) = self.reap()? {
            // This process sends SIGKILL only after the grace period, and reaps none of those
            // workers here. If it is sent later, the request to exit may be the reason.
            let may_be_cause = asked.is_some_and(|asked| match is_killed(status) {
                // A script may have killed its command because it was asked to exit.
                true => {
                    let is_itself = signal(status).is_some();
                    member.is_dying || is_itself && asked.elapsed() < CAUSE_WITHIN
                }
                false => member.is_dying && !status.success() && !has_lost_another(status),
            });
            let known = self.cause.as_ref().map(|(_, known)| *known);
            let is_stronger = known.is_none_or(|known| is_killed(status) && !is_killed(known));
            if !may_be_cause || !is_stronger {
                self.keep(member, How::of(status, true));
            } else if let Some((weaker, status)) = self.cause.replace((member, status)) {
                self.keep(weaker, How::of(status, true));
            }
        }
        Ok(())
    }

    /// Kills all workers at once.
    pub(crate) fn kill(&mut self) {
        self.supervisor.kill();
        for member in std::mem::take(&mut self.members) {
            self.keep(member, How::Killed);
        }
        self.is_over = true;
    }

    /// Returns the error for a job that a request has ended. `rank` is one of the workers that it
    /// ended.
    fn stopped(&self, rank: Option<u32>, request: Request) -> LaunchError {
        let is_repeated = self.request().is_some_and(|request| request.is_repeated);
        let killed = killed(&self.endings).map(|ranks| match is_repeated {
            true => format!("a second signal killed {ranks}"),
            false => format!("killed after {} s: {ranks}", self.grace.after_signal.as_secs_f64()),
        });
        LaunchError::stopped(rank, None, request.signal, killed)
    }

    /// Returns the error for a worker's failure. `request`: what had asked the job to end before.
    fn failure(
        &self,
        member: &Member,
        status: ExitStatus,
        request: Option<Request>,
    ) -> LaunchError {
        Captured::finish(slice::from_ref(&member.captured), || self.signals.is_hurried());
        let signal = signal(status);
        let is_by_pipe = signal == Some(SIGPIPE) || status.code() == Some(128 + SIGPIPE);
        // Whatever kept this process from writing is the cause of what followed.
        if let Some(fault) = self.faults.take_if(|fault| is_by_pipe || !fault.is_by_reader()) {
            return fault;
        }
        let rank = member.role.rank;
        let is_asked = |signal: i32| ended_by(status) == Some(signal);
        // A worker may exit because of another signal than the first: the others get SIGTERM.
        let stopped =
            request.filter(|request| is_asked(request.signal) || signal.is_some_and(is_request));
        // This process may get the worker's signal only while it stops the others.
        let late = || self.request().filter(|request| is_asked(request.signal));
        if let Some(request) = stopped.or_else(late) {
            return self.stopped(Some(rank), request);
        }
        let passed_on = signal.is_some_and(|signal| self.supervisor.has_passed(signal));
        let report = member.captured.report();
        let stderr = report.as_ref().map(LaunchReport::quote);
        let report = Box::new(report.unwrap_or_default());
        let after = request.map(|request| request.signal);
        LaunchError::Failed { rank, host: host_name(), status, passed_on, after, stderr, report }
    }
}

/// Returns whether the first failure that was noticed follows from another worker's.
fn is_consequence(first: ExitStatus, cause: ExitStatus) -> bool {
    if is_killed(cause) { !is_killed(first) } else { has_lost_another(first) }
}

/// Returns whether a worker has exited with the code of one that lost another.
fn has_lost_another(status: ExitStatus) -> bool {
    status.code() == Some(ErrorKind::Lost.exit_code().into())
}
