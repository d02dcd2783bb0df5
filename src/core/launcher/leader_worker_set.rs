//! Kubernetes' LeaderWorkerSet: one process per pod, one job per group of pods.
//!
//! The leader's name may not resolve before its pod runs. Based on documentation.

use crate::environment::{Environment, Variables, variables};
use crate::error::Error;
use crate::launcher::sample::Sample;
use crate::launcher::{Advice, LauncherSpec, Marker, MpiFamily, Nested, Starts, first_set};
use crate::value::placement::Placement;

variables! {
    /// The variables of a pod of a group.
    pub struct LeaderWorkerSetVars {
        "[LeaderWorkerSet: labels, annotations and environment variables](https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/)" {
            LEADER = "LWS_LEADER_ADDRESS" => leader: Option<String>, "the leader's name";
            SIZE = "LWS_GROUP_SIZE" => size: u32, "pods of the group, the leader among them";
            INDEX = "LWS_WORKER_INDEX" => index: Option<u32>, "the pod's number, 0 for the leader; since version 0.6";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    name: "leader-worker-set",
    title: "LeaderWorkerSet",
    variables: &[LeaderWorkerSetVars::VARIABLES],
    marker: |environment| first_set(environment, &[LEADER, SIZE, INDEX]),
    shared_marker: None,
    read,
    starts: Starts::OnePerNode,
    advice: Advice { start: "start the process in a pod of a LeaderWorkerSet", ..Advice::PLAIN },
    mpi: MpiFamily::None,
    nested: Nested::PLAIN,
    samples: &[Sample {
        title: "LeaderWorkerSet",
        set: |process, vars| {
            vars.set(LEADER, format!("vllm-{}.vllm.default", process.job));
            vars.set(SIZE, process.nodes);
            vars.set(INDEX, process.node);
        },
    }],
};

fn read(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let vars: LeaderWorkerSetVars = marker.read(environment)?;
    let index = match vars.index {
        None if vars.size != 1 => {
            let remedy = "use version 0.6 of LeaderWorkerSet or later, or set it in the pods' template from the label \
                          leaderworkerset.sigs.k8s.io/worker-index";
            return Err(marker.missing_with(environment, INDEX, remedy));
        }
        index => index.unwrap_or_default(),
    };
    let placement = Placement::one_per_node(marker.launcher, (INDEX, index), (SIZE, vars.size))?;
    placement.with_master(marker, LEADER, vars.leader.as_deref())
}
