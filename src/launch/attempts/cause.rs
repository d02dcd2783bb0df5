//! What a failure on this node is for the other nodes.

use std::fmt::Display;

use crate::launch::ending::{Cause, Final, by_signal, meaning_of_final};
use crate::launch::error::LaunchError;

/// Returns what failed, and why it would fail again.
pub(super) fn describe(error: &LaunchError) -> (Cause, Option<Final>) {
    let other = |error: &dyn Display| Cause::Other { text: error.to_string() };
    match error {
        LaunchError::Failed { rank, status, stderr, report, .. } => {
            let (rank, status) = (*rank, *status);
            let stderr = stderr.is_some().then(|| report.stderr.clone());
            let code = status.code().filter(|code| meaning_of_final(*code).is_some());
            (Cause::Worker { rank, status, stderr }, code.map(Final::Code))
        }
        LaunchError::Stopped { rank: Some(rank), signal, .. } => (
            Cause::Worker { rank: *rank, status: by_signal(*signal), stderr: None },
            Some(Final::Signal),
        ),
        LaunchError::Stopped { rank: None, .. } => (other(error), Some(Final::Signal)),
        // The other nodes add this node's name to the text.
        LaunchError::OtherNode { reason, .. } => (other(reason), Some(Final::Launch)),
        error => (other(error), Some(Final::Launch)),
    }
}
