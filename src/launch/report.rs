//! What users read of a job that has failed, besides the error's own line: how its workers ended, and
//! the attempts before.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::FinalFailure;
use crate::restart::Cause;
use crate::stop::SIGTERM;
use mpienv_core::seam::{list_of_ranks, runs_of_ranks, signal};

/// How many of the first and of the last earlier attempts a report lists.
const FIRST: usize = 2;
const LAST: usize = 4;
/// How many lines of stderr the error itself contains.
const LINES_OF_ERROR: usize = 3;
/// The most frequent reason why a worker was killed.
const OUT_OF_MEMORY: &str = "  the kernel kills a process if memory runs out: look at `dmesg` on that host, or at Slurm's \
                             `sacct -j ID -o MaxRSS`";

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
    pub(super) source: String,
    /// How long the last attempt ran, which is shown if other workers ended because of it.
    pub(super) after: Option<String>,
    /// Whether the attempt ended because no worker was active.
    pub(super) is_stall: bool,
    /// Whether something outside the job has killed the worker.
    pub(super) is_killed: bool,
    /// How the other workers ended.
    pub(super) endings: Vec<String>,
    /// The failures of earlier attempts.
    pub(super) earlier: Vec<String>,
    /// The maximum number of restarts.
    pub(super) max_restarts: u32,
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
    /// `reports_for_all`: no other node prints the report.
    pub(super) fn of(failed: &FinalFailure, base: u32, reports_for_all: bool) -> LaunchReport {
        let FinalFailure { failure, endings, earlier, not_restarted } = failed;
        let stderr = match &failure.cause {
            Cause::Worker { stderr, .. } => stderr.clone().unwrap_or_default(),
            Cause::Stalled { .. } | Cause::Other { .. } => Vec::new(),
        };
        let earlier = earlier.iter().zip(0..).map(|(failure, restarts)| {
            format!("attempt {}: {}", base.saturating_add(restarts), failure.summary())
        });
        LaunchReport {
            stderr,
            after: Some(seconds(failure.after.0)),
            is_stall: matches!(failure.cause, Cause::Stalled { .. }),
            is_killed: failure.is_from_outside(),
            endings: lines_of(endings),
            earlier: earlier.collect(),
            not_restarted: not_restarted.map(|reason| reason.to_string()),
            is_hidden: !reports_for_all,
            ..LaunchReport::default()
        }
    }

    /// Returns the last few lines of the worker's stderr and their place in one line.
    pub(super) fn quote(&self) -> String {
        let last = &self.stderr[self.stderr.len().saturating_sub(LINES_OF_ERROR)..];
        let lines: Vec<_> = last.iter().map(|line| line.trim()).collect();
        (lines.join(" | ") + &self.source).trim_start().to_owned()
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
            lines.push(format!("  last lines of its stderr{}:", self.source));
            lines.extend(self.stderr.iter().map(|line| format!("    {line}")));
        }
        lines.extend(self.is_killed.then(|| OUT_OF_MEMORY.to_owned()));
        if let Some(after) = self.after.as_ref().filter(|_| !self.endings.is_empty()) {
            let [failed, workers] = match self.is_stall {
                true => ["stalled", "workers"],
                false => ["failed", "other workers"],
            };
            lines.push(format!("  {failed} {after} after the attempt started; the {workers}:"));
            lines.extend(self.endings.iter().map(|line| format!("    {line}")));
        }
        if self.max_restarts > 0 {
            let most = u64::from(self.max_restarts) + 1;
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

/// How a worker ended, except the first one that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// It exited when asked to.
    Asked,
    /// It was killed after the grace period.
    Killed,
    /// It exited by itself.
    Exited(i32),
    /// Another signal killed it.
    Signal(i32),
}

