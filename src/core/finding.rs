//! Suspicious observations that do not prevent reading the environment.

use std::fmt;

use serde::Serialize;

use crate::value::name;

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know; nothing needs to be done.
    Note,
    /// Probably wrong: the job may hang or use the wrong resources.
    Warning,
    /// Wrong: the job cannot work as it is.
    Error,
}

impl Severity {
    const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

name::shown_by_name!(Severity);

/// Something suspicious in the environment, with advice.
///
/// ```
/// use mpienv::{ClusterInfo, Finding, Severity};
///
/// // A Slurm batch script, which is not a task.
/// let script = [("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")];
/// let info = ClusterInfo::from_vars(script)?;
/// let finding: &Finding = &info.findings()[0];
/// assert!(finding.severity > Severity::Note);
/// assert_eq!(finding.code, "slurm-not-a-task");
/// assert!(finding.remedy.contains("srun"));
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A stable name for this kind of finding, such as `launchers-disagree`.
    pub code: &'static str,
    /// What was seen, with variables and values.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether this process is probably one of several that each belong to a job of their own.
    #[serde(skip)]
    pub(crate) shows_several: bool,
}

/// How mpienv reports: what was seen, why it matters, and what to do about it.
#[doc(hidden)]
impl Finding {
    pub fn new(
        severity: Severity,
        code: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let (what, why, remedy) = (what.into(), why.into(), remedy.into());
        Finding { severity, code, what, why, remedy, shows_several: false }
    }

    pub(crate) fn of_several(self, shows_several: bool) -> Finding {
        Finding { shows_several, ..self }
    }

    pub fn error(
        code: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Severity::Error, code, what, why, remedy)
    }

    pub fn warning(
        code: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Severity::Warning, code, what, why, remedy)
    }

    pub fn note(
        code: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Severity::Note, code, what, why, remedy)
    }

    /// Returns the finding as three lines: how severe it is and what was seen, why, and the remedy
    /// with a hint.
    pub fn lines(&self, severity: &str, hint: &str) -> String {
        let Finding { code, what, why, remedy, .. } = self;
        format!("{severity} [{code}]: {what}\n  why: {why}\n  remedy: {remedy}{hint}\n")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}; {}", self.severity, self.code, self.what, self.why, self.remedy)
    }
}
