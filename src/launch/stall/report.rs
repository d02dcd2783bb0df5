//! What is reported of a stalled job, before any of its workers is stopped: a text and a JSON file.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::process::ProcessState;
use super::{Doing, RankState};
use crate::error::LaunchError;
use crate::job::Time;
use crate::log_file::Folder;
use crate::report::{of_ranks, seconds};
use crate::tell;

/// How many ranks of those that are in the same place the text describes one by one.
const DESCRIBED: usize = 8;
/// How many places the summary names.
const SUMMARIZED: usize = 3;
/// How many Python frames the text shows.
const FRAMES: usize = 6;

/// A job that has stalled, with all its ranks that were running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    /// How long the job was silent.
    pub(super) timeout: Duration,
    /// The ranks that are in the same place, those that differ from the most first.
    pub(super) groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    activity: String,
    /// Whether these are the few that differ.
    pub(super) differs: bool,
    pub(super) ranks: Vec<RankState>,
}

impl Stall {
    pub(crate) fn new(timeout: Duration, mut ranks: Vec<RankState>) -> Stall {
        ranks.sort_by_key(|state| state.rank);
        compare_known_channels(&mut ranks);
        let different = different(&ranks);
        let mut groups: Vec<Group> = Vec::new();
        for (state, differs) in ranks.into_iter().zip(different) {
            let key = |state: &RankState| (state.now.activity(), state.stack.clone());
            let same = groups.iter_mut().find(|group| {
                let first = group.ranks.first();
                group.differs == differs && first.map(key) == Some(key(&state))
            });
            match same {
                Some(group) => group.ranks.push(state),
                None => groups.push(Group {
                    activity: state.now.activity(),
                    differs,
                    ranks: vec![state],
                }),
            }
        }
        // The odd ones are the news.
        groups.sort_by_key(|group| (!group.differs, group.ranks.len()));
        Stall { timeout, groups }
    }

    /// Returns the host of the lowest rank.
    pub(crate) fn host(&self) -> String {
        let all = self.groups.iter().flat_map(|group| &group.ranks);
        all.min_by_key(|state| state.rank).map_or_else(String::new, |state| state.host.clone())
    }

    /// Returns in one line which ranks differ from the others: `rank 2 on nodeB: stopped by a
    /// signal; ranks 0-1, 3: waiting in futex`. Empty if all are in the same place.
    pub(crate) fn summary(&self) -> String {
        let text = |group: &Group| {
            let ranks = of_ranks(group.ranks.iter().map(|state| state.rank).collect());
            let on = match &group.ranks[..] {
                [one] => format!(" on {}", one.host),
                _ => String::new(),
            };
            let frame = group.ranks.first().and_then(|state| state.stack.first());
            let frame = frame.map_or(String::new(), |frame| format!(", {frame}"));
            format!("{ranks}{on}: {}{frame}", group.activity)
        };
        let mut texts: Vec<_> = self.groups.iter().take(SUMMARIZED).map(text).collect();
        if self.groups.len() > SUMMARIZED {
            texts.push("the others elsewhere".to_owned());
        }
        texts.join("; ")
    }

