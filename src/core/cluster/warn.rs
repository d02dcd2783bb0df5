//! What a program does about its findings: it prints them, or refuses to be alone by mistake.

use std::collections::BTreeSet;
use std::io;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use crate::cluster::discover::disagreement::{self, DISAGREE};
use crate::cluster::discover::unplaced;
use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::finding::{Finding, Severity};
use crate::launcher::alone::{BY_ITSELF, NO_VARIABLES};
use crate::value::host::host_name;

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

    /// Returns the findings that show probable mistakes, for a program that prints them itself.
    /// Ranks that would repeat what another rank of their node says get none: only rank 0 and the
    /// first rank of each other node warn, and a rank that would be one of these by the variables of
    /// a launcher that disagrees. What `mpienv exec` said before it became this program is not said
    /// again.
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
        self.warnings_and(None, Vec::new)
    }

    /// Like [`ClusterInfo::warnings`], with findings of each rank, and with others that are looked
    /// for only on a rank that warns.
    #[doc(hidden)]
    pub fn warnings_and(
        &self,
        of_each: Option<Finding>,
        others: impl FnOnce() -> Vec<Finding>,
    ) -> Vec<Finding> {
        let mut found: Vec<_> = of_each.into_iter().collect();
        let is_warning = |finding: &&Finding| finding.severity == Severity::Warning;
        let warnings = self.findings().iter().filter(is_warning).cloned();
        // The first rank on another node may see problems that rank 0 does not.
        if self.local_rank().map_or(self.rank().is_first(), |local| local == 0) {
            found.extend(warnings);
            found.extend(others());
        } else {
            // Of ranks that all have the same wrong place, another launcher's first one warns. A
            // launcher that sets each rank's variables anew gives none that is inherited.
            let can_be_same = !self.launcher().spec().is_always_seen;
            // Of processes that share a rank that is right for the first of them, the second warns.
            let is_second = self.local_rank() == Some(1) && disagreement::is_low(&self.placement);
            let is_of_place = |finding: &Finding| {
                finding.code == DISAGREE
                    && (is_second || can_be_same && disagreement::is_first_by_any(&self.inherited))
            };
            found.extend(warnings.filter(is_of_place));
        }
        found.retain(|finding| !self.earlier.said.iter().any(|code| code == finding.code));
        found.into_iter().map(|finding| self.placed(finding)).collect()
    }

    /// Returns this place if a launcher gave it, and otherwise an error.
    ///
    /// [`ClusterInfo::from_env`] takes a process without a launcher for rank 0 of 1, so that a
    /// program also runs by itself. In a job, that is a mistake: if a batch script lacks `srun`, or
    /// a container does not pass the launcher's variables on, every process trains alone. Call this
    /// in a program that must not do so. `mpirun -n 1`, `RANK=0` with `WORLD_SIZE=1`, and
    /// `MPIENV_LAUNCHER=alone` say on purpose that there is one rank, and are accepted. Where a
    /// finding shows that the process is one of several, only `MPIENV_LAUNCHER` is (`alone`, or the
    /// name of the launcher that gave the place): `RANK=0` and `WORLD_SIZE=1` may come from an image.
    /// `MPIENV_REQUIRE_LAUNCHER=1` in the environment makes every reading do so.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// // A Slurm batch script that has not used srun.
    /// let script = ClusterInfo::from_vars([("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")])?;
    /// assert_eq!((script.rank().index(), script.world_size()), (0, 1));
    /// let error = script.require_launcher().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "SLURM_JOB_ID=\"7\" and SLURM_NTASKS=\"8\" are set, but srun did not start this \
    ///      process, so this process would be rank 0 of 1; start the program with `srun`, \
    ///      which starts every task, or set MPIENV_LAUNCHER=alone for a process by itself"
    /// );
    ///
    /// let task = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0")];
    /// assert_eq!(ClusterInfo::from_vars(task)?.require_launcher()?.rank().index(), 3);
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no launcher started this process, or a finding shows that the launcher that did has only
    /// some of the job. The text names what looks like a job, if anything does, and how to start the
    /// program.
    pub fn require_launcher(self) -> Result<ClusterInfo, Error> {
        let sign = self.one_of_several();
        if self.has_launcher() && sign.is_none() {
            return Ok(self);
        }
        let is_note = |finding: &&Finding| unplaced::is_unplaced(finding.code);
        let (what, start) = match sign.or_else(|| self.findings.iter().find(is_note)) {
            Some(finding) => (finding.what.clone(), finding.remedy.clone()),
            None => (
                NO_VARIABLES.to_owned(),
                "start the program with a launcher, as in `mpirun -n 4 PROGRAM`, `srun PROGRAM` or `mpienv launch \
                 --nnodes 1 --nproc-per-node 4 -- PROGRAM`"
                    .to_owned(),
            ),
        };
        let remedy = match start.contains(overrides::LAUNCHER) {
            true => start,
            false => format!("{start}, or set {BY_ITSELF}"),
        };
        let place = if self.world_size() == 1 { "rank 0 of 1" } else { "in a job of its own" };
        let what = format!("{what}, so this process would be {place}");
        Err(Error::new(Reason::NoLauncher(what), remedy))
    }

    /// Returns whether a launcher gave this place, or a user asked for a process by itself.
    pub(crate) fn has_launcher(&self) -> bool {
        // What `MPIENV_LAUNCHER`, a builder or an mpienv around this process selects has another
        // source.
        self.placement.launcher.source != NO_VARIABLES
    }

    /// Returns the warning that this process is probably one of several: by signs of a job, or as
    /// the only rank of one launcher and not of another, or in a job of its own on one node.
    #[doc(hidden)]
    #[must_use]
    pub fn one_of_several(&self) -> Option<&Finding> {
        let may_be = |found: &&Finding| {
            let is_unplaced = self.world_size() == 1 && unplaced::is_unplaced(found.code);
            unplaced::is_warning(found) && (found.shows_several || is_unplaced)
        };
        self.findings.iter().find(may_be)
    }

    /// Returns this place, or an error if this process is probably one of several, and rank 0 of 1, or
    /// in a job of its own beside those of the others.
    ///
    /// [`ClusterInfo::from_env`] prints nothing, and takes a process without a launcher for the only
    /// rank. In a batch script without `srun`, or a container that does not pass the launcher's
    /// variables on, each process would work alone. This refuses such a process, and accepts one
    /// without any sign of a job, as on a laptop. `Group::connect` and `World::init` do so
    /// themselves. `MPIENV_LAUNCHER=alone`, or the name of the launcher that gave the place, allows
    /// it.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let laptop = ClusterInfo::from_vars([("HOME", "/home/ada")])?.require_place()?;
    /// assert_eq!(laptop.world_size(), 1);
    /// let script = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")];
    /// let error = ClusterInfo::from_vars(script)?.require_place().unwrap_err();
    /// assert!(error.to_string().contains("srun did not start this process"));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`ClusterInfo::require_launcher`], but only if a finding shows that there are more ranks.
    pub fn require_place(self) -> Result<ClusterInfo, Error> {
        match self.one_of_several() {
            Some(_) if !overrides::is_asked(&self.placement.launcher.source) => {
                self.require_launcher()
            }
            _ => Ok(self),
        }
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
    is_on(environment, overrides::QUIET)
}

/// Returns whether a variable that may be 0 or 1 is set, and is not 0.
pub(super) fn is_on(environment: &Environment, name: &str) -> bool {
    environment.get(name).is_some_and(|value| !["", "0"].iter().any(|no| value == *no))
}
