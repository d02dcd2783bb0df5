//! What keeps other programs out of a meeting of the job's ranks: a secret, MUNGE, or nothing.

use std::time::Duration;

use mpienv_rendezvous::seam::{self, MUNGE_REMEDY};
use serde::Serialize;

use crate::{ClusterInfo, Finding, Severity};

/// What protects a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protection {
    None,
    Secret,
    Munge,
}

impl Protection {
    /// Returns what protects the meeting of this process, which authenticates with MUNGE or not.
    pub(crate) fn of(info: &ClusterInfo, uses_munge: bool) -> Protection {
        match info.secret_source() {
            _ if uses_munge => Protection::Munge,
            Some(_) => Protection::Secret,
            None => Protection::None,
        }
    }

    /// Returns it as the end of a sentence about the meeting.
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            Protection::None => "without a secret",
            Protection::Secret => "with a secret",
            Protection::Munge => "with MUNGE",
        }
    }
}

/// Returns whether munged answers on this host, or why not. `None` if this process has no use for
/// it.
pub(crate) fn ask_munged(info: &ClusterInfo, within: Duration) -> Option<Result<(), String>> {
    Some(seam::ask_munged(info.munge()?, within))
}

/// Returns the row of a table: what protects the meeting, and why. `munged` is what [`ask_munged`]
/// returned, if it was asked.
pub(crate) fn row(info: &ClusterInfo, munged: Option<&Result<(), String>>) -> [String; 3] {
    let secret = info.secret_source();
    let without = if secret.is_some() { "secret" } else { "none" };
    let (protection, reason) = match info.munge().map(|own| (own, format!("MPIENV_AUTH={own}"))) {
        None => (without, secret.unwrap_or("neither a secret nor MUNGE").to_owned()),
        Some((munge, setting)) => match munged {
            Some(Err(reason)) if munge.is_auto() => (without, format!("{setting}: {reason}")),
            // Nothing replaces MUNGE where ranks must use it.
            Some(Err(_)) => ("MUNGE", format!("{setting}: see {NO_ANSWER}")),
            None if munge.is_auto() && secret.is_some() => ("MUNGE or secret", setting),
            None if munge.is_auto() => ("MUNGE or none", setting),
            Some(Ok(())) | None => ("MUNGE", setting),
        },
    };
    ["protection".to_owned(), protection.to_owned(), reason]
}

/// The code of the finding that munged does not answer where ranks must use it.
pub(crate) const NO_ANSWER: &str = "munge-no-answer";

/// Returns the finding `munge-no-answer`: a note where the ranks then meet without protection.
pub(crate) fn no_answer(
    info: &ClusterInfo,
    munged: Option<&Result<(), String>>,
) -> Option<Finding> {
    let munge = info.munge()?;
    let reason = munged?.as_ref().err()?;
    let (severity, why) = match (munge.is_auto(), info.secret_source()) {
        (false, _) => (
            Severity::Error,
            "the ranks must authenticate with MUNGE, so this rank cannot meet the others",
        ),
        (true, None) if info.world_size() > 1 => (
            Severity::Note,
            "if munged answers on no host of the job, processes of other users can meet its ranks",
        ),
        (true, _) => return None,
    };
    let what = format!("MPIENV_AUTH={munge}: {reason}");
    Some(Finding::new(severity, NO_ANSWER, what, why, MUNGE_REMEDY))
}
