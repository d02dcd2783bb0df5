//! Refuses to be alone by mistake.

use crate::cluster::discover::unplaced;
use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides;
use crate::error::{Error, Reason};
use crate::launcher::alone::NO_VARIABLES;

impl ClusterInfo {
    /// Returns this place if a launcher gave it, and otherwise an error.
    ///
    /// [`ClusterInfo::from_env`] takes a process without a launcher for rank 0 of 1, so that a
    /// program also runs by itself. In a job, that is a mistake: if a batch script lacks `srun`, or
    /// a container does not pass the launcher's variables on, every process trains alone. Call this
    /// in a program that must not do so. `mpirun -n 1`, `RANK=0` with `WORLD_SIZE=1`, and
    /// `MPIENV_LAUNCHER=alone` say on purpose that there is one rank, and are accepted.
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
    /// If no launcher started this process. The text names what looks like a job, if anything does,
    /// and how to start the program.
    pub fn require_launcher(self) -> Result<ClusterInfo, Error> {
        // What `MPIENV_LAUNCHER` or a builder selects has another source.
        if self.placement.launcher.source != NO_VARIABLES {
            return Ok(self);
        }
        let by_itself = format!("set {}=alone for a process by itself", overrides::LAUNCHER);
        let is_sign = |finding: &&_| unplaced::is_sign(finding);
        let (what, start) = match self.findings.iter().find(is_sign) {
            Some(finding) => (finding.what.clone(), finding.remedy.clone()),
            None => (
                NO_VARIABLES.to_owned(),
                "start the program with a launcher, as in `mpirun -n 4 PROGRAM`, `srun PROGRAM` or `mpienv launch \
                 --nproc-per-node 4 -- PROGRAM`"
                    .to_owned(),
            ),
        };
        let remedy = match start.contains(overrides::LAUNCHER) {
            true => start,
            false => format!("{start}, or {by_itself}"),
        };
        Err(Error::new(Reason::NoLauncher(what), remedy))
    }
}