    /// Reports the stall on stderr, and in the folder of the workers' output if they have one.
    pub(crate) fn publish(&self, folder: Option<&Folder>) {
        tell(&self.text());
        if let Some(folder) = folder
            && let Err(error) = write_json(self, folder)
        {
            tell(&format!("the report of the stall has no file: {error}"));
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![format!(
            "the job has stalled: no rank has written anything or touched its heartbeat file for {}",
            seconds(self.timeout)
        )];
        for group in &self.groups {
            let ranks = of_ranks(group.ranks.iter().map(|state| state.rank).collect());
            let differs = match (group.differs, group.ranks.len()) {
                (false, _) => "",
                (true, 1) => " differs from the others",
                (true, _) => " differ from the others",
            };
            lines.push(format!("  {ranks}{differs}: {}", group.activity));
            lines.extend(
                group.ranks.iter().take(DESCRIBED).map(|state| format!("    {}", one(state))),
            );
            if group.ranks.len() > DESCRIBED {
                lines.push(format!("    ... {} more", group.ranks.len() - DESCRIBED));
            }
            let stack = group.ranks.first().map_or(&[][..], |state| &state.stack);
            lines.extend(stack.iter().take(FRAMES).map(|frame| format!("      in {frame}")));
        }
        lines.join("\n")
    }
}

/// Describes a rank in one line.
fn one(state: &RankState) -> String {
    let RankState { rank, host, written, touched, line, process, now, cpu, window, .. } = state;
    let ProcessState { command, .. } = now;
    let written = match written {
        Some(written) => format!("last output {} ago", seconds(written.0)),
        None => "no output".to_owned(),
    };
    let touched = touched
        .map_or(String::new(), |touched| format!(", last heartbeat {} ago", seconds(touched.0)));
    let cpu = cpu.map_or(String::new(), |cpu| {
        format!(", CPU time {:.1} of {:.1} s", cpu.0.as_secs_f64(), window.0.as_secs_f64())
    });
    let line = line.as_ref().map_or(String::new(), |line| format!("; last line: {line}"));
    format!("rank {rank} on {host}, process {process} ({command}): {written}{touched}{cpu}{line}")
}

/// Forgets the wait channels of all ranks in a call, if that of one of them is not known: such a
/// rank does not differ from the others.
fn compare_known_channels(ranks: &mut [RankState]) {
    let activity = |state: &RankState| (state.now.doing, state.now.call.clone());
    let unknown: BTreeSet<_> =
        ranks.iter().filter(|state| state.now.channel.is_none()).map(activity).collect();
    for state in ranks {
        if unknown.contains(&activity(state)) {
            state.now.channel = None;
        }
    }
}

/// Returns for each rank whether it differs from the most.
///
/// A rank that is stopped, asleep or in a loop holds up those that wait for it. If all wait, only
/// their places tell, and of those the Python frames tell more: of ranks in one collective, some
/// wait for the network and others for a process on their host.
fn different(ranks: &[RankState]) -> Vec<bool> {
    let by_doing = odd(ranks, |state| state.now.doing, |doing| std::cmp::Reverse(*doing), false);
    let by_doing = by_doing
        .unwrap_or_else(|| ranks.iter().map(|state| state.now.doing == Doing::Stopped).collect());
    if by_doing.contains(&true) {
        return by_doing;
    }
    let none = vec![false; ranks.len()];
    match ranks.iter().all(|state| !state.stack.is_empty()) {
        true => odd(ranks, |state| state.stack.clone(), |_| (), true),
        false => odd(ranks, |state| state.now.activity(), |_| (), true),
    }
    .unwrap_or(none)
}

/// Returns for each rank whether its key differs from that of the most ranks, if those are enough.
/// Of keys with as many ranks, the one with the highest `weight` counts as the usual one.
///
/// `strictly`: they must be more than the others, not only as many.
fn odd<K: PartialEq, W: Ord>(
    ranks: &[RankState],
    key: impl Fn(&RankState) -> K,
    weight: impl Fn(&K) -> W,
    strictly: bool,
) -> Option<Vec<bool>> {
    let count = |wanted: &K| ranks.iter().filter(|state| key(state) == *wanted).count();
    let usual = ranks.iter().map(&key).max_by_key(|key| (count(key), weight(key)))?;
    let others = ranks.len() - count(&usual);
    let is_clear = if strictly { others < count(&usual) } else { others <= count(&usual) };
    is_clear.then(|| ranks.iter().map(|state| key(state) != usual).collect())
}

/// The file in the folder of the workers' output.
const FILE: &str = "stall.json";

/// Writes the report to the folder of the workers' output.
fn write_json(stall: &Stall, folder: &Folder) -> Result<(), LaunchError> {
    let mut file = folder.create(FILE)?;
    // All keys are texts, so that every report can be written as JSON.
    let mut json = serde_json::to_vec_pretty(&Json::of(stall)).unwrap_or_default();
    json.push(b'\n');
    let error = |error| LaunchError::LogDir { path: folder.path().join(FILE), error };
    file.write_all(&json).map_err(error)
}

#[derive(serde::Serialize)]
struct Json<'a> {
    silent_seconds: f64,
    /// The ranks that differ from the most.
    differ: Vec<u32>,
    ranks: Vec<JsonRank<'a>>,
}

