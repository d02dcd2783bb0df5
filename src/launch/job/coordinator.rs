//! Decides what happens to a job after an event on one of its nodes. A decision depends only on the
//! events so far.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use super::message::{Event, FinalFailure, Order, Time, Urgency, Verdict};
use crate::report::{Ending, How};
use crate::restart::{Cause, Failure, NoRestart, pause};
use crate::stall::{RankState, Stall};

/// Decides for all nodes.
#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    nodes: usize,
    max_restarts: u32,
    /// How long the job may be silent, if that is limited.
    stall_timeout: Option<Time>,
    progress: Progress,
    /// The number of the last round of looks. It is never used again, so that a late answer does
    /// not count for a later round.
    round: u32,
    has_signal: bool,
    /// The failures of earlier attempts: one for each restart.
    earlier: Vec<Failure>,
    is_over: bool,
}

/// What has happened in the current attempt.
#[derive(Debug, Default)]
struct Progress {
    /// The nodes of whose workers none is left.
    over: BTreeSet<u32>,
    /// The node that failed first.
    first: Option<u32>,
    /// Whether the workers were asked to exit at once.
    is_urgent: bool,
    failure: Option<Failure>,
    endings: Vec<Ending>,
    /// The nodes without an active worker.
    silent: BTreeSet<u32>,
    /// What is known in the current round of looks, if there is one.
    looks: Option<Answers>,
}

/// The answers of one round.
#[derive(Debug, Default)]
struct Answers {
    nodes: BTreeSet<u32>,
    /// The longest time that the attempt has run on a node.
    after: Duration,
    ranks: Vec<RankState>,
}

impl Coordinator {
    pub(crate) fn new(nodes: u32, max_restarts: u32, stall_timeout: Option<Time>) -> Coordinator {
        let nodes = nodes as usize;
        Coordinator { nodes, max_restarts, stall_timeout, ..Coordinator::default() }
    }

    /// Returns the order that follows from an event on a node, if any. Nothing follows once the job
    /// is over.
    pub(crate) fn on(&mut self, node: u32, event: Event) -> Option<Order> {
        if self.is_over {
            return None;
        }
        let order = self.next(node, event);
        self.is_over = matches!(order, Some(Order::Finish(_)));
        order
    }

    fn next(&mut self, node: u32, event: Event) -> Option<Order> {
        match event {
            Event::Failing { urgency } => return self.failing(node, urgency),
            Event::Failed { failure, endings } => {
                self.progress.endings.extend(endings);
                self.has_signal |= failure.no_restart == Some(NoRestart::Signal);
                self.keep_cause(*failure);
            }
            Event::Stopped { endings, has_signal } => {
                self.progress.endings.extend(endings);
                self.has_signal |= has_signal;
                // Nothing has failed yet: the node received a signal before it began the attempt,
                // which cannot succeed without the node.
                if let Some(failure) = self.earlier.pop_if(|_| self.progress.first.is_none()) {
                    return Some(self.fail(failure));
                }
            }
            Event::Done { endings } => {
                self.progress.active(node);
                self.progress.endings.extend(endings);
            }
            Event::Silent => {
                self.progress.silent.insert(node);
                return self.inspect();
            }
            Event::Active => {
                self.progress.active(node);
                return None;
            }
            Event::Inspected { round, after, ranks } => {
                let all = self.seen(node, round, after.0, ranks)?;
                return self.progress.first.is_none().then(|| self.stall(all));
            }
            Event::Signal => {
                self.has_signal = true;
                // Between two attempts, no worker is running that could fail.
                let is_between = self.progress.first.is_none() && self.progress.over.is_empty();
                let failure = self.earlier.pop_if(|_| is_between)?;
                return Some(self.fail(failure));
            }
            Event::Lost { host, reason } => {
                return Some(Order::Finish(Verdict::Lost { node, host, reason }));
            }
        }
        self.progress.over.insert(node);
        // The next attempt starts on all nodes at once, so it waits for the slowest.
        if self.progress.over.len() < self.nodes { None } else { Some(self.decide()) }
    }

    fn failing(&mut self, node: u32, urgency: Urgency) -> Option<Order> {
        let is_urgent = urgency == Urgency::Now && !self.progress.is_urgent;
        let is_new = self.progress.first.is_none() || is_urgent;
        self.progress.is_urgent |= is_urgent;
        self.progress.first.get_or_insert(node);
        is_new.then_some(Order::Stop { again: self.restarts(), urgency, stall: None })
    }

    /// Begins a round of looks if all nodes are silent, nothing has failed and no round has begun.
    fn inspect(&mut self) -> Option<Order> {
        let Progress { silent, first, looks, .. } = &mut self.progress;
        if silent.len() < self.nodes || first.is_some() || looks.is_some() {
            return None;
        }
        *looks = Some(Answers::default());
        self.round = self.round.wrapping_add(1);
        Some(Order::Inspect { round: self.round })
    }

