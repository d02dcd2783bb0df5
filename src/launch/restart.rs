//! Why the workers start again after a failure, or why they do not.
//!
//! An attempt that fails has a [`Failure`]. Its [`Cause`] is the reason for a restart. A [`NoRestart`]
//! is a reason against one, although restarts are left. To add a reason:
//!
//! 1. Add a variant to one of them. The functions that turn it into text follow in this file.
//! 2. Make it of what failed: in [`describe`] if an error on one node shows it, and in the coordinator
//!    (`job/coordinator.rs`) if only all nodes together do, as a stall.
//! 3. Make the error of it that the other nodes return: in [`LaunchError::from`] below.
//!
//! The coordinator decides: after a failure it starts the workers again unless there is a reason
//! against it, a signal, or no restart left.

use std::fmt::{self, Display};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::LaunchError;
use crate::job::Time;
use crate::report::{LaunchReport, seconds, status_text};
use crate::stop::{is_killed, is_request};
use mpienv_core::seam::signal;

/// The pause before the first restart. It doubles with each restart.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The failure that ended an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub node: u32,
    pub host: String,
    /// The time since the start of the attempt.
    pub after: Time,
    /// Why there is no other attempt, whatever the settings say.
    pub no_restart: Option<NoRestart>,
    pub cause: Cause,
}

/// Why nothing restarts although restarts are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NoRestart {
    /// The exit code says that the command line is wrong or cannot be executed.
    Code(i32),
    /// This process received a signal to exit, or to prepare for it.
    Signal,
    /// The failure is not a worker's.
    Launch,
    /// Nothing reads what the workers write.
    Output,
}

/// Returns what an exit code means after which nothing restarts, because another attempt would end
/// in the same way.
fn meaning_of_code(code: i32) -> Option<&'static str> {
    match code {
        2 => Some("an invalid command line"),
        126 | 127 => Some("that the command cannot be started"),
        _ => None,
    }
}

impl fmt::Display for NoRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoRestart::Code(code) => {
                let meaning = meaning_of_code(*code).unwrap_or("that a restart would not help");
                write!(f, "exit code {code} means {meaning}")
            }
            NoRestart::Signal => f.write_str("mpienv received a signal that ends the job"),
            NoRestart::Output => f.write_str("nothing reads the output of the workers"),
            NoRestart::Launch => f.write_str("mpienv itself failed, not a worker"),
        }
    }
}

/// What failed: the reason for a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Cause {
    /// A worker exited with an error, or a signal killed it. It was the first one.
    Worker {
        rank: u32,
        /// The exit status, as the system writes it.
        status: i32,
        stderr: Option<Vec<String>>,
    },
    /// No rank was active for this time.
    Stalled {
        timeout: Time,
        /// What the ranks were doing.
        summary: String,
    },
    /// This launch failed, not a worker.
    Other { text: String },
}

impl Failure {
    /// Returns whether a worker was killed from outside the job.
    pub(super) fn is_from_outside(&self) -> bool {
        let Cause::Worker { status, .. } = self.cause else { return false };
        is_killed(ExitStatus::from_raw(status))
    }

    /// Keeps only the part of the output that a summary shows.
    pub(super) fn shorten(&mut self) {
        if let Cause::Worker { stderr: Some(lines), .. } = &mut self.cause {
            lines.drain(..lines.len().saturating_sub(1));
        }
    }

    /// Returns one line, with at most the last line of stderr:
    /// `rank 1 on node0: signal 9 (SIGKILL) after 3.2 s`.
    pub(super) fn summary(&self) -> String {
        let after = seconds(self.after.0);
        match &self.cause {
            Cause::Worker { rank, status, stderr, .. } => {
                let (host, status) = (&self.host, status_text(ExitStatus::from_raw(*status)));
                let last = stderr.as_ref().and_then(|lines| lines.last());
                let last = last.map_or(String::new(), |line| format!(", stderr: {}", line.trim()));
                format!("rank {rank} on {host}: {status} after {after}{last}")
            }
            Cause::Stalled { timeout, summary } => {
                format!("stalled, silent for {}: {summary}", seconds(timeout.0))
            }
            Cause::Other { text } => format!("node {} ({}): {text}", self.node, self.host),
        }
    }
}

