//! What TensorFlow's `MultiWorkerMirroredStrategy` reads.

use super::peers::endpoints;
use super::{Set, Target, Value, addition};
use crate::cluster::info::ClusterInfo;
use crate::launcher::tf_config::CONFIG;

const PAGE: &str = "[multi-worker training](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras)";

pub(super) const SET: Set = Set {
    name: "tensorflow",
    title: "TensorFlow",
    note: "; needs the hosts of all ranks, from the launcher or by exec --meet; takes the ports from the master's on, one \
           for each rank of a node",
    page: PAGE,
    additions: &[addition(
        CONFIG,
        "JSON: where each rank listens, and which of them this process is",
        config,
    )],
    ..Set::PLAIN
};

fn config(info: &ClusterInfo) -> Value {
    // Hosts and ports contain nothing that JSON must escape.
    let workers: Vec<_> =
        endpoints(info, Target::TensorFlow)?.iter().map(|worker| format!("\"{worker}\"")).collect();
    let (workers, rank) = (workers.join(", "), info.rank());
    Ok(Some(format!(
        r#"{{"cluster": {{"worker": [{workers}]}}, "task": {{"type": "worker", "index": {rank}}}}}"#
    )))
}