    /// Adds what a node has seen in a round. Returns all of it once every silent node with workers
    /// has answered.
    fn seen(
        &mut self,
        node: u32,
        round: u32,
        after: Duration,
        ranks: Vec<RankState>,
    ) -> Option<Answers> {
        let Progress { silent, over, looks, .. } = &mut self.progress;
        let known = looks.as_mut().filter(|_| round == self.round)?;
        if !known.nodes.insert(node) {
            return None;
        }
        known.after = known.after.max(after);
        known.ranks.extend(ranks);
        let has_answered = |node: &u32| known.nodes.contains(node) || over.contains(node);
        silent.iter().all(has_answered).then(|| looks.take())?
    }

    /// Ends an attempt that has stalled.
    fn stall(&mut self, looks: Answers) -> Order {
        let timeout = self.stall_timeout.unwrap_or(Time(Duration::ZERO));
        let stall = Box::new(Stall::new(timeout.0, looks.ranks));
        let cause = Cause::Stalled { timeout, summary: stall.summary() };
        let (host, after) = (stall.host(), Time(looks.after));
        self.progress.failure = Some(Failure { node: 0, host, after, no_restart: None, cause });
        self.progress.first = Some(0);
        Order::Stop { again: self.restarts(), urgency: Urgency::Failure, stall: Some(stall) }
    }

    /// Decides once no worker is left on any node.
    fn decide(&mut self) -> Order {
        let Some(failure) = self.progress.failure.take() else {
            return Order::Finish(Verdict::Done);
        };
        if failure.no_restart.is_some() || self.has_signal || !self.is_restart_left() {
            return self.fail(failure);
        }
        self.progress = Progress::default();
        // The report quotes the stderr of the last attempts only.
        self.earlier.last_mut().into_iter().for_each(Failure::shorten);
        self.earlier.push(failure.clone());
        let (again, failure) = (self.restarts(), Box::new(failure));
        Order::Start { again, pause: Time(pause(again)), failure }
    }

    fn restarts(&self) -> u32 {
        self.earlier.len() as u32
    }

    fn is_restart_left(&self) -> bool {
        self.restarts() < self.max_restarts
    }

    /// Keeps the failure that is the cause: one from outside, which other nodes may have noticed
    /// earlier, or else the first.
    fn keep_cause(&mut self, new: Failure) {
        let Some(old) = self.progress.failure.take() else {
            self.progress.failure = Some(new);
            return;
        };
        let weight = |failure: &Failure| {
            (failure.is_from_outside(), self.progress.first == Some(failure.node))
        };
        let (mut cause, other) = if weight(&new) > weight(&old) { (new, old) } else { (old, new) };
        if self.progress.first == Some(other.node) {
            cause.no_restart = cause.no_restart.or(other.no_restart);
        }
        // The other is a consequence.
        if let Cause::Worker { rank, status, .. } = other.cause {
            self.progress
                .endings
                .push(Ending { rank, how: How::of(ExitStatus::from_raw(status), false) });
        }
        self.progress.failure = Some(cause);
    }

    fn fail(&mut self, mut failure: Failure) -> Order {
        if self.has_signal {
            failure.no_restart = Some(NoRestart::Signal);
        }
        let not_restarted = failure.no_restart.filter(|_| self.is_restart_left());
        let endings = std::mem::take(&mut self.progress.endings);
        let earlier = std::mem::take(&mut self.earlier);
        let failed = FinalFailure { failure, endings, earlier, not_restarted };
        Order::Finish(Verdict::Failed(Box::new(failed)))
    }
}

