//! Options of this command that fix an error or finding; the library does not know them.

use crate::command::check::CheckError;
use crate::{Error, Finding, LaunchError, Reason};

use super::Failure;

/// Two ways to name rank 0's host.
const MASTER: &str = "mpienv also takes --master-addr HOST, or --ask-pmix if the launcher has a PMIx server";

/// The option that helps against a failure.
pub(super) fn for_failure(failure: &Failure) -> Option<&'static str> {
    match failure {
        Failure::Environment(error)
        | Failure::Check(CheckError::Environment(error))
        | Failure::Launch(LaunchError::Environment(error)) => for_error(error),
        Failure::Launch(LaunchError::TooManyRanks { .. }) => Some("--rank R"),
        Failure::Unrepresentable(_) => Some("--shell NAME"),
        _ => None,
    }
}

fn for_error(error: &Error) -> Option<&'static str> {
    match error.reason() {
        Reason::MasterUnknown { .. } => Some(MASTER),
        Reason::Malformed(_) if error.variable() == Some("PMIX_RANK") => Some("mpienv asks the server with --ask-pmix"),
        Reason::NotPerNode(_) => Some("mpienv also takes --launcher alone"),
        Reason::HostsUnknown { .. } => Some("`mpienv exec --meet SECONDS` lets the ranks exchange their addresses"),
        Reason::NoLocalRank { .. } => Some("mpienv also takes --launcher user; or omit --for"),
        _ => None,
    }
}

/// The option that helps against a finding.
pub(super) fn for_finding(finding: &Finding) -> Option<&'static str> {
    match finding.code {
        "master-unknown" => Some(MASTER),
        "master-not-here" => Some("under Open MPI, --ask-pmix finds the host"),
        "nccl-nothing-left" | "nccl-bridge" => Some("mpienv also takes --nccl-ifname"),
        _ => None,
    }
}
