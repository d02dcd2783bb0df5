//! The file in the folder of the workers' output that has all ranks, for programs.

use std::time::Duration;

use serde::Serialize;

use super::Stall;
use crate::launch::log_file::Folder;
use crate::launch::stall::sight::{Doing, Sight};

const FILE: &str = "stall.json";

impl Stall {
    pub(super) fn write(&self, folder: &Folder) -> Result<(), crate::launch::LaunchError> {
        use std::io::Write as _;
        let mut file = folder.create(FILE)?;
        // What is written has no map with other keys than texts.
        let mut json = serde_json::to_vec_pretty(&Json::of(self)).unwrap_or_default();
        json.push(b'\n');
        file.write_all(&json).map_err(|error| crate::launch::LaunchError::LogDir {
            path: folder.path().join(FILE),
            error,
        })
    }
}

/// The file for programs.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    silent_seconds: f64,
    /// The ranks that differ from the most.
    pub(super) differ: Vec<u32>,
    ranks: Vec<JsonRank<'a>>,
}

#[derive(Serialize)]
struct JsonRank<'a> {
    rank: u32,
    host: &'a str,
    process: u32,
    command: &'a str,
    differs: bool,
    state: Doing,
    system_call: Option<&'a str>,
    wait_channel: Option<&'a str>,
    output_age_seconds: Option<f64>,
    heartbeat_age_seconds: Option<f64>,
    last_line: Option<&'a str>,
    cpu_seconds: Option<f64>,
    cpu_window_seconds: f64,
    python_stack: &'a [String],
}

impl Json<'_> {
    pub(super) fn of(stall: &Stall) -> Json<'_> {
        let all = stall.groups.iter();
        let all = all.flat_map(|group| group.ranks.iter().map(|sight| (group.differs, sight)));
        let mut ranks: Vec<_> = all.map(|(differs, sight)| JsonRank::of(differs, sight)).collect();
        ranks.sort_by_key(|rank| rank.rank);
        let differ = ranks.iter().filter(|rank| rank.differs).map(|rank| rank.rank).collect();
        Json { silent_seconds: stall.timeout.as_secs_f64(), differ, ranks }
    }
}

impl JsonRank<'_> {
    fn of(differs: bool, sight: &Sight) -> JsonRank<'_> {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        JsonRank {
            rank: sight.rank,
            host: &sight.host,
            process: sight.process,
            command: &sight.command,
            differs,
            state: sight.doing,
            system_call: sight.call.as_deref(),
            wait_channel: sight.channel.as_deref(),
            output_age_seconds: seconds(sight.written),
            heartbeat_age_seconds: seconds(sight.touched),
            last_line: sight.line.as_deref(),
            cpu_seconds: seconds(sight.cpu),
            cpu_window_seconds: sight.window.as_secs_f64(),
            python_stack: &sight.stack,
        }
    }
}
