//! Ranks set by a user, a script, `mpienv launch`, or an earlier `mpienv export`.
//!
//! Under any launcher, mpienv takes the master's address and port, `MASTER_ADDR` and `MASTER_PORT`,
//! unchanged.

mod node_rank;

use crate::launcher::prelude::*;
use crate::launcher::{MASTER, kubernetes, runpod};
use node_rank::{COUNT, NodesVars, of_process};

pub(super) use node_rank::of_node;

variables! {
    /// The variables of PyTorch's convention for a rank.
    pub struct UserVars {
        "[PyTorch: environment variable initialization](https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization)" {
            RANK = "RANK" => rank: Option<u32>, "rank";
            WORLD_SIZE = "WORLD_SIZE" => world_size: Option<u32>, "world size";
        }
        "[torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)" {
            LOCAL_RANK = "LOCAL_RANK" => local_rank: Option<u32>, "rank on this node";
            LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE" => local_world_size: Option<u32>, "ranks on this node";
        }
        "[Lightning: general purpose cluster](https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html)" {
            NODE_RANK = "NODE_RANK" => node_rank: Option<u32>, "the node's number";
        }
    }
}

variables! {
    /// The variables that DeepSpeed's launcher sets in addition.
    pub struct DeepSpeedVars {
        "[DeepSpeed: launch.py](https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py)" {
            LOCAL_SIZE = "LOCAL_SIZE" => local_size: u32, "ranks on this node";
            CROSS_RANK = "CROSS_RANK" => cross_rank: u32, "the node's number";
            CROSS_SIZE = "CROSS_SIZE" => cross_size: u32, "nodes of the job";
        }
    }
}

variables! {
    /// How many workers a pod should start, according to PAI's DLC and Kubeflow's PyTorchJob.
    pub struct PodVars {
        "[Alibaba Cloud PAI: environment variables of DLC](https://www.alibabacloud.com/help/en/pai/general-environment-variables)" {
            NPROC = "NPROC_PER_NODE" => nproc: Option<String>, "GPUs of each pod";
        }
        "[Kubeflow Training Operator: PyTorchJob](https://github.com/kubeflow/training-operator/blob/v1.9.0/pkg/controller.v1/pytorch/envvar.go)" {
            PET_NPROC = "PET_NPROC_PER_NODE" => pet_nproc: Option<String>, "workers of each pod: a number, `auto`, `cpu` or `gpu`";
        }
    }
}

/// Variables of platforms that set RANK and WORLD_SIZE once on each node, which applies if there is
/// no local rank.
const PLATFORMS: &[&str] = &["KUBERNETES_SERVICE_HOST", "CLOUD_ML_JOB_ID", "VC_TASK_INDEX"];

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[
        UserVars::VARIABLES,
        NodesVars::VARIABLES,
        DeepSpeedVars::VARIABLES,
        PodVars::VARIABLES,
    ],
    marker: |environment| {
        // A pod of an indexed job or of RunPod has its rank in another variable.
        let size = || {
            first_set(environment, &[WORLD_SIZE]).filter(|_| {
                !environment.is_set(kubernetes::INDEX)
                    && runpod::marker(environment).is_none()
                    && of_node(environment).is_none()
            })
        };
        first_set(environment, &[RANK]).or_else(|| of_process(environment)).or_else(size)
    },
    read,
    starts: Starts::Processes,
    advice: Advice {
        start: "set RANK, WORLD_SIZE and the related variables together",
        one_per_node: "set RANK to the node's number and WORLD_SIZE to the number of nodes, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1",
        ..Advice::PLAIN
    },
    mpi: MpiFamily::None,
    // Whatever sets RANK and WORLD_SIZE also sets the master, but not always the node's number.
    nested: Nested {
        may_inherit: &[NODE_RANK],
        outside: &[COUNT, LOCAL_SIZE, CROSS_SIZE, NPROC, PET_NPROC],
        ..Nested::PLAIN
    },
    samples: &[Sample { title: "RANK and WORLD_SIZE", set }],
};

/// Sets all variables, as torchrun also does.
pub(super) fn set(process: &Process<'_>, vars: &mut Setter) {
    vars.set_all([RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE], process.place());
    vars.set(MASTER[0], process.name(0));
    vars.set(MASTER[1], 29500);
}

fn read(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let vars: UserVars = marker.read(environment)?;
    if marker.variable == NODE_RANK {
        return node_rank::read(environment, marker, &vars);
    }
    let known =
        |name, value: Option<u32>| by(name, value).ok_or_else(|| marker.missing(environment, name));
    let (rank, size) = (known(RANK, vars.rank)?, known(WORLD_SIZE, vars.world_size)?);
    let no_local = vars.local_rank.is_none() && vars.local_world_size.is_none();
    if no_local
        && vars.node_rank.is_none_or(|node| node == rank.value)
        && first_set(environment, PLATFORMS).is_some()
    {
        let (placement, pod) = (marker.node(rank, size)?, marker.read::<PodVars>(environment)?);
        let variable = if pod.pet_nproc.is_some() { PET_NPROC } else { NPROC };
        return Ok(placement.with_workers(variable, pod.pet_nproc.or(pod.nproc)));
    }
    let placement = marker.place(rank, size)?;
    // The names mean something only together, because other programs use them too.
    if let (None, Ok(more)) = (vars.local_world_size, environment.read::<DeepSpeedVars>()) {
        let cross_rank = by(CROSS_RANK, more.cross_rank);
        let node = by(NODE_RANK, vars.node_rank).unwrap_or(cross_rank);
        let placement = placement
            .with_local(by(LOCAL_RANK, vars.local_rank), Some(by(LOCAL_SIZE, more.local_size)))?;
        return Ok(placement.with_nodes(Some(node), Some(by(CROSS_SIZE, more.cross_size))));
    }
    let placement = placement
        .with_local(by(LOCAL_RANK, vars.local_rank), by(LOCAL_WORLD_SIZE, vars.local_world_size))?;
    Ok(placement.with_nodes(by(NODE_RANK, vars.node_rank), None))
}
