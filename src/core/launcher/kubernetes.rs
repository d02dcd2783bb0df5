//! Kubernetes: indexed jobs, and Kubeflow Trainer's `PET_` variables; one process per pod.
//!
//! Each pod counts as a node. Kubeflow's PyTorchJob v1 sets `RANK` and `WORLD_SIZE`: see
//! [`user`](crate::launcher::user). An indexed job names no host: set `MASTER_ADDR` to
//! `JOB-0.SERVICE`. A JobSet counts the pods of each of its jobs from 0, so use it with one job.

use crate::launcher::prelude::*;
use crate::value::host::Host;

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
    /// The variables of Kubeflow Trainer's JAX runtime, based on its source.
    pub struct JaxVars {
        "[Kubeflow Trainer: JAX](https://github.com/kubeflow/trainer/blob/master/pkg/runtime/framework/plugins/jax/jax.go)" {
            JAX_RANK = "JAX_PROCESS_ID" => rank: u32, "the pod's number";
            JAX_SIZE = "JAX_NUM_PROCESSES" => size: u32, "number of pods";
            COORDINATOR = "JAX_COORDINATOR_ADDRESS" => coordinator: Option<String>, "`host:port` of pod 0";
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
    variables: &[PetVars::VARIABLES, JaxVars::VARIABLES, IndexedJobVars::VARIABLES],
    // A job with one pod, or one that only needs the index, has no world size.
    marker: |environment| {
        let indexed = || {
            first_set(environment, &[INDEX])
                .filter(|_| first_set(environment, &[COUNT, SIZE]).is_some())
        };
        first_set(environment, &[NODE_RANK, JAX_RANK, JAX_SIZE]).or_else(indexed)
    },
    read,
    starts: Starts::OnePerNode,
    advice: Advice {
        start: "set the pod's variables together",
        give_master: "MASTER_ADDR=JOB-0.SERVICE in the pods' template, with a headless Service of that name and \
                      `subdomain: SERVICE`",
        ..Advice::PLAIN
    },
    mpi: MpiFamily::None,
    // Users set these for torchrun and for JAX.
    nested: Nested {
        outside: &[COUNT, MASTER_ADDR, MASTER_PORT, PER_NODE, COORDINATOR],
        ..Nested::PLAIN
    },
    samples: &[
        Sample {
            title: "Kubernetes",
            set: |process, vars| {
                vars.set_all([NODE_RANK, NODES], [process.node, process.nodes]);
                vars.set(MASTER_ADDR, "train-node-0-0.train");
                vars.set(MASTER_PORT, 29500);
                vars.set(PER_NODE, "auto");
            },
        },
        Sample {
            title: "Kubernetes (JAX)",
            set: |process, vars| {
                vars.set_all([JAX_RANK, JAX_SIZE], [process.node, process.nodes]);
                vars.set(COORDINATOR, "train-node-0-0.train:6666");
                vars.set(SERVICE, "10.96.0.1");
            },
        },
    ],
};

/// A variable that Kubernetes sets in every pod.
pub(crate) const SERVICE: &str = "KUBERNETES_SERVICE_HOST";

fn read_jax(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let vars: JaxVars = marker.read(environment)?;
    let (rank, size) = (by(JAX_RANK, vars.rank), by(JAX_SIZE, vars.size));
    // Outside Kubernetes, users set these variables, also for several processes on one node.
    let mut placement = match environment.is_set(SERVICE) {
        true => marker.node(rank, size)?,
        false => marker.place(rank, size)?,
    };
    if let Some(text) = vars.coordinator {
        let parsed = Host::parse_with_port(&text)
            .map_err(|error| Error::of_setting(error, COORDINATOR, &text));
        let (host, port) = parsed?;
        placement.master_addr = Some(Sourced::new(host, COORDINATOR));
        placement.master_port = port.map(|port| Sourced::new(port, COORDINATOR));
    }
    Ok(placement)
}

fn read(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    if marker.variable == INDEX {
        let vars: IndexedJobVars = marker.read(environment)?;
        let size = match (vars.nodes, vars.size) {
            (Some(nodes), _) => by(COUNT, nodes),
            (None, Some(size)) => by(SIZE, size),
            (None, None) => return Err(marker.missing(environment, SIZE)),
        };
        return marker.node(by(INDEX, vars.index), size);
    }
    if marker.variable != NODE_RANK {
        return read_jax(environment, marker);
    }
    let vars: PetVars = marker.read(environment)?;
    let placement = marker.node(by(NODE_RANK, vars.node_rank), by(NODES, vars.nodes))?;
    let mut placement = placement.with_workers(PER_NODE, vars.per_node);
    // Users set these for torchrun, too.
    placement.master_addr = environment.setting(MASTER_ADDR)?;
    placement.master_port = environment.setting(MASTER_PORT)?;
    Ok(placement)
}
