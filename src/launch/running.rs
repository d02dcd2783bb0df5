//! The workers that run, until all have ended.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::host_name::host_name;
use crate::launch::control::Control;
use crate::launch::error::LaunchError;
use crate::launch::member::{Member, Who};
use crate::launch::output::{Captured, Output};

/// Workers that have not ended; whoever drops them ends them.
#[derive(Debug)]
pub(super) struct Running {
    members: Vec<Member>,
    /// Of those that have ended the last lines may still be on the way.
    ended: Vec<Captured>,
    control: Control,
    output: Output,
    grace: Duration,
    /// Whether nobody is left.
    is_over: bool,
}

impl Running {
    pub(super) fn new(output: Output, grace: Duration, adopts: bool) -> Result<Running, LaunchError> {
        let control = Control::new(adopts).map_err(LaunchError::Signals)?;
        Ok(Running { members: Vec::new(), ended: Vec::new(), control, output, grace, is_over: false })
    }

    /// Starts a worker, or the scheduler of the rank.
    pub(super) fn start(&mut self, who: Who, rank: u32, command: &mut Command) -> Result<(), LaunchError> {
        self.output.direct(who, command)?;
        self.control.prepare(command);
        let mut child = command.spawn().map_err(|error| LaunchError::Start { rank, error })?;
        self.control.started(&child);
        let captured = self.output.capture(who, &mut child);
        self.members.push(Member { who, child, captured });
        Ok(())
    }

    /// Waits for all workers, and ends the others when one fails.
    pub(super) fn wait(mut self) -> Result<(), LaunchError> {
        loop {
            if let Some((member, status)) = self.reap()? {
                self.end()?;
                return Err(self.failure(&member, status));
            }
            if self.members.iter().all(|member| member.who == Who::Scheduler) {
                break;
            }
            self.control.wait(None);
        }
        // The scheduler ends by itself when the last worker of all nodes has left it.
        let deadline = Instant::now() + self.grace;
        while !self.members.is_empty() && Instant::now() < deadline {
            self.control.wait(Some(deadline.saturating_duration_since(Instant::now())));
            // Its own failure is told by the workers that needed it.
            self.reap()?;
        }
        self.end()
    }

    /// Moves the members that have ended, up to the first worker that failed, and gives that one.
    fn reap(&mut self) -> Result<Option<(Member, ExitStatus)>, LaunchError> {
        let mut index = 0;
        while let Some(member) = self.members.get_mut(index) {
            let rank = member.who.rank().unwrap_or(0);
            let Some(status) = member.child.try_wait().map_err(|error| LaunchError::Wait { rank, error })? else {
                index += 1;
                continue;
            };
            let member = self.members.remove(index);
            self.control.ended(&member.child);
            if member.who != Who::Scheduler && !status.success() {
                return Ok(Some((member, status)));
            }
            self.ended.push(member.captured);
        }
        Ok(None)
    }

    /// Ends everybody: asks, waits for the grace, kills.
    fn end(&mut self) -> Result<(), LaunchError> {
        let deadline = Instant::now() + self.grace;
        loop {
            // A second failure is the first one's consequence.
            while let Some((member, _)) = self.reap()? {
                self.ended.push(member.captured);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.is_left() {
                break;
            }
            if left.is_zero() {
                self.kill();
                break;
            }
            // Again and again: who loses its parents by it is asked, too.
            self.control.terminate();
            self.control.wait(Some(left));
        }
        self.is_over = true;
        // Nobody is left to pass signals on to: whoever waits for a slow reader ends by them.
        self.control.stop_listening();
        self.ended.iter().for_each(Captured::finish);
        Ok(())
    }

    fn is_left(&mut self) -> bool {
        !self.members.is_empty() || self.control.has_remains()
    }

    fn kill(&mut self) {
        self.control.kill(&mut self.members.iter_mut().map(|member| &mut member.child));
        for mut member in self.members.drain(..) {
            if member.child.wait().is_ok() {
                self.control.ended(&member.child);
            }
            self.ended.push(member.captured);
        }
    }

    /// The error that tells of a worker's end.
    fn failure(&self, member: &Member, status: ExitStatus) -> LaunchError {
        member.captured.finish();
        #[cfg(unix)]
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        #[cfg(not(unix))]
        let signal: Option<i32> = None;
        let passed_on = signal.is_some_and(|signal| self.control.has_passed(signal));
        let rank = member.who.rank().unwrap_or(0);
        LaunchError::Failed { rank, host: host_name(), status, passed_on, stderr: member.captured.tail() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}
