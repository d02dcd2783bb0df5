//! Kubernetes' LeaderWorkerSet: one process per pod, one job per group of pods.
//!
//! The leader's name may not resolve before its pod runs. Based on documentation.

use crate::launcher::prelude::*;

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
    variables: &[LeaderWorkerSetVars::VARIABLES],
    marker: |environment| environment.first_set(&[LEADER, SIZE, INDEX]),
    start: "start the process in a pod of a LeaderWorkerSet",
    samples: &[Sample::of(|process, vars| {
        vars.set(LEADER, format!("vllm-{}.vllm.default", process.job));
        vars.set(SIZE, process.nodes);
        vars.set(INDEX, process.node);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: LeaderWorkerSetVars = marker.read()?;
    let index = match vars.index {
        None if vars.size != 1 => {
            let remedy = "use version 0.6 of LeaderWorkerSet or later, or set it in the pods' template from the label \
                          leaderworkerset.sigs.k8s.io/worker-index";
            return Err(marker.missing_with(INDEX, remedy));
        }
        index => index.unwrap_or_default(),
    };
    let placement = marker.node(by(INDEX, index), by(SIZE, vars.size))?;
    placement.with_master(LEADER, vars.leader.as_deref())
}