/// Returns what failed, and why it would fail again.
pub(super) fn describe(error: &LaunchError) -> (Cause, Option<NoRestart>) {
    let other = |error: &dyn Display| Cause::Other { text: error.to_string() };
    match error {
        LaunchError::Failed { rank, status, stderr, report, .. } => {
            let (rank, code) = (*rank, status.code());
            let stderr = stderr.is_some().then(|| report.stderr.clone());
            let code = code.filter(|code| meaning_of_code(*code).is_some());
            let cause = Cause::Worker { rank, status: status.into_raw(), stderr };
            (cause, code.map(NoRestart::Code))
        }
        LaunchError::Stopped { rank: Some(rank), signal, .. } => {
            (Cause::Worker { rank: *rank, status: *signal, stderr: None }, Some(NoRestart::Signal))
        }
        LaunchError::Stopped { rank: None, .. } => (other(error), Some(NoRestart::Signal)),
        // The other nodes add this node's name to the text.
        LaunchError::OtherNode { reason, .. } => (other(reason), Some(NoRestart::Launch)),
        error => (other(error), Some(NoRestart::Launch)),
    }
}

impl Failure {
    /// Returns whether the error of a node is this failure. A stall is one of all nodes: a worker
    /// that fails then may do so because those of other nodes are stopped.
    pub(super) fn is(&self, node: u32, error: &LaunchError) -> bool {
        let is_effect =
            matches!((&self.cause, error), (Cause::Stalled { .. }, LaunchError::Failed { .. }));
        self.node == node && !is_effect
    }
}

impl From<Failure> for LaunchError {
    /// Returns the error for a failure on another node.
    fn from(failure: Failure) -> LaunchError {
        let Failure { node, host, cause, no_restart, .. } = failure;
        let (rank, status, stderr) = match cause {
            Cause::Other { text } => return LaunchError::OtherNode { node, host, reason: text },
            Cause::Stalled { timeout, summary } => {
                return LaunchError::Stalled {
                    timeout: timeout.0,
                    summary,
                    report: Box::default(),
                };
            }
            Cause::Worker { rank, status, stderr } => (rank, ExitStatus::from_raw(status), stderr),
        };
        let request = signal(status).filter(|signal| is_request(*signal));
        if let Some(signal) = request.filter(|_| no_restart == Some(NoRestart::Signal)) {
            return LaunchError::stopped(Some(rank), Some(host), signal, None);
        }
        let stderr = stderr.map(|stderr| LaunchReport { stderr, ..Default::default() }.quote());
        let (passed_on, after, report) = (false, None, Box::default());
        LaunchError::Failed { rank, host: Some(host), status, passed_on, after, stderr, report }
    }
}

/// Returns the pause before a restart. The first restart has number 1.
pub(super) fn pause(again: u32) -> Duration {
    let doublings = again.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_fails_while_a_stalled_job_is_stopped_is_not_why_the_job_failed() {
        let failure = |cause| {
            let (host, after) = ("a".to_owned(), Time(Duration::ZERO));
            Failure { node: 0, host, after, no_restart: None, cause }
        };
        let stall =
            || Cause::Stalled { timeout: Time(Duration::from_secs(3)), summary: String::new() };
        let worker = || Cause::Worker { rank: 1, status: 3 << 8, stderr: None };
        let failed = LaunchError::from(failure(worker()));
        assert!(!failure(stall()).is(0, &failed));
        assert!(failure(worker()).is(0, &failed) && !failure(worker()).is(1, &failed));
        // What fails in mpienv itself meanwhile says why the job does not go on.
        let stopped = LaunchError::stopped(None, None, 2, None);
        assert!(failure(stall()).is(0, &stopped));
    }

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let pauses = [1, 2, 3, 6, 7, 8, u32::MAX].map(|again| pause(again).as_secs_f64());
        assert_eq!(pauses, [0.5, 1.0, 2.0, 16.0, 30.0, 30.0, 30.0]);
    }
}
