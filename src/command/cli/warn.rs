//! Warnings of every command that uses a process's place: on stderr, once on each node.

use std::time::Duration;

use crate::command::doctor;
use crate::{ClusterInfo, Environment, Finding, Severity, host_name};
use clap::Args;

use super::{lines_of, stream};

/// How long the master's name may take to resolve, if it is not obvious that the master is this host.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether warnings are printed.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Quiet {
    /// Print no warnings on stderr [env: MPIENV_QUIET=1]
    #[arg(short, long)]
    quiet: bool,
}

impl Quiet {
    /// For commands whose purpose is to show problems.
    pub(crate) const NEVER: Quiet = Quiet { quiet: false };

    /// Returns whether a user requested silence.
    pub(crate) fn is_asked(self, environment: &Environment) -> bool {
        self.quiet || environment.get("MPIENV_QUIET").is_some_and(|value| !["", "0"].iter().any(|no| value == *no))
    }

    /// Prints what is probably wrong with this process's place. Only the first rank on each node does so.
    pub(crate) fn warn(self, info: &ClusterInfo, environment: &Environment) {
        self.warn_also(info, environment, []);
    }

    /// Like [`Quiet::warn`], but also prints what is probably wrong with starting the command.
    pub(crate) fn warn_also(
        self,
        info: &ClusterInfo,
        environment: &Environment,
        also: impl IntoIterator<Item = Finding>,
    ) {
        if self.is_asked(environment) || !speaks(info) {
            return;
        }
        let elsewhere = doctor::master_of_one_node(info, PATIENCE);
        let warnings = info.findings().iter().filter(|finding| finding.severity == Severity::Warning);
        let warnings: Vec<Finding> =
            warnings.cloned().chain(elsewhere).chain(also).map(|finding| placed(info, finding)).collect();
        stream::report(lines_of(&warnings).as_bytes());
    }
}

/// Returns whether this is rank 0 or the first rank on another node, which may see problems that rank 0 does not.
fn speaks(info: &ClusterInfo) -> bool {
    info.local_rank().map_or(info.rank() == 0, |local| local == 0)
}

/// Adds the rank and its host to a finding, except for rank 0.
fn placed(info: &ClusterInfo, mut finding: Finding) -> Finding {
    if info.rank() > 0 {
        let host = host_name().map(|host| format!(" on {host}")).unwrap_or_default();
        finding.what = format!("rank {}{host}: {}", info.rank(), finding.what);
    }
    finding
}