impl How {
    /// `is_asked`: whether this process had asked the worker to exit.
    pub(super) fn of(status: ExitStatus, is_asked: bool) -> How {
        match (status.code(), signal(status)) {
            (Some(code), _) => How::Exited(code),
            (None, Some(SIGTERM)) if is_asked => How::Asked,
            (None, signal) => How::Signal(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Asked => f.write_str("stopped with SIGTERM"),
            How::Killed => f.write_str("killed after the grace period"),
            How::Exited(0) => f.write_str("finished"),
            How::Exited(code) => write!(f, "failed afterwards with exit code {code}"),
            How::Signal(number) => write!(f, "failed afterwards with signal {number}"),
        }
    }
}

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ending {
    pub rank: u32,
    pub how: How,
}

/// How many ways of ending a report lists, and how many runs of ranks a line lists.
const WAYS: usize = 6;
const RUNS: usize = 8;

/// Returns one line for each way of ending: `stopped with SIGTERM: ranks 0-1, 3`.
fn lines_of(endings: &[Ending]) -> Vec<String> {
    let mut ranks: BTreeMap<How, Vec<u32>> = BTreeMap::new();
    for Ending { rank, how } in endings {
        ranks.entry(*how).or_default().push(*rank);
    }
    let others: usize = ranks.values().skip(WAYS).map(Vec::len).sum();
    let ways = ranks.into_iter().take(WAYS);
    let mut lines: Vec<_> =
        ways.map(|(how, ranks)| format!("{how}: {}", of_ranks(ranks))).collect();
    if others > 0 {
        lines.push(format!("failed afterwards in other ways: {others} more"));
    }
    lines
}

/// Returns the ranks that were killed, as `rank 4` or `ranks 0-1, 3`, or `None` if there are none.
pub(super) fn killed(endings: &[Ending]) -> Option<String> {
    let killed = endings.iter().filter(|ending| ending.how == How::Killed);
    let ranks: Vec<u32> = killed.map(|ending| ending.rank).collect();
    (!ranks.is_empty()).then(|| of_ranks(ranks))
}

/// Formats ranks as `rank 4` or `ranks 0-1, 3`.
pub(super) fn of_ranks(mut ranks: Vec<u32>) -> String {
    ranks.sort_unstable();
    ranks.dedup();
    let runs = runs_of_ranks(&ranks);
    let mut text = list_of_ranks(runs.iter().take(RUNS), ", ");
    let left_out: u32 = runs.iter().skip(RUNS).map(|(first, last)| last - first + 1).sum();
    if left_out > 0 {
        text += &format!(", and {left_out} more");
    }
    format!("{} {text}", if ranks.len() == 1 { "rank" } else { "ranks" })
}

/// Formats a status as `exit code 7` or `signal 9 (SIGKILL)`.
pub(super) fn status_text(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string().replacen("signal: ", "signal ", 1),
    }
}

/// Formats a duration for people.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60),
        _ => format!("{} h {} min", time.as_secs() / 3600, time.as_secs() / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restart::{Failure, NoRestart};

    #[test]
    fn a_report_has_what_the_errors_own_line_has_not() {
        let after = crate::job::Time(Duration::from_millis(3200));
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
        let failed = FinalFailure { failure, endings, earlier, not_restarted };
        let mut report = LaunchReport::of(&failed, 3, true);
        report.max_restarts = 3;
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
            let (earlier, max_restarts) = (earlier.to_vec(), 40);
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

    #[test]
    fn ranks_that_ended_in_the_same_way_share_a_line() {
        let all = [
            (4, How::Asked),
            (0, How::Asked),
            (1, How::Asked),
            (2, How::Killed),
            (5, How::Exited(3)),
        ];
        let endings = all.map(|(rank, how)| Ending { rank, how });
        let expected = [
            "stopped with SIGTERM: ranks 0-1, 4",
            "killed after the grace period: rank 2",
            "failed afterwards with exit code 3: rank 5",
        ];
        assert_eq!(lines_of(&endings), expected);
        assert_eq!(lines_of(&[]), [""; 0]);
    }

    #[test]
    fn thousands_of_ranks_fit_in_a_few_lines() {
        let endings: Vec<_> =
            (0..5000).map(|rank| Ending { rank: 2 * rank, how: How::Asked }).collect();
        assert_eq!(
            lines_of(&endings),
            ["stopped with SIGTERM: ranks 0, 2, 4, 6, 8, 10, 12, 14, and 4992 more"]
        );
        let codes: Vec<_> =
            (1..=9).map(|code| Ending { rank: 9, how: How::Exited(code) }).collect();
        assert_eq!(lines_of(&codes).len(), 7);
        assert_eq!(lines_of(&codes)[6], "failed afterwards in other ways: 3 more");
    }

    #[test]
    fn times_are_as_exact_as_a_person_needs() {
        let texts = [0.25, 59.94, 61.0, 7322.0].map(|time| seconds(Duration::from_secs_f64(time)));
        assert_eq!(texts, ["0.2 s", "59.9 s", "1 min 1 s", "2 h 2 min"]);
    }
}
