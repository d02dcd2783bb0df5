//! Warnings of every command that uses a process's place: on stderr, once on each node.

use std::time::Duration;

use crate::command::doctor;
use crate::{ClusterInfo, Environment, Finding, Launcher, Severity};
use clap::Args;
use mpienv_core::seam::is_silenced;

use super::{lines_of, stream};

/// How long the master's name may take to resolve, if it is not obvious that the master is this
/// host.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Whether warnings are printed.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Quiet {
    /// Print no warnings on stderr, only errors [env: MPIENV_QUIET=1]
    #[arg(short, long)]
    quiet: bool,
}

impl Quiet {
    /// For commands whose purpose is to show problems.
    pub(crate) const NEVER: Quiet = Quiet { quiet: false };

    /// Returns whether a user requested silence.
    pub(crate) fn is_asked(self, environment: &Environment) -> bool {
        self.quiet || is_silenced(environment)
    }

    /// Prints what is probably wrong with this process's place, and with starting the command.
    /// Returns what it printed about the place, which is the same for the programs that the command
    /// starts.
    pub(crate) fn warn_also(
        self,
        info: &ClusterInfo,
        also: impl IntoIterator<Item = Finding>,
    ) -> Vec<Finding> {
        let also: Vec<_> = also.into_iter().collect();
        let of_command: Vec<_> = also.iter().map(|finding| finding.code).collect();
        let mut warnings = suspicious(info, also);
        let printed = self.print(info, &warnings);
        warnings
            .retain(|Finding { code, .. }| printed.contains(code) && !of_command.contains(code));
        warnings
    }

    /// Prints findings, and returns the codes of those that it printed.
    pub(crate) fn print(self, info: &ClusterInfo, findings: &[Finding]) -> Vec<&'static str> {
        let is_quiet = self.is_asked(info.environment());
        // A job with an error cannot work, so its error is printed whatever a user requested.
        let is_shown = |finding: &&Finding| finding.severity == Severity::Error || !is_quiet;
        let shown = findings.iter().filter(is_shown);
        stream::report(&lines_of(shown.clone()));
        shown.map(|finding| finding.code).collect()
    }
}

/// Returns what is probably wrong with this process's place, and with starting the command. Only the
/// first rank on each node looks for it, but every rank for a place that is left from a job that has
/// ended: its first rank is not there.
pub(super) fn suspicious(
    info: &ClusterInfo,
    also: impl IntoIterator<Item = Finding>,
) -> Vec<Finding> {
    info.warnings_and(stale(info), || {
        let master = doctor::master_of_one_node(info, PATIENCE)
            .or_else(|| doctor::loopback_of_several_nodes(info));
        let of_user = doctor::interface::of_user(info);
        let may_be_left = !matches!(info.launcher(), Launcher::OpenMpi | Launcher::Alone);
        let left = may_be_left.then(|| left_from_open_mpi(info)).flatten();
        left.into_iter().chain(master).chain(of_user).chain(also).collect()
    })
}

/// Returns the finding that this process's place is left from a job that has ended.
pub(super) fn stale(info: &ClusterInfo) -> Option<Finding> {
    match info.launcher() {
        Launcher::OpenMpi => left_from_open_mpi(info),
        Launcher::Hydra | Launcher::User => doctor::stale_place(doctor::ended_launcher(info)),
        _ => doctor::stale_slurm(info, doctor::ended_task(info.environment())),
    }
}

/// Returns the finding that Open MPI's variables are left from a job that has ended.
fn left_from_open_mpi(info: &ClusterInfo) -> Option<Finding> {
    doctor::stale_open_mpi(doctor::gone_session(info.environment()))
}

/// Says that the program starts although an error was printed, which would otherwise look like the
/// reason for what the program does next.
pub(super) fn starts_anyway(printed: &[Finding]) {
    if printed.iter().any(|finding| finding.severity == Severity::Error) {
        stream::report(
            "mpienv: the program starts anyway; with --meet TIME, it starts only if all ranks \
              meet\n",
        );
    }
}
