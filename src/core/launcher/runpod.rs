//! RunPod's Instant Clusters: one process per pod.
//!
//! On RunPod, `WORLD_SIZE` is the number of all GPUs, and `RANK` is not set. Based on
//! documentation.

use crate::launcher::prelude::*;

variables! {
    /// The variables of a cluster's pod.
    pub struct RunPodVars {
        "[RunPod: Instant Clusters, environment variables](https://docs.runpod.io/instant-clusters)" {
            NODE_RANK = "NODE_RANK" => node_rank: u32, "the pod's number";
            NODES = "NUM_NODES" => nodes: u32, "pods of the cluster";
            PRIMARY = "PRIMARY_ADDR" => primary: Option<String>, "pod 0's address; also in `MASTER_ADDR`";
            TRAINERS = "NUM_TRAINERS" => trainers: Option<String>, "GPUs of each pod";
        }
    }
}

/// Returns the variable that identifies a pod of a cluster. Other platforms also use two of the
/// names, which count only together.
pub(super) fn marker(environment: &Environment) -> Option<&'static str> {
    let pair = || first_set(environment, &[NODE_RANK]).filter(|_| environment.is_set(NODES));
    first_set(environment, &[PRIMARY]).or_else(pair)
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[RunPodVars::VARIABLES],
    marker,
    read,
    starts: Starts::OnePerNode,
    advice: Advice { start: "start the process in a pod of an Instant Cluster", ..Advice::PLAIN },
    mpi: MpiFamily::None,
    nested: Nested { may_inherit: &[], ..Nested::PLAIN },
    samples: &[Sample {
        title: "RunPod",
        set: |process, vars| {
            vars.set_all([NODE_RANK, NODES], [process.node, process.nodes]);
            vars.set(TRAINERS, 8);
            vars.set("WORLD_SIZE", 8 * u64::from(process.nodes));
            vars.set(PRIMARY, process.address(0));
            vars.set("MASTER_ADDR", process.address(0));
            vars.set("MASTER_PORT", 29400);
        },
    }],
};

fn read(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let vars: RunPodVars = marker.read(environment)?;
    let placement = marker.node(by(NODE_RANK, vars.node_rank), by(NODES, vars.nodes))?;
    placement.with_workers(TRAINERS, vars.trainers).with_master(PRIMARY, vars.primary.as_deref())
}
