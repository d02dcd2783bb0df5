//! What is known of one rank at the moment of a stall.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire;

/// A rank of a job that has stalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankState {
    pub rank: u32,
    pub host: String,
    /// How long ago it wrote something, if it ever has.
    #[serde(with = "wire::optional_milliseconds")]
    pub written: Option<Duration>,
    /// How long ago it touched its heartbeat file, if it ever has.
    #[serde(with = "wire::optional_milliseconds")]
    pub touched: Option<Duration>,
    /// The last line that it wrote.
    pub line: Option<String>,
    /// The process that does its work.
    pub process: u32,
    pub command: String,
    pub doing: Doing,
    /// The system call in which its main thread is.
    pub call: Option<String>,
    /// The function of the kernel in which its main thread waits.
    pub channel: Option<String>,
    /// The CPU time that it has used in the last part of the silence.
    #[serde(with = "wire::optional_milliseconds")]
    pub cpu: Option<Duration>,
    /// The length of that part.
    #[serde(with = "wire::milliseconds")]
    pub window: Duration,
    /// The Python frames of its main thread, innermost first.
    pub stack: Vec<String>,
}

/// What a main thread is doing, in order of how ordinary it is in a job that waits for one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doing {
    /// It waits for something else, such as another rank.
    Waits,
    /// It uses the CPU, as some libraries do while they wait for other ranks.
    Runs,
    Unknown,
    /// It waits for a time to pass.
    Sleeps,
    /// It waits for a device.
    Disk,
    /// A signal or a debugger has stopped it.
    Stopped,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doing::Waits => "waiting",
            Doing::Runs => "running",
            Doing::Unknown => "in an unknown state",
            Doing::Sleeps => "sleeping",
            Doing::Disk => "waiting for a disk or a device",
            Doing::Stopped => "stopped by a signal",
        })
    }
}

#[cfg(test)]
impl RankState {
    /// A rank that waits.
    pub(crate) fn waiting(rank: u32) -> RankState {
        RankState {
            rank,
            host: format!("node{}", rank / 2),
            written: Some(Duration::from_secs(5)),
            touched: None,
            line: Some("step 7".to_owned()),
            process: 100 + rank,
            command: "python".to_owned(),
            doing: Doing::Waits,
            call: Some("futex".to_owned()),
            channel: None,
            cpu: Some(Duration::from_millis(100)),
            window: Duration::from_secs(5),
            stack: Vec::new(),
        }
    }
}

impl RankState {
    /// Returns where its main thread is: `waiting in futex (futex_do_wait)`.
    pub(super) fn activity(&self) -> String {
        let mut activity = self.doing.to_string();
        if self.doing == Doing::Stopped || self.doing == Doing::Runs {
            return activity;
        }
        if let Some(call) = &self.call {
            activity += &format!(" in {call}");
        }
        if let Some(channel) = &self.channel {
            activity += &format!(" ({channel})");
        }
        activity
    }
}
