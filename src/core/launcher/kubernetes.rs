//! Kubernetes: indexed jobs, and Kubeflow Trainer's `PET_` variables; one process per pod. Kubeflow's JAX
//! runtime has variables of its own: see [`jax`](crate::launcher::jax).
//!
//! Each pod counts as a node. Kubeflow's PyTorchJob v1 sets `RANK` and `WORLD_SIZE`: see
//! [`user`](crate::launcher::user). An indexed job names no host: set `MASTER_ADDR` to
//! `JOB-0.SERVICE`. A JobSet counts the pods of each of its jobs from 0: with several jobs, set
//! `NODE_RANK` and `NNODES`.

use crate::error::quote;
use crate::finding::Finding;
use crate::launcher::prelude::*;
use crate::launcher::torchrun;
use crate::launcher::user::{self, LOCAL_WORLD_SIZE};

variables! {
    /// The variables of Kubeflow Trainer.
    pub struct PetVars {
        "[Kubeflow Trainer: PyTorch](https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch/)" {
            NODE_RANK = "PET_NODE_RANK" => node_rank: u32, "the pod's number";
            NODES = "PET_NNODES" => nodes: u32, "number of pods";
            MASTER_ADDR = "PET_MASTER_ADDR" => master_addr: Option<String>, "host of pod 0";
            MASTER_PORT = "PET_MASTER_PORT" => master_port: Option<String>, "port at pod 0";
            PER_NODE = "PET_NPROC_PER_NODE" => per_node: Option<String>, "workers of each pod: a number, `auto`, `cpu` or `gpu`";
        }
    }
}

variables! {
    /// The variables of an indexed job.
    pub struct IndexedJobVars {
        "[Kubernetes: indexed job](https://kubernetes.io/docs/tasks/job/indexed-parallel-processing-static/)" {
            INDEX = "JOB_COMPLETION_INDEX" => index: u32, "the pod's number";
            SIZE = "WORLD_SIZE" => size: Option<u32>, "number of pods, which the job's template sets";
            COUNT = "NNODES" => nodes: Option<u32>, "the same; it goes before `WORLD_SIZE`, which may count processes";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[PetVars::VARIABLES, IndexedJobVars::VARIABLES],
    // A job with one pod, or one that only needs the index, has no world size. In a JobSet, several
    // pods have one index, and users give each a number of its own.
    marker: |environment| {
        let is_indexed = || {
            let by_user = user::of_node(environment).and_then(|name| environment.text(name));
            environment.first_set(&[COUNT, SIZE]).is_some()
                && by_user.is_none_or(|node| Some(node) == environment.text(INDEX))
        };
        let indexed = || environment.first_set(&[INDEX]).filter(|_| is_indexed());
        environment.first_set(&[NODE_RANK]).or_else(indexed)
    },
    start: "set the pod's variables together",
    give_master: "MASTER_ADDR=JOB-0.SERVICE in the pods' template, with a headless Service of that name and \
                  `subdomain: SERVICE`",
    // Users set these for torchrun.
    outside: &[COUNT, MASTER_ADDR, MASTER_PORT, PER_NODE],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([NODE_RANK, NODES], [process.node, process.nodes]);
        vars.set(MASTER_ADDR, "train-node-0-0.train");
        vars.set(MASTER_PORT, 29500);
        vars.set(PER_NODE, "auto");
    })],
    ..LauncherSpec::plain(read)
};

/// What to do in a job whose number of pods changes.
pub(super) const ELASTIC: &str = "in the pods of an elastic PyTorchJob start torchrun without mpienv, or as `torchrun \
                                  --no-python mpienv exec -- CMD`";

/// A variable that Kubernetes sets in every pod.
pub const SERVICE: &str = "KUBERNETES_SERVICE_HOST";

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let environment = marker.environment;
    if marker.variable == INDEX {
        let vars: IndexedJobVars = marker.read()?;
        let size = pods(marker, &vars)?;
        let placement = marker.node(by(INDEX, vars.index), size)?;
        return Ok(placement.with_all_workers(SIZE, vars.size));
    }
    if let Some(range) = environment.text(NODES).filter(|nodes| nodes.contains(':')) {
        let why = "it is a range, of which torchrun chooses the number of nodes".to_owned();
        let error = Error::new(why, ELASTIC).by(marker.launcher);
        return Err(error.of(NODES).found(range));
    }
    let vars: PetVars = marker.read()?;
    let placement = marker.node(by(NODE_RANK, vars.node_rank), by(NODES, vars.nodes))?;
    let mut placement = placement.with_workers(PER_NODE, vars.per_node);
    // Kubeflow Trainer's number is that of the indexed job. One that counts the pods of a whole
    // JobSet is not below it.
    let index = environment.digits::<u32>(INDEX);
    if index.is_some_and(|index| index > vars.node_rank) {
        placement.findings.push(Finding::warning(
            "launchers-disagree",
            [NODE_RANK, INDEX].map(|name| environment.shown(name)).join(", but "),
            "several pods may have this number, and each of them becomes the same rank",
            format!("unset {NODE_RANK} and {NODES} in the template of the pods, and set NNODES and MASTER_ADDR"),
        ));
    }
    // Users set these for torchrun, too.
    placement.master_addr = environment.setting(MASTER_ADDR)?;
    placement.master_port = environment.setting(MASTER_PORT)?;
    Ok(placement)
}

/// Returns the number of pods. `WORLD_SIZE` is one only if nothing says that it counts processes.
fn pods(marker: Marker<'_>, vars: &IndexedJobVars) -> Result<Sourced<u32>, Error> {
    let environment = marker.environment;
    let refuse = |name, value, why: String| {
        Err(Error::new(why, PODS).by(marker.launcher).of(name).found(value))
    };
    let of_several = environment.text(LOCAL_WORLD_SIZE).filter(|local| *local != "1");
    // That of torchrun's workers is of its own job.
    let size = vars.size.filter(|_| !environment.is_set(torchrun::RUN_ID));
    match (vars.nodes, size, of_several.map(quote)) {
        (Some(nodes), Some(size), _) if size.checked_rem(nodes) != Some(0) => {
            let why = format!("{SIZE}=\"{size}\" is neither it nor a multiple of it");
            refuse(COUNT, nodes, why)
        }
        (Some(nodes), ..) => Ok(by(COUNT, nodes)),
        (None, Some(size), local) => {
            let local = local.map(|local| format!("{LOCAL_WORLD_SIZE}={local}"));
            let nodes = || user::other_nodes(environment, size);
            let other = local.or_else(|| nodes().map(|n| format!("{}=\"{}\"", n.source, n.value)));
            other.map_or(Ok(by(SIZE, size)), |other| {
                let why =
                    format!("it counts pods here, and {other} shows that it counts processes");
                refuse(SIZE, size, why)
            })
        }
        (None, None, _) => Err(marker.missing(SIZE)),
    }
}

const PODS: &str = "set NNODES to the number of pods, and unset WORLD_SIZE and LOCAL_WORLD_SIZE, which mpienv sets for each process";
