//! Warnings of every command that uses a place: on stderr, once for each node.

use std::io::{self, Write};
use std::time::Duration;

use crate::command::doctor;
use crate::{ClusterInfo, Environment, Finding, Severity, host_name};
use clap::Args;

use super::print_findings;

/// How long the master's name may take to resolve, where it is not clear that the master is here.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether warnings are printed.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Quiet {
    /// Print no warnings on stderr [env: MPIENV_QUIET=1]
    #[arg(short, long)]
    quiet: bool,
}

impl Quiet {
    /// For commands that are about what is wrong.
    pub(crate) const NEVER: Quiet = Quiet { quiet: false };

    /// Whether a person asked for silence.
    pub(crate) fn is_asked(self, environment: &Environment) -> bool {
        self.quiet || environment.get("MPIENV_QUIET").is_some_and(|value| !["", "0"].iter().any(|no| value == *no))
    }

    /// Prints what is probably wrong with this process's place; of a node's ranks the first one does.
    pub(crate) fn warn(self, info: &ClusterInfo, environment: &Environment) {
        self.warn_also(info, environment, None);
    }

    /// The same, and what is suspicious in the command line.
    pub(crate) fn warn_also(self, info: &ClusterInfo, environment: &Environment, also: Option<Finding>) {
        if self.is_asked(environment) || !speaks(info) {
            return;
        }
        let elsewhere = doctor::master_of_one_node(info, PATIENCE);
        let warnings = info.findings().iter().filter(|finding| finding.severity == Severity::Warning);
        let warnings: Vec<Finding> =
            warnings.cloned().chain(elsewhere).chain(also).map(|finding| placed(info, finding)).collect();
        let mut text = Vec::new();
        if warnings.is_empty() || print_findings(&mut text, &warnings).is_err() {
            return;
        }
        // In one write, so that the lines of several nodes do not mix. A closed stderr has no reader.
        let _ = match anstream::AutoStream::choice(&io::stderr()) {
            anstream::ColorChoice::Never => io::stderr().write_all(&anstream::adapter::strip_bytes(&text).into_vec()),
            _ => anstream::stderr().write_all(&text),
        };
    }
}

/// Whether this is rank 0, or the first rank of another node, which may see what rank 0 does not.
fn speaks(info: &ClusterInfo) -> bool {
    info.local_rank().map_or(info.rank() == 0, |local| local == 0)
}

/// Rank 0 need not say who it is.
fn placed(info: &ClusterInfo, mut finding: Finding) -> Finding {
    if info.rank() > 0 {
        let host = host_name().map(|host| format!(" on {host}")).unwrap_or_default();
        finding.what = format!("rank {}{host}: {}", info.rank(), finding.what);
    }
    finding
}