/// A rank, and whether it differs from the most.
struct JsonRank<'a>(&'a RankState, bool);

impl Serialize for JsonRank<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let JsonRank(state, differs) = self;
        let seconds = |time: Option<Time>| time.map(|time| time.0.as_secs_f64());
        let mut rank = to.serialize_map(None)?;
        rank.serialize_entry("rank", &state.rank)?;
        rank.serialize_entry("host", &state.host)?;
        rank.serialize_entry("process", &state.process)?;
        rank.serialize_entry("command", &state.now.command)?;
        rank.serialize_entry("differs", differs)?;
        rank.serialize_entry("state", &state.now.doing)?;
        rank.serialize_entry("system_call", &state.now.call)?;
        rank.serialize_entry("wait_channel", &state.now.channel)?;
        rank.serialize_entry("output_age_seconds", &seconds(state.written))?;
        rank.serialize_entry("heartbeat_age_seconds", &seconds(state.touched))?;
        rank.serialize_entry("last_line", &state.line)?;
        rank.serialize_entry("cpu_seconds", &seconds(state.cpu))?;
        rank.serialize_entry("cpu_window_seconds", &state.window.0.as_secs_f64())?;
        rank.serialize_entry("python_stack", &state.stack)?;
        rank.end()
    }
}

impl Json<'_> {
    fn of(stall: &Stall) -> Json<'_> {
        let all = stall.groups.iter();
        let all =
            all.flat_map(|group| group.ranks.iter().map(|rank| JsonRank(rank, group.differs)));
        let mut ranks: Vec<_> = all.collect();
        ranks.sort_by_key(|JsonRank(state, _)| state.rank);
        let differ = ranks.iter().filter(|JsonRank(_, differs)| *differs);
        let differ = differ.map(|JsonRank(state, _)| state.rank).collect();
        Json { silent_seconds: stall.timeout.as_secs_f64(), differ, ranks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(rank: u32, doing: Doing, call: &str) -> RankState {
        let mut state = RankState::waiting(rank);
        (state.now.doing, state.now.call) = (doing, Some(call.to_owned()));
        state
    }

    /// The ranks that differ from the most.
    fn differ(ranks: &[RankState]) -> Vec<u32> {
        let stall = Stall::new(Duration::from_secs(5), ranks.to_vec());
        let odd = stall.groups.iter().filter(|group| group.differs);
        let mut ranks: Vec<_> =
            odd.flat_map(|group| group.ranks.iter().map(|state| state.rank)).collect();
        ranks.sort_unstable();
        ranks
    }

    #[test]
    fn the_odd_rank_comes_first_and_the_others_share_a_line() {
        let waits = |rank| state(rank, Doing::Waits, "futex");
        let ranks = vec![waits(3), state(2, Doing::Stopped, "futex"), waits(0), waits(1)];
        let stall = Stall::new(Duration::from_secs(5), ranks);
        let line = |rank: u32| {
            let (host, process) = (rank / 2, rank + 100);
            format!(
                "    rank {rank} on node{host}, process {process} (python): last output 5.0 s ago, \
                 CPU time 0.1 of 5.0 s; last line: step 7"
            )
        };
        let expected = [
            "the job has stalled: no rank has written anything or touched its heartbeat file for 5.0 s"
                .to_owned(),
            "  rank 2 differs from the others: stopped by a signal".to_owned(),
            line(2),
            "  ranks 0-1, 3: waiting in futex".to_owned(),
            line(0),
            line(1),
            line(3),
        ];
        assert_eq!(stall.text(), expected.join("\n"));
        let summary = "rank 2 on node1: stopped by a signal; ranks 0-1, 3: waiting in futex";
        assert_eq!(stall.summary(), summary);
    }

    #[test]
    fn the_rank_that_does_not_wait_is_the_odd_one() {
        let all = |doing: &[Doing]| -> Vec<RankState> {
            (0..).zip(doing).map(|(rank, doing)| state(rank, *doing, "x")).collect()
        };
        use Doing::{Disk, Runs, Sleeps, Stopped, Waits};
        // Of two, the one that waits is as it should be.
        assert_eq!(differ(&all(&[Waits, Sleeps])), [1]);
        assert_eq!(differ(&all(&[Runs, Waits])), [0]);
        assert_eq!(differ(&all(&[Disk, Waits, Waits])), [0]);
        // MPI polls while it waits.
        assert_eq!(differ(&all(&[Runs, Sleeps, Runs])), [1]);
        assert_eq!(differ(&all(&[Sleeps, Runs])), [0]);
        // One that is stopped is named whatever the others do.
        assert_eq!(differ(&all(&[Stopped, Runs, Sleeps, Waits, Disk])), [0]);
        assert_eq!(differ(&all(&[Runs, Sleeps, Waits, Disk])), [0; 0]);
        assert_eq!(differ(&all(&[Waits, Waits])), [0; 0]);
    }

    #[test]
    fn if_all_wait_the_frame_or_the_call_of_the_odd_one_differs() {
        let mut ranks: Vec<_> = (0..4).map(|rank| state(rank, Doing::Waits, "futex")).collect();
        assert_eq!(differ(&ranks), [0; 0]);
        ranks[3].now.call = Some("read".to_owned());
        assert_eq!(differ(&ranks), [3]);
        // Of two hosts, those that speak to the other host wait elsewhere.
        ranks[1].now.call = Some("read".to_owned());
        assert_eq!(differ(&ranks), [0; 0]);
        for state in &mut ranks {
            state.stack = vec!["all_reduce (sum.py:3)".to_owned()];
        }
        assert_eq!(differ(&ranks), [0; 0]);
        ranks[2].stack = vec!["get (queue.py:1)".to_owned()];
        assert_eq!(differ(&ranks), [2]);
    }

    #[test]
    fn a_rank_whose_wait_channel_is_not_known_does_not_differ_for_that() {
        let mut ranks: Vec<_> = (0..4).map(|rank| state(rank, Doing::Waits, "futex")).collect();
        for state in &mut ranks[1..] {
            state.now.channel = Some("futex_do_wait".to_owned());
        }
        assert_eq!(differ(&ranks), [0; 0]);
        ranks[2] = state(2, Doing::Sleeps, "clock_nanosleep");
        let stall = Stall::new(Duration::from_secs(5), ranks);
        let expected =
            "rank 2 on node1: sleeping in clock_nanosleep; ranks 0-1, 3: waiting in futex";
        assert_eq!(stall.summary(), expected);
    }

    #[test]
    fn thousands_of_ranks_fit_on_a_screen() {
        let ranks = (0..4000).map(|rank| state(rank, Doing::Waits, "futex")).collect();
        let text = Stall::new(Duration::from_secs(60), ranks).text();
        assert!(text.contains("  ranks 0-3999: waiting in futex\n"), "{text}");
        assert!(text.ends_with("\n    ... 3992 more"), "{text}");
    }

    #[test]
    fn programs_read_which_ranks_differ_and_what_each_is_doing() {
        let odd = state(2, Doing::Stopped, "futex");
        let ranks = vec![odd, RankState::waiting(0), RankState::waiting(1)];
        let stall = Stall::new(Duration::from_secs(5), ranks);
        let json = serde_json::to_value(Json::of(&stall)).unwrap();
        assert_eq!(json["differ"], serde_json::json!([2]));
        let states = [0, 1, 2].map(|rank| json["ranks"][rank]["state"].clone());
        assert_eq!(states, ["waits", "waits", "stopped"]);
    }
}
