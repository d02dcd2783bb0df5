//! The report for users after a job has failed.

use std::fmt;
use std::num::NonZeroU32;

use crate::ending;
use crate::job::Failed;
use crate::restart::Cause;

/// How many of the first and of the last earlier attempts a report lists.
const FIRST: usize = 2;
const LAST: usize = 4;
/// How many lines of stderr the error itself contains.
const LINES_OF_ERROR: usize = 3;

/// What happened before a worker's failure and because of it. Its text is several indented lines,
/// or empty.
///
/// See [`LaunchError::report`](crate::LaunchError::report).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchReport {
    /// The last lines of the worker's stderr.
    pub(super) stderr: Vec<String>,
    /// Whether they have just been written to this process's stderr.
    pub(super) is_in_sight: bool,
    /// The file that contains them, in parentheses, and what may be wrong with it.
    pub(super) place: String,
    /// How long the last attempt ran, which is shown if other workers ended because of it.
    pub(super) after: Option<String>,
    /// Whether the attempt ended because no worker was active.
    pub(super) is_stall: bool,
    /// How the other workers ended.
    pub(super) endings: Vec<String>,
    /// The failures of earlier attempts.
    pub(super) earlier: Vec<String>,
    /// The maximum number of restarts, if there may be any.
    pub(super) max_restarts: Option<NonZeroU32>,
    /// Why nothing restarted although restarts were left.
    pub(super) not_restarted: Option<String>,
    /// Whether another node prints the report.
    pub(super) is_hidden: bool,
}

impl LaunchReport {
    /// Returns how often the workers were started.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        u32::try_from(self.earlier.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Returns the report of a job that is over, which the platform had restarted `base` times.
    ///
    /// `speaks`: no other node prints the report.
    pub(super) fn of(failed: &Failed, base: u32, speaks: bool) -> LaunchReport {
        let Failed { failure, endings, earlier, not_restarted } = failed;
        let stderr = match &failure.cause {
            Cause::Worker { stderr, .. } => stderr.clone().unwrap_or_default(),
            Cause::Stalled { .. } | Cause::Other { .. } => Vec::new(),
        };
        let earlier = earlier.iter().zip(base..);
        let earlier: Vec<_> = earlier
            .map(|(failure, number)| format!("attempt {number}: {}", failure.summary()))
            .collect();
        LaunchReport {
            stderr,
            after: Some(ending::seconds(failure.after)),
            is_stall: matches!(failure.cause, Cause::Stalled { .. }),
            endings: ending::lines(endings),
            earlier,
            not_restarted: not_restarted.map(|reason| reason.to_string()),
            is_hidden: !speaks,
            ..LaunchReport::default()
        }
    }

    /// Returns the last few lines of the worker's stderr and their place in one line.
    pub(super) fn quote(&self) -> String {
        let last = &self.stderr[self.stderr.len().saturating_sub(LINES_OF_ERROR)..];
        let lines: Vec<_> = last.iter().map(|line| line.trim()).collect();
        (lines.join(" | ") + &self.place).trim_start().to_owned()
    }

    /// Returns whether the report's own text has the worker's stderr.
    pub(super) fn has_stderr(&self) -> bool {
        !self.is_hidden && self.stderr.len() > LINES_OF_ERROR
    }
}

impl fmt::Display for LaunchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hidden {
            return Ok(());
        }
        let mut lines = Vec::new();
        if self.stderr.len() > LINES_OF_ERROR {
            lines.push(format!("  last lines of its stderr{}:", self.place));
            lines.extend(self.stderr.iter().map(|line| format!("    {line}")));
        }
        if let Some(after) = self.after.as_ref().filter(|_| !self.endings.is_empty()) {
            let [failed, workers] = match self.is_stall {
                true => ["stalled", "workers"],
                false => ["failed", "other workers"],
            };
            lines.push(format!("  {failed} {after} after the attempt started; the {workers}:"));
            lines.extend(self.endings.iter().map(|line| format!("    {line}")));
        }
        if let Some(max_restarts) = self.max_restarts {
            let most = u64::from(max_restarts.get()) + 1;
            lines.push(format!("  {} of {most} attempts used", self.attempts()));
            let left_out = self.earlier.len().saturating_sub(FIRST + LAST);
            let (first, rest) = self.earlier.split_at(self.earlier.len().min(FIRST));
            lines.extend(first.iter().map(|line| format!("    {line}")));
            if left_out > 0 {
                lines.push(format!("    ... {left_out} more"));
            }
            lines.extend(rest.iter().skip(left_out).map(|line| format!("    {line}")));
        }
        lines.extend(self.not_restarted.iter().map(|reason| format!("  not restarted: {reason}")));
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ending::{Ending, How};
    use crate::restart::{Failure, NoRestart};

    #[test]
    fn a_report_has_what_the_errors_own_line_has_not() {
        let after = Duration::from_millis(3200);
        let cause = Cause::Other { text: "no".to_owned() };
        let failure = Failure {
            node: 1,
            host: "nodeB".to_owned(),
            after,
            no_restart: Some(NoRestart::Code(2)),
            cause,
        };
        let endings = vec![Ending { rank: 1, how: How::Asked }];
        let (earlier, not_restarted) = (vec![failure.clone()], failure.no_restart);
        let failed = Failed { failure, endings, earlier, not_restarted };
        let mut report = LaunchReport::of(&failed, 3, true);
        report.max_restarts = NonZeroU32::new(3);
        report.stderr = ["a", "b", "c", "  d"].map(str::to_owned).into();
        let expected = [
            "  last lines of its stderr:",
            "    a",
            "    b",
            "    c",
            "      d",
            "  failed 3.2 s after the attempt started; the other workers:",
            "    stopped with SIGTERM: rank 1",
            "  2 of 4 attempts used",
            "    attempt 3: node 1 (nodeB): no",
            "  not restarted: exit code 2 means an invalid command line",
        ];
        assert_eq!(report.to_string(), expected.join("\n"));
        let hidden = LaunchReport::of(&failed, 3, false);
        assert_eq!((hidden.to_string(), hidden.attempts()), (String::new(), 2));
        let short =
            LaunchReport { stderr: vec!["a".to_owned()], is_in_sight: true, ..Default::default() };
        assert_eq!((short.to_string(), short.quote()), (String::new(), "a".to_owned()));
    }

    #[test]
    fn a_report_of_many_attempts_fits_on_a_screen() {
        let earlier: Vec<_> =
            (0..40).map(|number| format!("attempt {number}: it failed")).collect();
        let lines = |earlier: &[String]| {
            let (earlier, max_restarts) = (earlier.to_vec(), NonZeroU32::new(40));
            LaunchReport { earlier, max_restarts, ..LaunchReport::default() }.to_string()
        };
        let expected = [
            "  41 of 41 attempts used",
            "    attempt 0: it failed",
            "    attempt 1: it failed",
            "    ... 34 more",
            "    attempt 36: it failed",
            "    attempt 37: it failed",
            "    attempt 38: it failed",
            "    attempt 39: it failed",
        ];
        assert_eq!(lines(&earlier), expected.join("\n"));
        assert!(
            !lines(&earlier[..6]).contains("more")
                && lines(&earlier[..7]).contains("    ... 1 more\n")
        );
    }
}
