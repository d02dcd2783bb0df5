//! The report of a stall for programs.

use std::io::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::report::Stall;
use super::sight::{Doing, Sight};
use crate::launch::error::LaunchError;
use crate::launch::log_file::Folder;

/// The file in the folder of the workers' output.
const FILE: &str = "stall.json";

/// Writes the report to the folder of the workers' output.
pub(super) fn write(stall: &Stall, folder: &Folder) -> Result<(), LaunchError> {
    let mut file = folder.create(FILE)?;
    // All keys are texts, so that every report can be written as JSON.
    let mut json = serde_json::to_vec_pretty(&Json::of(stall)).unwrap_or_default();
    json.push(b'\n');
    let error = |error| LaunchError::LogDir { path: folder.path().join(FILE), error };
    file.write_all(&json).map_err(error)
}

#[derive(Serialize)]
struct Json<'a> {
    silent_seconds: f64,
    /// The ranks that differ from the most.
    differ: Vec<u32>,
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
    fn of(stall: &Stall) -> Json<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_which_ranks_differ_and_what_each_is_doing() {
        let odd = Sight { doing: Doing::Stopped, ..Sight::of_rank(2) };
        let sights = vec![odd, Sight::of_rank(0), Sight::of_rank(1)];
        let stall = Stall::new(Duration::from_secs(5), sights);
        let json = serde_json::to_value(Json::of(&stall)).unwrap();
        assert_eq!(json["differ"], serde_json::json!([2]));
        let states = [0, 1, 2].map(|rank| json["ranks"][rank]["state"].clone());
        assert_eq!(states, ["waits", "waits", "stopped"]);
    }
}
