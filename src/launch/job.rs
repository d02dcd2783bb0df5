//! Starts the workers, and starts them again if they fail.
//!
//! A [`Job`] is the state machine of one node. What happens on the node goes to the coordinator,
//! which decides for all nodes, and what the node does next comes back from it as an order. The
//! reasons for and against a restart are in `restart.rs`.

mod coordinator;
mod link;
mod message;
mod nodes;
mod workers;

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::LaunchError;
use crate::log_file::Folder;
use crate::report::LaunchReport;
use crate::restart::{Failure, NoRestart, describe};
use crate::running::{Exit, Running};
use crate::stop::{Late, Request};
use crate::supervisor::Signals;
use crate::target_file::HeldFile;
use crate::{Launch, tell};
use mpienv_core::seam::Attempt;
use mpienv_core::{ClusterInfo, host_name};

pub(super) use self::link::Link;
pub use self::message::NodeOptions;
pub use self::nodes::{ARRIVAL, SAME_OPTIONS, nodes_differ, tell_if_on_one_host};

pub(super) use self::message::{Event, FinalFailure, Time, Urgency};

use self::coordinator::Coordinator;
use self::link::Route;
use self::message::{Introduction, Order, Verdict};
use self::nodes::meet;

/// The command of a worker, or why it has none.
pub(super) type CommandOf<'a> = dyn FnMut(&ClusterInfo) -> Result<Command, String> + 'a;

/// The attempts of a job on this node.
pub(super) struct Job<'a> {
    launch: Launch,
    command: &'a mut CommandOf<'a>,
    // Dropped before the link, which waits for the other nodes: a signal may end that.
    signals: Arc<Signals>,
    link: Arc<Link>,
    /// How often the platform had restarted the job.
    base: u32,
    /// Why the last attempt failed, if it failed on this node.
    error: Option<LaunchError>,
    /// The folder of the output of this attempt, if it goes to files.
    logs: Option<Folder>,
    /// That of the first attempt, where another launch would start too: its locks remain until this
    /// launch ends.
    first_logs: Option<Folder>,
    /// When the last worker of this attempt finished, if none failed.
    done: Option<Instant>,
    /// The files that the workers of this attempt read.
    files: Vec<HeldFile>,
}

/// What this node does next.
enum State {
    /// It runs its workers in the attempt of this number.
    Attempt(u32),
    /// It waits for an order. None of its workers is left.
    Idle,
    /// It waits for the time at which the attempt of this number starts.
    Pause { again: u32, until: Instant },
    /// It returns how the job ended.
    Over(Verdict),
}

