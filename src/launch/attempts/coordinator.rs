//! Decides what happens to a job after an event on one of its nodes. A decision depends only on the
//! events so far.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::launch::ending::{Cause, Ending, Failure, Final, How};
use crate::launch::wire;

/// The pause before the first restart. It doubles with each restart.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How much time the workers of other nodes have to exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Haste {
    /// As after a signal: they may save their state.
    Signal,
    /// As after a failure.
    Failure,
    /// None, because a second signal has asked to end the job.
    Now,
}

/// What happened on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// Something has failed, and the node's workers are being stopped.
    Failing { haste: Haste },
    /// Something has failed on the node, and none of its workers is left.
    Failed { failure: Box<Failure>, endings: Vec<Ending> },
    /// Another node has failed, and none of this node's workers is left. `is_final`: the node
    /// received a signal to end.
    Stopped { endings: Vec<Ending>, is_final: bool },
    /// All workers of the node have finished.
    Done { endings: Vec<Ending> },
    /// A signal arrived while no worker of the node was running.
    Signal,
    /// The process that launches the node's workers is gone. No process says so of itself.
    #[serde(skip)]
    #[cfg_attr(not(feature = "rendezvous"), expect(dead_code, reason = "there is one node"))]
    Lost { host: String, reason: String },
}

/// What all nodes do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Stop the workers of this attempt.
    Stop { again: u32, haste: Haste },
    /// Start this attempt after a pause.
    Start {
        again: u32,
        #[serde(with = "wire::milliseconds")]
        pause: Duration,
        failure: Box<Failure>,
    },
    /// The job is over.
    Finish(Verdict),
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Done,
    Failed(Box<Failed>),
    Lost {
        node: u32,
        #[serde(deserialize_with = "wire::text")]
        host: String,
        #[serde(deserialize_with = "wire::text")]
        reason: String,
    },
}

/// The last failure, and the history that led to it, which only the first node reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub failure: Failure,
    #[serde(skip)]
    pub endings: Vec<Ending>,
    /// The failures of earlier attempts.
    #[serde(skip)]
    pub earlier: Vec<Failure>,
    #[serde(skip)]
    pub most: u32,
}

/// The progress of a node in the current attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Over,
}

/// Decides for all nodes.
#[derive(Debug)]
pub(crate) struct Coordinator {
    nodes: Vec<Stage>,
    /// The maximum number of restarts.
    most: u32,
    again: u32,
    /// The node that failed first in this attempt.
    first: Option<u32>,
    /// Whether the workers were asked to exit at once.
    is_urgent: bool,
    failure: Option<Failure>,
    endings: Vec<Ending>,
    has_signal: bool,
    earlier: Vec<Failure>,
    is_over: bool,
}

