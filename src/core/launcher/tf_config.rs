//! TensorFlow's `TF_CONFIG`, which platforms such as Kubeflow's TFJob set, or a script.
//!
//! The ranks are the chief and the workers. Parameter servers and evaluators train nothing, and
//! have no rank.

use std::collections::BTreeMap;

use crate::error::Reason;
use crate::launcher::prelude::*;
use crate::value::host::Host;
use crate::value::json::Json;

variables! {
    /// TensorFlow's variable.
    pub struct TfConfigVars {
        "[multi-worker training](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras)" {
            CONFIG = "TF_CONFIG" => config: String, "JSON: where each task listens, and which of them this process is";
        }
    }
}

/// What names the tasks of each type.
const CLUSTER: &str = "cluster";
/// The types of tasks that are ranks, in rank order. Earlier versions call the chief a master.
const OF_RANKS: [&str; 3] = ["chief", "master", "worker"];

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[TfConfigVars::VARIABLES],
    marker: |environment| {
        let is_cluster = |text: &str| !matches!(Json::parse(text), Ok(json) if is_by_itself(&json));
        environment.first_set(&[CONFIG]).filter(|_| environment.text(CONFIG).is_none_or(is_cluster))
    },
    starts: Starts::Slots,
    start: "set TF_CONFIG to the process's own task",
    one_per_node: "one task of each host in TF_CONFIG",
    // A configuration of one process.
    outside: &[CONFIG],
    samples: &[Sample::of(|process, vars| {
        let endpoint = |rank: usize| {
            let place = process.places[rank];
            format!("\"{}:{}\"", process.name(place.node), 2222 + place.local_rank)
        };
        let workers: Vec<_> = (1..process.places.len()).map(endpoint).collect();
        let (task, index) = match process.rank {
            0 => ("chief", 0),
            rank => ("worker", rank - 1),
        };
        let (chief, workers) = (endpoint(0), workers.join(","));
        let cluster = format!("{{\"chief\":[{chief}],\"worker\":[{workers}]}}");
        let task = format!("{{\"type\":\"{task}\",\"index\":{index}}}");
        vars.set(CONFIG, format!("{{\"cluster\":{cluster},\"task\":{task}}}"));
    })],
    ..LauncherSpec::plain(read)
};

/// Returns whether a configuration has no cluster: TensorFlow takes this for a process by itself. A
/// task with a number above 0 is none, and Kubeflow's `sparseCluster` lists only some tasks.
fn is_by_itself(config: &Json) -> bool {
    let nothing = Json::Object(BTreeMap::new());
    let number = config.get("task").and_then(|task| task.get("index")?.number());
    matches!(config, Json::Object(_))
        && config.get(CLUSTER).is_none_or(|it| *it == nothing)
        && config.get("sparseCluster").is_none()
        && number.unwrap_or(0) == 0
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: TfConfigVars = marker.read()?;
    let text = &vars.config;
    let malformed = |why: String| marker.refuse(why, CONFIG, text);
    let config = Json::parse(text).map_err(|error| malformed(error.to_string()))?;
    let Some(Json::Object(tasks)) = config.get(CLUSTER) else {
        return Err(malformed(format!("not an object of JSON with the object {CLUSTER}")));
    };
    let task = |name: &str| config.get("task").and_then(|task| task.get(name));
    let (kind, index) = (task("type").and_then(Json::text), task("index").and_then(Json::number));
    let (Some(kind), Some(index)) = (kind, index) else {
        return Err(malformed("no task with a type and an index".to_owned()));
    };
    if !OF_RANKS.contains(&kind) {
        let why = format!("a task of type {kind} is not a rank");
        return Err(marker.not_a_rank(&why, CONFIG, text));
    }
    let (mut rank, mut endpoints) = (None, Vec::new());
    for of_rank in OF_RANKS {
        let Some(list) = tasks.get(of_rank) else { continue };
        let not_a_list = || malformed(format!("{of_rank}: not a list of hosts"));
        let list = list.texts().ok_or_else(not_a_list)?;
        if of_rank == kind && (index as usize) < list.len() {
            rank = u32::try_from(endpoints.len()).ok().and_then(|before| before.checked_add(index));
        }
        endpoints.extend(list);
    }
    let rank = rank.ok_or_else(|| malformed(format!("{kind} {index} is not in the cluster")))?;
    let size = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
    let mut placement = marker.place(by(CONFIG, rank), by(CONFIG, size))?;
    let mut ranks = Vec::new();
    for endpoint in &endpoints {
        let refused = |error| malformed(format!("{endpoint:?} is {}", Reason::from(error)));
        let (host, port) = Host::parse_with_port(endpoint).map_err(refused)?;
        ranks.push((host.to_string(), port.map_or(0, |port| port.get().into())));
        if placement.master_addr.is_none() {
            let source = format!("{CONFIG}: the first task");
            placement.master_port = by(source.clone(), port);
            placement.master_addr = Some(Sourced::new(host, source));
        }
    }
    placement.with_roster(CONFIG, &ranks)
}
