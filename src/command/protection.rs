//! What keeps other programs out of a meeting of the job's ranks: a secret, MUNGE, or nothing.

use mpienv_core::seam::InfoSeam as _;
use mpienv_rendezvous::seam::why_no_munge;
use serde::Serialize;

use crate::ClusterInfo;

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

/// Returns the row of a table: what protects the meeting, and why. Asks munged only if `may_ask`.
pub(crate) fn row(info: &ClusterInfo, may_ask: bool) -> [String; 3] {
    let (protection, reason) = known(info, may_ask);
    ["protection".to_owned(), protection.to_owned(), reason]
}

fn known(info: &ClusterInfo, may_ask: bool) -> (&'static str, String) {
    let secret = info.secret_source();
    let without = match secret {
        Some(source) => ("secret", source.to_owned()),
        None => ("none", "neither a secret nor MUNGE".to_owned()),
    };
    let Some(munge) = info.munge() else { return without };
    let setting = format!("MPIENV_AUTH={munge}");
    if !munge.is_auto() {
        return ("MUNGE", setting);
    }
    match may_ask.then(|| why_no_munge(munge)) {
        None => (if secret.is_some() { "MUNGE or secret" } else { "MUNGE or none" }, setting),
        Some(None) => ("MUNGE", setting),
        Some(Some(reason)) => (without.0, format!("{setting}: {reason}")),
    }
}
