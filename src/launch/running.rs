//! The workers that run, until all have exited.

mod stopping;

use std::fmt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Launch;
use crate::error::LaunchError;
use crate::job::{Event, Link, Time};
use crate::log_file::Folder;
use crate::output::{Captured, Faults, Streams};
use crate::report::{Ending, How};
use crate::stall::{Watch, heartbeat_file};
use crate::start_error::StartError;
use crate::stop::{Grace, Request};
use crate::supervisor::{Signals, Supervisor};

/// A worker, or the scheduler that some programs need besides rank 0's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Role {
    /// The rank that it belongs to.
    pub rank: u32,
    pub is_scheduler: bool,
}

impl Role {
    /// Returns the folder for the output.
    pub(super) fn folder(self) -> String {
        if self.is_scheduler { self.to_string() } else { format!("rank.{self}") }
    }

    /// Returns the rank of a worker, or `None` for the scheduler.
    pub(super) fn worker(self) -> Option<u32> {
        (!self.is_scheduler).then_some(self.rank)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_scheduler { f.write_str("scheduler") } else { self.rank.fmt(f) }
    }
}

/// A process that was started and has not been waited for.
#[derive(Debug)]
pub(super) struct Member {
    pub role: Role,
    pub child: Child,
    pub captured: Captured,
    /// Whether it was dying when the first worker failed.
    pub is_dying: bool,
}

/// Workers that have not exited. Dropping this kills them.
#[derive(Debug)]
pub(super) struct Running {
    members: Vec<Member>,
    /// The output of workers that have exited, whose last lines may still be on their way.
    ended: Vec<Captured>,
    supervisor: Supervisor,
    signals: Arc<Signals>,
    link: Arc<Link>,
    /// The number of the attempt.
    again: u32,
    streams: Streams,
    /// Notices that the workers are silent, if that is limited.
    watch: Option<Watch>,
    /// The folder of the workers' output, if it goes to files.
    logs: Option<Folder>,
    /// What kept output from being written, unless an error has reported it.
    pub(super) faults: Faults,
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
    /// A worker that was killed from outside or failed before it was asked to exit, which other
    /// workers may have noticed before this process did.
    cause: Option<(Member, ExitStatus)>,
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
    /// `logs`: the folder of the attempt's output, if it goes to files.
    pub(super) fn new(
        launch: &Launch,
        logs: Option<Folder>,
        signals: &Arc<Signals>,
        link: &Arc<Link>,
        again: u32,
    ) -> Result<Running, LaunchError> {
        let faults = Faults::new(signals.waker());
        // Before the first worker, because the limit of threads may be reached later.
        let streams = launch.output.open(logs.clone(), &faults)?;
        // One that came too late for the last attempt.
        link.mailbox.take_inspection();
        Ok(Running {
            members: Vec::new(),
            ended: Vec::new(),
            supervisor: Supervisor::new(launch.subreaper, Arc::clone(signals)),
            signals: Arc::clone(signals),
            link: Arc::clone(link),
            again,
            streams,
            watch: launch.stall_timeout.map(Watch::new),
            logs,
            faults,
            grace: launch.grace,
            stuck: None,
            is_named: false,
            is_over: false,
            is_cut: false,
            endings: Vec::new(),
            started: Instant::now(),
            failed: None,
            cause: None,
        })
    }

    /// Starts a worker, or the scheduler of a rank.
    pub(super) fn start(&mut self, role: Role, command: &mut Command) -> Result<(), LaunchError> {
        self.streams.direct(role, command)?;
        self.supervisor.prepare(command);
        let watched = match self.watch.as_mut().zip(role.worker()) {
            Some((watch, rank)) => Some((watch, rank, heartbeat_file(command)?)),
            None => None,
        };
        let child = command.spawn().map_err(|error| StartError::new(command, error));
        let mut child = child.map_err(|error| LaunchError::Start { rank: role.rank, error })?;
        self.supervisor.started(&child);
        let captured = self.streams.capture(role, &mut child);
        let (captured, outcome) = match captured {
            Ok(captured) => (captured, Ok(())),
            Err(error) => (Captured::Nothing, Err(LaunchError::Thread(error))),
        };
        if let Some((watch, rank, heartbeat)) = watched {
            watch.add(rank, child.id(), captured.clone(), heartbeat);
        }
        self.members.push(Member { role, child, captured, is_dying: false });
        outcome
    }

