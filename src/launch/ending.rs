//! How the workers of an attempt ended, other than the first one that failed, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stop::SIGTERM;
use mpienv_core::seam::{list_of_ranks, runs_of_ranks};

pub(super) use mpienv_core::seam::signal;

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
pub(super) fn lines(endings: &[Ending]) -> Vec<String> {
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
        assert_eq!(lines(&endings), expected);
        assert_eq!(lines(&[]), [""; 0]);
    }

    #[test]
    fn thousands_of_ranks_fit_in_a_few_lines() {
        let endings: Vec<_> =
            (0..5000).map(|rank| Ending { rank: 2 * rank, how: How::Asked }).collect();
        assert_eq!(
            lines(&endings),
            ["stopped with SIGTERM: ranks 0, 2, 4, 6, 8, 10, 12, 14, and 4992 more"]
        );
        let codes: Vec<_> =
            (1..=9).map(|code| Ending { rank: 9, how: How::Exited(code) }).collect();
        assert_eq!(lines(&codes).len(), 7);
        assert_eq!(lines(&codes)[6], "failed afterwards in other ways: 3 more");
    }

    #[test]
    fn times_are_as_exact_as_a_person_needs() {
        let texts = [0.25, 59.94, 61.0, 7322.0].map(|time| seconds(Duration::from_secs_f64(time)));
        assert_eq!(texts, ["0.2 s", "59.9 s", "1 min 1 s", "2 h 2 min"]);
    }
}