impl Coordinator {
    pub(crate) fn new(nodes: u32, most: u32) -> Coordinator {
        Coordinator {
            nodes: (0..nodes).map(|_| Stage::Running).collect(),
            most,
            again: 0,
            first: None,
            is_urgent: false,
            failure: None,
            endings: Vec::new(),
            has_signal: false,
            earlier: Vec::new(),
            is_over: false,
        }
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
            Event::Failing { haste } => {
                let is_urgent = haste == Haste::Now && !self.is_urgent;
                let is_new = self.first.is_none() || is_urgent;
                self.is_urgent |= is_urgent;
                self.first.get_or_insert(node);
                return is_new.then_some(Order::Stop { again: self.again, haste });
            }
            Event::Failed { failure, endings } => {
                self.endings.extend(endings);
                self.has_signal |= matches!(failure.is_final, Some(Final::Signal));
                self.weigh(*failure);
            }
            Event::Stopped { endings, is_final } => {
                self.endings.extend(endings);
                self.has_signal |= is_final;
                // Nothing has failed yet: the node received a signal before it began the attempt,
                // which cannot succeed without the node.
                if let Some(failure) = self.earlier.pop_if(|_| self.first.is_none()) {
                    return Some(self.fail(failure));
                }
            }
            Event::Done { endings } => self.endings.extend(endings),
            Event::Signal => {
                self.has_signal = true;
                if !self.is_between() {
                    return None;
                }
                // No worker is running that could fail.
                return self.earlier.pop().map(|failure| self.fail(failure));
            }
            Event::Lost { host, reason } => {
                return Some(Order::Finish(Verdict::Lost { node, host, reason }));
            }
        }
        if let Some(stage) = usize::try_from(node).ok().and_then(|node| self.nodes.get_mut(node)) {
            *stage = Stage::Over;
        }
        if self.nodes.contains(&Stage::Running) {
            return None;
        }
        let Some(failure) = self.failure.take() else { return Some(Order::Finish(Verdict::Done)) };
        let may_restart = failure.is_final.is_none() && !self.has_signal && self.again < self.most;
        if !may_restart {
            return Some(self.fail(failure));
        }
        self.again += 1;
        self.first = None;
        self.is_urgent = false;
        self.endings.clear();
        self.nodes.fill(Stage::Running);
        if let Some(last) = self.earlier.last_mut() {
            last.shorten();
        }
        self.earlier.push(failure.clone());
        Some(Order::Start {
            again: self.again,
            pause: pause(self.again),
            failure: Box::new(failure),
        })
    }

    /// Keeps the failure that is the cause: one from outside, which other nodes may have noticed
    /// earlier, or else the first.
    fn weigh(&mut self, new: Failure) {
        let Some(old) = self.failure.take() else {
            self.failure = Some(new);
            return;
        };
        let weight =
            |failure: &Failure| (failure.is_from_outside(), self.first == Some(failure.node));
        let (mut cause, other) = if weight(&new) > weight(&old) { (new, old) } else { (old, new) };
        if self.first == Some(other.node) {
            cause.is_final = cause.is_final.or(other.is_final);
        }
        self.endings.extend(afterwards(&other));
        self.failure = Some(cause);
    }

    /// Returns whether no event of the current attempt has arrived.
    fn is_between(&self) -> bool {
        self.first.is_none() && self.nodes.iter().all(|stage| *stage == Stage::Running)
    }

    fn fail(&mut self, mut failure: Failure) -> Order {
        if self.has_signal {
            failure.is_final = Some(Final::Signal);
        }
        let (endings, earlier) =
            (std::mem::take(&mut self.endings), std::mem::take(&mut self.earlier));
        Order::Finish(Verdict::Failed(Box::new(Failed {
            failure,
            endings,
            earlier,
            most: self.most,
        })))
    }
}

/// Returns the ending of a worker that failed after another one, which counts as a consequence.
fn afterwards(failure: &Failure) -> Option<Ending> {
    match failure.cause {
        Cause::Worker { rank, status, .. } => Some(Ending { rank, how: How::of(status, false) }),
        Cause::Other { .. } => None,
    }
}

