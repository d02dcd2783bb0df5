//! RunPod's Instant Clusters: one process per pod.
//!
//! On RunPod, `WORLD_SIZE` is the number of all GPUs, and `RANK` is not set. Users set `NODE_RANK`
//! and `NUM_NODES` elsewhere too: see [`user`](crate::launcher::user). Based on documentation.

use crate::launcher::prelude::*;

variables! {
    /// The variables of a cluster's pod.
    pub struct RunPodVars {
        "[RunPod: Instant Clusters, environment variables](https://docs.runpod.io/instant-clusters/configuration)" {
            NODE_RANK = "NODE_RANK" => node_rank: u32, "the pod's number";
            NODES = "NUM_NODES" => nodes: u32, "pods of the cluster";
            PRIMARY = "PRIMARY_ADDR" => primary: Option<String>, "pod 0's address; also in `MASTER_ADDR`";
            TRAINERS = "NUM_TRAINERS" => trainers: Option<String>, "GPUs of each pod";
        }
        "[RunPod: environment variables](https://docs.runpod.io/pods/references/environment-variables)" {
            POD = "RUNPOD_POD_ID" => pod: Option<String>, "the pod's identity; shows RunPod, also outside of clusters";
        }
    }
}

/// Returns the variable that identifies a pod of a cluster. The node's number and the number of
/// nodes do not: only RunPod's own names show RunPod.
pub(super) fn marker(environment: &Environment) -> Option<&'static str> {
    let is_node = || [NODE_RANK, NODES].iter().all(|name| environment.is_set(name));
    let own = || environment.first_set(&[TRAINERS, POD]).filter(|_| is_node());
    environment.first_set(&[PRIMARY]).or_else(own)
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[RunPodVars::VARIABLES],
    marker,
    start: "start the process in a pod of an Instant Cluster",
    may_inherit: &[],
    outside: &[POD],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([NODE_RANK, NODES], [process.node, process.nodes]);
        vars.set(TRAINERS, 8);
        vars.set("WORLD_SIZE", 8 * u64::from(process.nodes));
        vars.set(PRIMARY, process.address(0));
        vars.set("MASTER_ADDR", process.address(0));
        vars.set("MASTER_PORT", 29400);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: RunPodVars = marker.read()?;
    let placement = marker.node(by(NODE_RANK, vars.node_rank), by(NODES, vars.nodes))?;
    placement.with_workers(TRAINERS, vars.trainers).with_master(PRIMARY, vars.primary.as_deref())
}
