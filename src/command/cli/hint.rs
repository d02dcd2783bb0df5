//! Options of this command that fix an error or finding; the library does not know them.

use crate::command::check::CheckError;
use crate::{Error, Finding, LaunchError, Launcher, Reason, Severity};
use mpienv_core::seam::{LauncherSeam as _, Starts};

use super::Failure;

/// Two ways to name rank 0's host.
macro_rules! by_option {
    () => {
        "or pass --master-addr HOST, or --ask-pmix if the launcher has a PMIx server"
    };
}

/// How a command learns it that asks the launcher.
const MASTER: &str = by_option!();

/// How a command that only inspects learns it: `exec` asks the launcher.
const ASKED: &str = concat!(
    "or start this command with `mpienv exec --`, which asks MPICH, Intel MPI, MVAPICH, Flux, ",
    "Open MPI 5 and PRRTE; ",
    by_option!()
);

/// How to provide what a platform does not.
const NODE: &str =
    "or, for one process on each node, pass --node-rank R --nnodes N --master-addr HOST";

/// Variables of processes that a launcher started without a size.
const OF_TASKS: &[&str] = &["PMIX_RANK", "PBS_TASKNUM"];

/// Returns the option that helps with a failure.
pub(super) fn for_failure(failure: &Failure) -> Option<&'static str> {
    match failure {
        Failure::Environment(error)
        | Failure::Check(CheckError::Environment(error))
        | Failure::Launch(LaunchError::Environment(error)) => for_error(error),
        Failure::Launch(LaunchError::TooManyRanks { .. }) => {
            Some("or simulate one rank with --rank R")
        }
        Failure::Unrepresentable(_) => Some("--shell NAME"),
        _ => None,
    }
}

fn for_error(error: &Error) -> Option<&'static str> {
    match error.reason() {
        Reason::MasterUnknown { .. } => Some(MASTER),
        Reason::Malformed(_) if error.variable() == Some("PMIX_RANK") => Some(
            "or pass --ask-pmix, which asks the server; or, for one process on each node, pass --node-rank R --nnodes N \
             --master-addr HOST",
        ),
        Reason::HostsUnknown { .. } => {
            Some("or use `mpienv exec --meet TIME`: the ranks then exchange their addresses")
        }
        Reason::NotPerNode(_) => Some(
            "or pass --launcher alone, or --one-per-node if no other process of the job is on its node",
        ),
        Reason::Missing { .. } | Reason::Malformed(_) if may_be_node(error) => Some(NODE),
        Reason::NoLocalRank { .. } => Some("or pass --launcher user, or omit --for"),
        _ => None,
    }
}

/// Returns whether the process may be the only one on its node, on a platform that does not provide
/// its place.
fn may_be_node(error: &Error) -> bool {
    let is_platform =
        |launcher: Launcher| launcher == Launcher::User || launcher.starts() == Starts::OnePerNode;
    let is_task = || error.variable().is_some_and(|name| OF_TASKS.contains(&name));
    error.launcher().map_or_else(is_task, is_platform)
}

/// Returns the option that helps with a finding.
pub(super) fn for_finding(finding: &Finding) -> Option<&'static str> {
    match finding.code {
        "master-unknown" if finding.severity == Severity::Error => Some(ASKED),
        "place-unknown" => Some(NODE),
        "master-not-here" => Some("under Open MPI, --ask-pmix finds the host"),
        "too-many-threads" => Some("or pass --threads share"),
        "hostname-loopback" => Some("or pass --interface auto"),
        "nccl-nothing-left" | "nccl-bridge" => Some("or pass --nccl-ifname"),
        _ => None,
    }
}
