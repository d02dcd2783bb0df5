//! What a node and the coordinator tell each other: events go to it, orders come from it. Both are
//! JSON, in which times are numbers.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::Ending;
use crate::restart::{Failure, NoRestart};
use crate::stall::{RankState, Stall};
use mpienv_core::printable;

/// Writes what another node reads.
pub(super) fn write(message: &impl Serialize) -> Vec<u8> {
    // A variant that is never sent becomes what no node accepts.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Reads what another node has written. No text in it can control a terminal.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let mut message = serde_json::from_slice(bytes)?;
    make_printable(&mut message);
    T::deserialize(message)
}

fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text.as_bytes()),
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A time, which travels in milliseconds, at most 50 days of them: adding a received one to an
/// instant cannot overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub(crate) struct Time(pub Duration);

impl From<u32> for Time {
    fn from(milliseconds: u32) -> Time {
        Time(Duration::from_millis(milliseconds.into()))
    }
}

impl From<Time> for u32 {
    fn from(Time(time): Time) -> u32 {
        u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
    }
}

/// What a launch tells the others when they meet.
#[derive(Serialize, Deserialize)]
pub(super) struct Introduction {
    /// How often the platform had restarted the job, as this node knows it.
    pub base: u32,
    #[serde(flatten)]
    pub options: NodeOptions,
    pub host: String,
}

/// What must be the same on every node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOptions {
    /// How many workers a node starts.
    pub(super) workers: u32,
    pub(super) max_restarts: u32,
    /// How long a node may be silent.
    pub(super) node_timeout: Time,
    /// How long the job may be silent, if that is limited.
    pub(super) stall_timeout: Option<Time>,
}

/// How much time the workers of other nodes have to exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Urgency {
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
    Failing { urgency: Urgency },
    /// Something has failed on the node, and none of its workers is left.
    Failed { failure: Box<Failure>, endings: Vec<Ending> },
    /// Another node has failed, and none of this node's workers is left. `has_signal`: the
    /// node received a signal to end.
    Stopped { endings: Vec<Ending>, has_signal: bool },
    /// All workers of the node have finished.
    Done { endings: Vec<Ending> },
    /// A signal arrived while no worker of the node was running.
    Signal,
    /// No worker of the node has been active for the time of `--stall-timeout`.
    Silent,
    /// One has been active since.
    Active,
    /// What the workers of the node are doing, in the round of looks that has this number.
    Inspected {
        round: u32,
        /// How long the attempt has run.
        after: Time,
        ranks: Vec<RankState>,
    },
    /// The process that launches the node's workers is gone. No process tells another one so.
    #[serde(skip)]
    Lost { host: String, reason: String },
}

/// What all nodes do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Stop the workers of this attempt.
    Stop {
        again: u32,
        urgency: Urgency,
        /// If the job has stalled, what only the first node reports.
        #[serde(skip)]
        stall: Option<Box<Stall>>,
    },
    /// All nodes are silent: look at what the workers are doing.
    Inspect { round: u32 },
    /// Start this attempt after a pause.
    Start { again: u32, pause: Time, failure: Box<Failure> },
    /// The job is over.
    Finish(Verdict),
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Done,
    Failed(Box<FinalFailure>),
    Lost { node: u32, host: String, reason: String },
}

/// The last failure, and the history that led to it, which only the first node reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinalFailure {
    pub failure: Failure,
    #[serde(skip)]
    pub endings: Vec<Ending>,
    /// The failures of earlier attempts.
    #[serde(skip)]
    pub earlier: Vec<Failure>,
    /// Why nothing restarts, if a restart is left.
    #[serde(skip)]
    pub not_restarted: Option<NoRestart>,
}