impl<'a> Job<'a> {
    /// Connects this node with the others.
    pub(super) fn new(
        launch: Launch,
        command: &'a mut CommandOf<'a>,
    ) -> Result<Job<'a>, LaunchError> {
        let (link, base) = launch.link()?;
        // Not earlier: while the nodes wait for each other, a signal ends this process.
        let signals = Arc::new(Signals::new().map_err(LaunchError::Signals)?);
        link.mailbox.wake(signals.waker());
        Ok(Job {
            launch,
            command,
            link: Arc::new(link),
            signals,
            base,
            error: None,
            logs: None,
            first_logs: None,
            done: None,
            files: Vec::new(),
        })
    }

    /// Runs attempts until one succeeds or none is left.
    pub(super) fn run(mut self) -> Result<(), LaunchError> {
        let outcome = self.run_states();
        if self.launch.is_whole_process && outcome.is_err() {
            self.signals.outlive();
        }
        outcome
    }

    fn run_states(&mut self) -> Result<(), LaunchError> {
        let mut state = State::Attempt(0);
        loop {
            state = match state {
                State::Attempt(again) => {
                    self.attempt(Attempt { base: self.base, again });
                    State::Idle
                }
                State::Idle => self.order()?,
                State::Pause { again, until } => self.pause(again, until),
                State::Over(verdict) => return self.conclude(verdict),
            };
        }
    }

    /// Runs one attempt on this node, from its start until none of its workers is left.
    fn attempt(&mut self, attempt: Attempt) {
        if self.link.mailbox.stop(attempt.again).is_some() {
            // Another node has failed already.
            self.link.send(Event::Stopped { endings: Vec::new(), has_signal: false });
            return;
        }
        (self.error, self.done) = (None, None);
        let restarts = self.launch.max_restarts > 0;
        let folder = restarts.then(|| format!("attempt_{}", attempt.number()));
        self.logs = self.launch.output.folder(folder);
        if self.first_logs.is_none() {
            self.first_logs.clone_from(&self.logs);
        }
        let running =
            Running::new(&self.launch, self.logs.clone(), &self.signals, &self.link, attempt.again);
        let mut running = match running {
            Ok(running) => running,
            Err(error) => return self.fail(None, error),
        };
        if attempt.again > 0 && self.signals.has_asked() {
            // The signal arrived after the pause.
            self.link.send(Event::Signal);
            self.link.send(Event::Stopped { endings: Vec::new(), has_signal: true });
            return;
        }
        let started = self.start(&mut running, attempt).inspect_err(|_| running.kill());
        let outcome = started.and_then(|()| running.wait());
        let has_signal = self.signals.has_asked();
        match outcome {
            Ok(Exit::Done) => {
                self.done = Some(Instant::now());
                self.link.send(Event::Done { endings: running.endings() });
                if has_signal {
                    // The workers of other nodes continue, but are not started again.
                    self.link.send(Event::Signal);
                }
            }
            Ok(Exit::Stopped) => {
                self.link.send(Event::Stopped { endings: running.endings(), has_signal });
            }
            Err(error) => self.fail(Some(&mut running), error),
        }
    }

    /// Reports a failure on this node, of whose workers none is left.
    fn fail(&mut self, running: Option<&mut Running>, error: LaunchError) {
        let (cause, mut no_restart) = describe(&error);
        let (mut after, mut endings) = (Time(Duration::ZERO), Vec::new());
        if let Some(running) = running {
            if running.faults.is_left() {
                no_restart = no_restart.or(Some(NoRestart::Output));
            }
            if self.signals.has_asked() {
                no_restart = Some(NoRestart::Signal);
            }
            (after, endings) = (Time(running.ran_for()), running.endings());
        }
        let failure = Failure { node: self.link.node, host: own_host(), after, no_restart, cause };
        self.link.send(Event::Failing { urgency: Urgency::Failure });
        self.link.send(Event::Failed { failure: Box::new(failure), endings });
        self.error = Some(error);
    }

    /// Waits for the next order. Until one arrives, reports each signal that ends the job.
    ///
    /// # Errors
    /// A repeated request to end the job ends this launch, whatever the other nodes do. They notice
    /// that it is gone.
    fn order(&mut self) -> Result<State, LaunchError> {
        loop {
            if let Some(stall) = self.link.mailbox.take_stall() {
                stall.publish(self.logs.as_ref());
            }
            if let Some(order) = self.link.mailbox.take() {
                return Ok(self.follow(order));
            }
            // Until this node, whose workers have all finished, counts as silent.
            let left = self.launch.stall_timeout.zip(self.done);
            let left = left.map(|(timeout, done)| timeout.saturating_sub(done.elapsed()));
            if left == Some(Duration::ZERO) {
                self.done = None;
                self.link.send(Event::Silent);
            }
            match self.signals.wait_for_end(left) {
                Some(Late::First) => self.link.send(Event::Signal),
                Some(Late::Repeated(Request { signal, .. })) => {
                    return Err(LaunchError::stopped(None, None, signal, None));
                }
                None => {}
            }
        }
    }

    fn follow(&self, order: Order) -> State {
        match order {
            Order::Start { again, pause, failure } => {
                if self.link.reports_for_all() {
                    let next = Attempt { base: self.base, again }.number();
                    let (last, pause) = (next.saturating_sub(1), pause.0.as_secs_f64());
                    let failed = failure.summary();
                    tell(&format!(
                        "attempt {last} failed: {failed}; attempt {next} starts in {pause} s"
                    ));
                }
                State::Pause { again, until: Instant::now() + pause.0 }
            }
            // No worker is left to be stopped or looked at.
            Order::Stop { .. } | Order::Inspect { .. } => State::Idle,
            Order::Finish(verdict) => State::Over(verdict),
        }
    }

    /// Waits until the pause is over, an order arrives, or a signal ends the job.
    fn pause(&self, again: u32, until: Instant) -> State {
        loop {
            if let Some(order) = self.link.mailbox.take() {
                return self.follow(order);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return State::Attempt(again);
            }
            if self.signals.wait_for_end(Some(left)).is_some() {
                self.link.send(Event::Signal);
                // Other nodes may have begun the next attempt; this one will not.
                self.link.send(Event::Stopped { endings: Vec::new(), has_signal: true });
                return State::Idle;
            }
        }
    }

    /// Returns this node's result of the job.
    fn conclude(&mut self, verdict: Verdict) -> Result<(), LaunchError> {
        let failed = match verdict {
            Verdict::Done => return Ok(()),
            Verdict::Lost { node, host, reason } => {
                return Err(LaunchError::NodeLost { node, host, reason });
            }
            Verdict::Failed(failed) => failed,
        };
        let report = LaunchReport {
            max_restarts: self.launch.max_restarts,
            ..LaunchReport::of(&failed, self.base, self.link.reports_for_all())
        };
        let error = self.error.take().filter(|error| failed.failure.is(self.link.node, error));
        Err(error.unwrap_or_else(|| failed.failure.into()).with_report(report))
    }
}

impl Launch {
    /// Returns the link to the other nodes, and how often the platform had restarted the job.
    fn link(&self) -> Result<(Link, u32), LaunchError> {
        let (base, options) = (self.base(), self.node_options());
        let others = self.node.as_ref().filter(|info| options.is_joint() && info.world_size() > 1);
        if let Some(info) = others {
            return meet(info, &Introduction { base, options, host: own_host() }, self.arrival);
        }
        let node = self.node.as_ref().map_or(0, |info| info.rank().index());
        let coordinator = Coordinator::new(1, options.max_restarts, options.stall_timeout);
        let route = Route::Alone(Box::new(Mutex::new(coordinator)));
        Ok((Link { node, mailbox: Arc::default(), route }, base))
    }

    /// Returns what must be the same on every node.
    pub(super) fn node_options(&self) -> NodeOptions {
        NodeOptions {
            workers: u32::try_from(self.workers.len()).unwrap_or(u32::MAX),
            max_restarts: self.max_restarts,
            node_timeout: Time(self.node_timeout),
            stall_timeout: self.stall_timeout.map(Time),
        }
    }
}

/// Returns this host's name for messages.
pub(super) fn own_host() -> String {
    host_name().unwrap_or_else(|| "an unknown host".to_owned())
}