impl Progress {
    /// Notes that a worker of this node has been active. What was seen meanwhile does not count.
    fn active(&mut self, node: u32) {
        self.silent.remove(&node);
        self.looks = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_by(node: u32, no_restart: Option<NoRestart>, cause: Cause) -> Event {
        let (host, after) = (format!("node{node}"), Time(Duration::from_secs(3)));
        let failure = Box::new(Failure { node, host, after, no_restart, cause });
        Event::Failed { failure, endings: Vec::new() }
    }

    fn failed(node: u32, no_restart: Option<NoRestart>) -> Event {
        failed_by(node, no_restart, Cause::Other { text: "it failed".to_owned() })
    }

    fn failing() -> Event {
        Event::Failing { urgency: Urgency::Failure }
    }

    fn stopped(has_signal: bool) -> Event {
        Event::Stopped { endings: Vec::new(), has_signal }
    }

    fn done() -> Event {
        Event::Done { endings: Vec::new() }
    }

    /// Returns the order that follows from a failure of this node, after the workers of both nodes
    /// have exited.
    fn fail(job: &mut Coordinator, node: u32, no_restart: Option<NoRestart>) -> Option<Order> {
        assert!(matches!(job.on(node, failing()), Some(Order::Stop { .. })));
        assert_eq!(job.on(1 - node, stopped(false)), None);
        job.on(node, failed(node, no_restart))
    }

    /// Returns the failure with which the job ends.
    #[track_caller]
    fn last(order: Option<Order>) -> FinalFailure {
        let Some(Order::Finish(Verdict::Failed(last))) = order else { panic!("{order:?}") };
        *last
    }

    #[test]
    fn a_job_is_over_once_all_nodes_have_finished() {
        let mut job = Coordinator::new(2, 1, None);
        assert_eq!(job.on(1, done()), None);
        assert_eq!(job.on(0, done()), Some(Order::Finish(Verdict::Done)));
        assert_eq!(job.on(0, failing()), None);
    }

    #[test]
    fn a_failure_stops_all_nodes_and_starts_them_again_until_no_restart_is_left() {
        let mut job = Coordinator::new(2, 2, None);
        for again in 1..=2 {
            let order = fail(&mut job, again % 2, None);
            assert!(matches!(order, Some(Order::Start { again: next, .. }) if next == again));
        }
        let last = last(fail(&mut job, 0, None));
        assert_eq!((last.failure.node, last.earlier.len(), last.not_restarted), (0, 2, None));
    }

    #[test]
    fn a_node_that_had_finished_starts_again_with_the_others() {
        let mut job = Coordinator::new(2, 1, None);
        assert_eq!(job.on(0, done()), None);
        let stop = Order::Stop { again: 0, urgency: Urgency::Failure, stall: None };
        assert_eq!(job.on(1, failing()), Some(stop));
        assert!(matches!(job.on(1, failed(1, None)), Some(Order::Start { again: 1, .. })));
        assert_eq!(job.on(0, done()), None);
        assert_eq!(job.on(1, done()), Some(Order::Finish(Verdict::Done)));
    }

    #[test]
    fn of_two_failures_at_once_the_first_is_the_jobs_unless_the_other_was_killed() {
        let cause = Cause::Worker { rank: 1, status: 9, stderr: None };
        let killed = failed_by(0, None, cause);
        for (event, cause) in [(failed(0, None), 1), (killed, 0)] {
            for order in [[0, 1], [1, 0]] {
                let mut job = Coordinator::new(2, 0, None);
                assert!(job.on(1, failing()).is_some());
                assert_eq!(job.on(0, failing()), None);
                let event = |node| if node == 0 { event.clone() } else { failed(1, None) };
                assert_eq!(job.on(order[0], event(order[0])), None);
                assert_eq!(last(job.on(order[1], event(order[1]))).failure.node, cause);
            }
        }
    }

    #[test]
    fn nothing_starts_again_after_a_final_failure_or_a_signal_on_any_node() {
        let usage = Some(NoRestart::Code(2));
        assert_eq!(last(fail(&mut Coordinator::new(2, 5, None), 0, usage)).not_restarted, usage);
        assert_eq!(last(fail(&mut Coordinator::new(2, 0, None), 0, usage)).not_restarted, None);
        let mut job = Coordinator::new(2, 5, None);
        job.on(0, failing());
        job.on(1, stopped(true));
        assert_eq!(last(job.on(0, failed(0, None))).failure.no_restart, Some(NoRestart::Signal));
    }

    #[test]
    fn a_signal_between_two_attempts_ends_the_job_with_the_failure_before() {
        let mut job = Coordinator::new(2, 5, None);
        fail(&mut job, 1, None);
        let end = last(job.on(0, Event::Signal));
        assert_eq!((end.failure.node, end.earlier.len()), (1, 0));
        assert_eq!(end.not_restarted, Some(NoRestart::Signal));
        // A signal that arrives while the workers are being stopped is remembered.
        let mut job = Coordinator::new(2, 5, None);
        job.on(0, failing());
        assert_eq!(job.on(1, stopped(false)), None);
        assert_eq!(job.on(1, Event::Signal), None);
        last(job.on(0, failed(0, None)));
    }

    #[test]
    fn a_node_that_got_a_signal_before_an_attempt_ends_the_job_although_others_have_finished_it() {
        for nodes in [2, 3] {
            let mut job = Coordinator::new(nodes, 5, None);
            job.on(1, failing());
            for node in (0..nodes).filter(|node| *node != 1) {
                job.on(node, stopped(false));
            }
            assert!(matches!(job.on(1, failed(1, None)), Some(Order::Start { .. })));
            assert_eq!(job.on(0, done()), None);
            assert_eq!(job.on(1, Event::Signal), None);
            let end = last(job.on(1, stopped(true)));
            assert_eq!((end.failure.node, end.failure.no_restart), (1, Some(NoRestart::Signal)));
        }
    }

    #[test]
    fn a_signal_on_a_node_that_has_finished_forbids_restarts() {
        let mut job = Coordinator::new(2, 5, None);
        job.on(0, done());
        assert_eq!(job.on(0, Event::Signal), None);
        job.on(1, failing());
        last(job.on(1, failed(1, None)));
        // The signal may arrive after the other node's failure.
        let mut job = Coordinator::new(2, 5, None);
        job.on(0, done());
        job.on(1, failing());
        assert!(matches!(job.on(1, failed(1, None)), Some(Order::Start { .. })));
        last(job.on(0, Event::Signal));
    }

    #[test]
    fn of_the_stderr_of_attempts_before_the_last_two_one_line_is_kept() {
        let mut job = Coordinator::new(1, 2, None);
        let mut fail = || {
            let stderr = Some(["a", "b"].map(str::to_owned).into());
            job.on(0, failed_by(0, None, Cause::Worker { rank: 1, status: 0, stderr }))
        };
        assert!(fail().is_some() && fail().is_some());
        let kept = last(fail()).earlier.into_iter().map(|failure| match failure.cause {
            Cause::Worker { stderr, .. } => stderr.map_or(0, |lines| lines.len()),
            Cause::Other { .. } | Cause::Stalled { .. } => 0,
        });
        assert_eq!(kept.collect::<Vec<_>>(), [1, 2]);
    }

    fn seen(round: u32, rank: u32) -> Event {
        let ranks = vec![RankState::waiting(rank)];
        Event::Inspected { round, after: Time(Duration::from_secs(9)), ranks }
    }

    #[test]
    fn a_job_has_stalled_once_all_nodes_are_silent_and_have_looked_at_their_workers() {
        let mut job = Coordinator::new(2, 1, Some(Time(Duration::from_secs(5))));
        assert_eq!(job.on(1, Event::Silent), None);
        assert_eq!(job.on(0, Event::Silent), Some(Order::Inspect { round: 1 }));
        assert_eq!(job.on(0, seen(1, 0)), None);
        // One was active before it could look: all is as before, until it is silent again.
        assert_eq!(job.on(1, Event::Active), None);
        assert_eq!(job.on(1, Event::Silent), Some(Order::Inspect { round: 2 }));
        assert_eq!(job.on(0, seen(1, 0)), None);
        assert_eq!(job.on(1, seen(2, 2)), None);
        let Some(Order::Stop { again: 0, stall: Some(_), .. }) = job.on(0, seen(2, 0)) else {
            panic!("not stopped");
        };
        assert_eq!(job.on(0, stopped(false)), None);
        let order = job.on(1, stopped(false));
        assert!(matches!(order, Some(Order::Start { again: 1, .. })), "{order:?}");
        // In the next attempt, all begin anew.
        assert_eq!(job.on(0, Event::Silent), None);
        assert_eq!(job.on(1, Event::Silent), Some(Order::Inspect { round: 3 }));
        assert_eq!(job.on(0, seen(3, 0)), None);
        assert!(job.on(1, seen(3, 2)).is_some());
        job.on(0, stopped(false));
        let failure = last(job.on(1, stopped(false))).failure;
        assert!(matches!(failure.cause, Cause::Stalled { .. }), "{failure:?}");
        assert_eq!(failure.after, Time(Duration::from_secs(9)));
    }

    #[test]
    fn a_node_whose_workers_have_finished_is_silent_only_after_its_time() {
        let mut job = Coordinator::new(2, 0, Some(Time(Duration::from_secs(5))));
        assert_eq!(job.on(1, Event::Silent), None);
        assert_eq!(job.on(0, done()), None);
        assert_eq!(job.on(0, Event::Silent), Some(Order::Inspect { round: 1 }));
        assert!(matches!(job.on(1, seen(1, 2)), Some(Order::Stop { stall: Some(_), .. })));
        last(job.on(1, stopped(false)));
    }

    #[test]
    fn a_failure_during_the_looks_is_the_jobs() {
        let mut job = Coordinator::new(2, 0, Some(Time(Duration::from_secs(5))));
        job.on(0, Event::Silent);
        job.on(1, Event::Silent);
        assert!(matches!(job.on(1, failing()), Some(Order::Stop { stall: None, .. })));
        assert_eq!((job.on(0, seen(1, 0)), job.on(1, seen(1, 2))), (None, None));
        job.on(0, stopped(false));
        assert_eq!(last(job.on(1, failed(1, None))).failure.node, 1);
    }

    #[test]
    fn a_lost_node_ends_the_job_with_its_name() {
        let (host, reason) = ("nodeB".to_owned(), "its connection closed".to_owned());
        let lost = Event::Lost { host: host.clone(), reason: reason.clone() };
        let end = Order::Finish(Verdict::Lost { node: 1, host, reason });
        assert_eq!(Coordinator::new(3, 5, None).on(1, lost), Some(end));
    }
}