    /// Takes how workers ended, except the first one that failed.
    pub(super) fn endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    /// Returns the time from the start to the first failure, or until now if there is none.
    pub(super) fn ran_for(&self) -> Duration {
        self.failed.unwrap_or_else(Instant::now).saturating_duration_since(self.started)
    }

    /// Waits for all workers of an attempt, and stops the others when one fails here or on another
    /// node.
    pub(super) fn wait(&mut self) -> Result<Exit, LaunchError> {
        loop {
            if let Some(fault) = self.faults.take_if(|fault| !fault.is_by_reader()) {
                self.failing(None);
                self.end(None)?;
                return Err(fault);
            }
            if let Some((member, status)) = self.reap()? {
                return self.fail(member, status);
            }
            self.watch_for_silence();
            if let Some(urgency) = self.link.mailbox.stop(self.again) {
                // Before anything is stopped.
                if let Some(stall) = self.link.mailbox.take_stall() {
                    stall.publish(self.logs.as_ref());
                }
                return self.stop(urgency);
            }
            if self.members.iter().all(|member| member.role.worker().is_none()) {
                return self.finish();
            }
            self.tell_stops();
            let Some(request) = self.request() else {
                self.supervisor.wait(self.watch.as_ref().map(Watch::pause));
                continue;
            };
            let deadline = request.deadline(self.grace.after_signal);
            if Instant::now() >= deadline {
                return self.overdue(request);
            }
            let pause = self.name_after(request, deadline);
            self.supervisor.wait(Some(pause));
        }
    }

    /// Tells the coordinator whether the workers are silent, and what they are doing if it asks.
    /// Workers that were asked to exit may take their time.
    fn watch_for_silence(&mut self) {
        if self.request().is_some() {
            return;
        }
        let after = self.ran_for();
        let Some(watch) = &mut self.watch else { return };
        match watch.turn() {
            Some(true) => self.link.send(Event::Silent),
            Some(false) => self.link.send(Event::Active),
            None => {}
        }
        let Some(round) = self.link.mailbox.take_inspection() else { return };
        let ranks = watch.examine(&|command| self.supervisor.prepare(command));
        self.link.send(match ranks {
            Some(ranks) => Event::Inspected { round, after: Time(after), ranks },
            None => Event::Active,
        });
    }

    /// Ends an attempt whose workers have all finished.
    fn finish(&mut self) -> Result<Exit, LaunchError> {
        // The scheduler exits by itself once the last worker of all nodes has disconnected.
        let deadline = Instant::now() + self.grace.after_failure;
        while !self.members.is_empty() && Instant::now() < self.no_later(deadline) {
            self.supervisor.wait(Some(deadline.saturating_duration_since(Instant::now())));
            // If the scheduler fails, the workers that needed it report the failure.
            self.reap()?;
        }
        self.end(None)?;
        if self.is_cut {
            // Incomplete output is not a success.
            self.signals.end_process();
        }
        match self.faults.take_if(|_| true) {
            Some(fault) => Err(fault),
            None => self.streams.try_room().map(|()| Exit::Done),
        }
    }

    /// Removes the members that have exited, up to the first worker that failed, and returns that
    /// worker.
    fn reap(&mut self) -> Result<Option<(Member, ExitStatus)>, LaunchError> {
        let mut index = 0;
        while let Some(member) = self.members.get_mut(index) {
            let rank = member.role.rank;
            let status = self.supervisor.try_wait(&mut member.child);
            let Some(status) = status.map_err(|error| LaunchError::Wait { rank, error })? else {
                index += 1;
                continue;
            };
            let member = self.members.remove(index);
            if member.role.worker().is_some() && !status.success() {
                return Ok(Some((member, status)));
            }
            self.keep(member, How::of(status, false));
        }
        Ok(None)
    }

    /// Records a worker that has exited.
    fn keep(&mut self, member: Member, how: How) {
        let rank = member.role.worker();
        self.endings.extend(rank.map(|rank| Ending { rank, how }));
        if let Some((watch, rank)) = self.watch.as_mut().zip(rank) {
            watch.remove(rank);
        }
        self.ended.push(member.captured);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}