/// Returns the pause before a restart. The first restart has number 1.
fn pause(again: u32) -> Duration {
    let doublings = again.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(node: u32, is_final: Option<Final>) -> Event {
        let cause = Cause::Other { text: "it failed".to_owned() };
        let (host, after) = (format!("node{node}"), Duration::from_secs(3));
        Event::Failed {
            failure: Box::new(Failure { node, host, after, is_final, cause }),
            endings: Vec::new(),
        }
    }

    fn stopped() -> Event {
        Event::Stopped { endings: Vec::new(), is_final: false }
    }

    fn done() -> Event {
        Event::Done { endings: Vec::new() }
    }

    /// Returns the order that follows from a failure of this node, after the workers of both nodes
    /// have exited.
    fn fail(job: &mut Coordinator, node: u32, is_final: Option<Final>) -> Option<Order> {
        assert!(matches!(
            job.on(node, Event::Failing { haste: Haste::Failure }),
            Some(Order::Stop { .. })
        ));
        assert_eq!(job.on(1 - node, stopped()), None);
        job.on(node, failed(node, is_final))
    }

    #[test]
    fn a_job_is_over_once_all_nodes_have_finished() {
        let mut job = Coordinator::new(2, 1);
        assert_eq!(job.on(1, done()), None);
        assert_eq!(job.on(0, done()), Some(Order::Finish(Verdict::Done)));
        assert_eq!(job.on(0, Event::Failing { haste: Haste::Failure }), None);
    }

    #[test]
    fn a_failure_stops_all_nodes_and_starts_them_again_until_no_restart_is_left() {
        let mut job = Coordinator::new(2, 2);
        for again in 1..=2 {
            let order = fail(&mut job, again % 2, None);
            assert!(
                matches!(order, Some(Order::Start { again: next, .. }) if next == again),
                "{order:?}"
            );
        }
        let Some(Order::Finish(Verdict::Failed(last))) = fail(&mut job, 0, None) else { panic!() };
        assert_eq!((last.failure.node, last.earlier.len(), last.most), (0, 2, 2));
    }

    #[test]
    fn a_node_that_had_finished_starts_again_with_the_others() {
        let mut job = Coordinator::new(2, 1);
        assert_eq!(job.on(0, done()), None);
        assert_eq!(
            job.on(1, Event::Failing { haste: Haste::Failure }),
            Some(Order::Stop { again: 0, haste: Haste::Failure })
        );
        assert!(matches!(job.on(1, failed(1, None)), Some(Order::Start { again: 1, .. })));
        assert_eq!(job.on(0, done()), None);
        assert_eq!(job.on(1, done()), Some(Order::Finish(Verdict::Done)));
    }

    #[test]
    fn of_two_failures_at_once_the_first_is_the_jobs() {
        let mut job = Coordinator::new(2, 0);
        assert_eq!(
            job.on(1, Event::Failing { haste: Haste::Failure }),
            Some(Order::Stop { again: 0, haste: Haste::Failure })
        );
        assert_eq!(job.on(0, Event::Failing { haste: Haste::Failure }), None);
        assert_eq!(job.on(0, failed(0, None)), None);
        let Some(Order::Finish(Verdict::Failed(last))) = job.on(1, failed(1, None)) else {
            panic!()
        };
        assert_eq!(last.failure.node, 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_worker_that_was_killed_is_the_cause_even_if_another_node_noticed_first() {
        let mut job = Coordinator::new(2, 0);
        let cause = Cause::Worker {
            rank: 1,
            status: std::os::unix::process::ExitStatusExt::from_raw(9),
            stderr: None,
        };
        let killed =
            Failure { node: 0, host: "a".to_owned(), after: Duration::ZERO, is_final: None, cause };
        job.on(1, Event::Failing { haste: Haste::Failure });
        job.on(0, Event::Failing { haste: Haste::Failure });
        assert_eq!(job.on(1, failed(1, None)), None);
        let killed = Event::Failed { failure: Box::new(killed), endings: Vec::new() };
        let Some(Order::Finish(Verdict::Failed(last))) = job.on(0, killed) else { panic!() };
        assert_eq!(last.failure.node, 0);
    }

    #[test]
    fn nothing_starts_again_after_a_final_failure_or_a_signal_on_any_node() {
        let mut job = Coordinator::new(2, 5);
        let order = fail(&mut job, 0, Some(Final::Code(2)));
        assert!(matches!(order, Some(Order::Finish(Verdict::Failed(_)))), "{order:?}");
        let mut job = Coordinator::new(2, 5);
        job.on(0, Event::Failing { haste: Haste::Failure });
        job.on(1, Event::Stopped { endings: Vec::new(), is_final: true });
        let Some(Order::Finish(Verdict::Failed(last))) = job.on(0, failed(0, None)) else {
            panic!()
        };
        assert_eq!(last.failure.is_final, Some(Final::Signal));
    }

    #[test]
    fn a_signal_between_two_attempts_ends_the_job_with_the_failure_before() {
        let mut job = Coordinator::new(2, 5);
        fail(&mut job, 1, None);
        let Some(Order::Finish(Verdict::Failed(last))) = job.on(0, Event::Signal) else { panic!() };
        assert_eq!((last.failure.node, last.earlier.len()), (1, 0));
        // A signal that arrives while the workers are being stopped is remembered.
        let mut job = Coordinator::new(2, 5);
        job.on(0, Event::Failing { haste: Haste::Failure });
        assert_eq!(job.on(1, stopped()), None);
        assert_eq!(job.on(1, Event::Signal), None);
        assert!(matches!(job.on(0, failed(0, None)), Some(Order::Finish(Verdict::Failed(_)))));
    }

    #[test]
    fn a_node_that_got_a_signal_before_an_attempt_ends_the_job_although_others_have_finished_it() {
        for nodes in [2, 3] {
            let mut job = Coordinator::new(nodes, 5);
            job.on(1, Event::Failing { haste: Haste::Failure });
            (0..nodes).filter(|node| *node != 1).for_each(|node| drop(job.on(node, stopped())));
            assert!(matches!(job.on(1, failed(1, None)), Some(Order::Start { .. })));
            assert_eq!(job.on(0, done()), None);
            assert_eq!(job.on(1, Event::Signal), None);
            let order = job.on(1, Event::Stopped { endings: Vec::new(), is_final: true });
            let Some(Order::Finish(Verdict::Failed(last))) = order else { panic!("{order:?}") };
            assert_eq!((last.failure.node, last.failure.is_final), (1, Some(Final::Signal)));
        }
    }

    #[test]
    fn a_signal_on_a_node_that_has_finished_forbids_restarts() {
        let mut job = Coordinator::new(2, 5);
        job.on(0, done());
        assert_eq!(job.on(0, Event::Signal), None);
        job.on(1, Event::Failing { haste: Haste::Failure });
        assert!(matches!(job.on(1, failed(1, None)), Some(Order::Finish(Verdict::Failed(_)))));
        // The signal may arrive after the other node's failure.
        let mut job = Coordinator::new(2, 5);
        job.on(0, done());
        job.on(1, Event::Failing { haste: Haste::Failure });
        assert!(matches!(job.on(1, failed(1, None)), Some(Order::Start { .. })));
        assert!(matches!(job.on(0, Event::Signal), Some(Order::Finish(Verdict::Failed(_)))));
    }

    #[test]
    fn of_the_stderr_of_attempts_before_the_last_two_one_line_is_kept() {
        let mut job = Coordinator::new(1, 2);
        let lines = || Some(["a", "b"].map(str::to_owned).into());
        let cause = || Cause::Worker {
            rank: 1,
            status: std::process::ExitStatus::default(),
            stderr: lines(),
        };
        let mut fail = || {
            let failure = Failure {
                node: 0,
                host: String::new(),
                after: Duration::ZERO,
                is_final: None,
                cause: cause(),
            };
            job.on(0, Event::Failed { failure: Box::new(failure), endings: Vec::new() })
        };
        let (Some(_), Some(_), Some(Order::Finish(Verdict::Failed(last)))) =
            (fail(), fail(), fail())
        else {
            panic!()
        };
        let kept = last.earlier.iter().map(|failure| match &failure.cause {
            Cause::Worker { stderr, .. } => stderr.as_ref().map_or(0, Vec::len),
            Cause::Other { .. } => 0,
        });
        assert_eq!(kept.collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_lost_node_ends_the_job_with_its_name() {
        let mut job = Coordinator::new(3, 5);
        let lost =
            Event::Lost { host: "nodeB".to_owned(), reason: "its connection closed".to_owned() };
        let Some(Order::Finish(Verdict::Lost { node, host, .. })) = job.on(1, lost) else {
            panic!()
        };
        assert_eq!((node, host.as_str()), (1, "nodeB"));
    }

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let pauses = [1, 2, 3, 6, 7, 8, u32::MAX].map(|again| pause(again).as_secs_f64());
        assert_eq!(pauses, [0.5, 1.0, 2.0, 16.0, 30.0, 30.0, 30.0]);
    }
}
