//! Google Cloud's Vertex AI: custom training, one process per replica.
//!
//! If `RANK` and `WORLD_SIZE` are also set, they are detected first and have the same values. Based
//! on documentation.

use crate::launcher::prelude::*;
use crate::value::host::Host;
use crate::value::json::Json;

variables! {
    /// The variables of a training cluster.
    pub struct VertexVars {
        "[Vertex AI: CLUSTER_SPEC](https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables)" {
            SPEC_TEXT = "CLUSTER_SPEC" => cluster: String, "JSON: the hosts of each worker pool, and which of them this is";
            JOB = "CLOUD_ML_JOB_ID" => job: Option<String>, "the job's identity";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[VertexVars::VARIABLES],
    // Other programs may use a variable of this name.
    marker: |environment| {
        let is_own = |text: &str| environment.is_set(JOB) || text.contains("workerpool");
        environment.first_set(&[SPEC_TEXT]).filter(|_| {
            environment.get_str(SPEC_TEXT).map_or(true, |text| text.is_some_and(is_own))
        })
    },
    start: "start the process as a replica of a custom job",
    samples: &[Sample::of(|process, vars| {
        // The first pool has one replica, the second all others.
        let host = |pool: u32, index: u32| {
            format!("\"cmle-training-workerpool{pool}-{}-{index}:2222\"", process.job)
        };
        let others: Vec<_> = (1..process.nodes).map(|node| host(1, node - 1)).collect();
        let second = format!(",\"workerpool1\":[{}]", others.join(","));
        let second = if others.is_empty() { "" } else { &second };
        let (pool, index) = if process.node == 0 { (0, 0) } else { (1, process.node - 1) };
        let cluster = format!("{{\"workerpool0\":[{}]{second}}}", host(0, 0));
        let task = format!("{{\"type\":\"workerpool{pool}\",\"index\":{index},\"trial\":\"\"}}");
        vars.set(
            SPEC_TEXT,
            format!("{{\"cluster\":{cluster},\"environment\":\"cloud\",\"task\":{task}}}"),
        );
        vars.set(JOB, 4_711_000 + process.job);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: VertexVars = marker.read()?;
    let malformed = |what: String| marker.refuse(what, SPEC_TEXT, &vars.cluster);
    let spec = Json::parse(&vars.cluster).map_err(|error| malformed(error.to_string()))?;
    let Some((pool, index)) = task(&spec) else {
        return Err(malformed("no task with the type and index of a worker pool".to_owned()));
    };
    if pool >= POOLS_OF_RANKS {
        let what = format!(
            "the replicas of {POOL}{pool} are parameter servers, reduction servers or evaluators"
        );
        return Err(marker.not_a_rank(&what, SPEC_TEXT, &vars.cluster));
    }
    let (mut rank, mut all) = (None, Vec::new());
    for number in 0..POOLS_OF_RANKS {
        let name = format!("{POOL}{number}");
        let hosts = spec.get("cluster").and_then(|cluster| cluster.get(&name)?.texts());
        let hosts = hosts.unwrap_or_default();
        if number == pool && (index as usize) < hosts.len() {
            rank = u32::try_from(all.len()).ok().and_then(|before| before.checked_add(index));
        }
        all.extend(hosts);
    }
    let rank = rank.ok_or_else(|| malformed("the task is not in its worker pool".to_owned()))?;
    let size = u32::try_from(all.len()).unwrap_or(u32::MAX);
    let mut placement = marker.node(by(SPEC_TEXT, rank), by(SPEC_TEXT, size))?;
    if let Some(first) = all.first() {
        let refused = |error| marker.refuse(error, SPEC_TEXT, first);
        let (host, _) = Host::parse_with_port(first).map_err(refused)?;
        let source = format!("{SPEC_TEXT}: the first host of the first worker pool");
        placement.master_addr = Some(Sourced::new(host, source));
    }
    // The port of a replica is TensorFlow's, so it is dropped.
    let names = all.iter().map(|host| host.rsplit_once(':').map_or(*host, |(name, _)| name));
    Ok(placement.with_hosts(SPEC_TEXT, names).with_job(JOB, vars.job))
}

/// How the names of worker pools begin.
const POOL: &str = "workerpool";
/// The first pool has the primary replica, and the second the other workers.
const POOLS_OF_RANKS: u32 = 2;

/// Returns the worker pool of this replica, and its number in the pool.
fn task(spec: &Json) -> Option<(u32, u32)> {
    let task = spec.get("task")?;
    let pool = task.get("type")?.text()?.strip_prefix(POOL)?.parse().ok()?;
    Some((pool, task.get("index")?.number()?))
}
