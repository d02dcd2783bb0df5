//! Warnings about a process's place: on stderr, once on each node, unless a user wants none.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use crate::cluster::discover::unplaced;
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::value::host_name::host_name;

/// What silences the warnings of every program.
const QUIET: &str = "MPIENV_QUIET";

/// What this process has printed. Connecting a group warns too, and a program may connect several.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

impl ClusterInfo {
    /// Prints this rank's [`warnings`](ClusterInfo::warnings) on stderr, each once in a process.
    ///
    /// Call it after reading the environment, because a process whose place is only suspicious goes
    /// on: in a batch script without `srun`, each process of a job would be rank 0 of 1. The
    /// feature `collective` calls it whenever a group connects. `MPIENV_QUIET=1` in the environment
    /// silences it.
    ///
    /// ```
    /// let info = mpienv::ClusterInfo::from_env()?;
    /// info.warn();
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    pub fn warn(&self) {
        if is_silenced(&Environment::current()) {
            return;
        }
        let texts = self
            .warnings()
            .into_iter()
            .map(|finding| finding.lines(&finding.severity.to_string(), ""));
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        let text: String = texts.filter(|text| said.insert(text.clone())).collect();
        // A single write keeps the lines of several nodes apart. If stderr is closed, the failure
        // cannot be reported.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    /// Returns this place for a process that starts `workers` processes itself, as
    /// `Launch` does. If it starts several in a batch job of one node, it need not
    /// warn that the job's script runs only once.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let script = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4"), ("SLURM_NNODES", "1")];
    /// let info = ClusterInfo::from_vars(script)?;
    /// assert_eq!(info.warnings()[0].code, "slurm-not-a-task");
    /// assert_eq!(info.starting(4).warnings(), []);
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    #[must_use]
    pub fn starting(&self, workers: u32) -> ClusterInfo {
        let mut info = self.clone();
        if workers > 1 {
            info.findings.retain(|finding| !unplaced::is_of_one_node(finding, &self.inherited));
        }
        info
    }

    /// Returns the findings that are probably wrong, for a program that prints them itself. Ranks
    /// that would repeat what another rank of their node says get none: only rank 0 and the first
    /// rank of each other node warn. What `mpienv exec` said before it became this program is not
    /// said again.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// // A Slurm batch script of a job with eight tasks.
    /// let info = ClusterInfo::from_vars([("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")])?;
    /// assert_eq!(info.warnings()[0].code, "slurm-not-a-task");
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<Finding> {
        self.warnings_and(Vec::new)
    }

    /// Like [`ClusterInfo::warnings`], with findings that are looked for only on a rank that warns.
    pub(crate) fn warnings_and<T: IntoIterator<Item = Finding>>(
        &self,
        others: impl FnOnce() -> T,
    ) -> Vec<Finding> {
        // The first rank on another node may see problems that rank 0 does not.
        if !self.local_rank().map_or(self.rank().is_first(), |local| local == 0) {
            return Vec::new();
        }
        let own =
            self.findings().iter().filter(|finding| finding.severity == Severity::Warning).cloned();
        let is_new = |finding: &Finding| !self.earlier.said.iter().any(|code| code == finding.code);
        own.chain(others()).filter(is_new).map(|finding| self.placed(finding)).collect()
    }

    /// Adds the rank and its host to a finding, except for rank 0.
    fn placed(&self, mut finding: Finding) -> Finding {
        if !self.rank().is_first() {
            let host = host_name().map(|host| format!(" on {host}")).unwrap_or_default();
            finding.what = format!("rank {}{host}: {}", self.rank(), finding.what);
        }
        finding
    }
}

/// Returns whether a user wants no warnings.
pub fn is_silenced(environment: &Environment) -> bool {
    environment.get(QUIET).is_some_and(|value| !["", "0"].iter().any(|no| value == *no))
}
