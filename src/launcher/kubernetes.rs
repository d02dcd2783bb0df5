//! Kubernetes: indexed jobs, and Kubeflow Trainer's `PET_` variables; one process a pod.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `PET_NODE_RANK` | the pod's number | [Kubeflow Trainer: PyTorch] |
//! | `PET_NNODES` | number of pods | same |
//! | `PET_MASTER_ADDR` | host of pod 0 | same |
//! | `PET_MASTER_PORT` | port at pod 0 | same |
//! | `JOB_COMPLETION_INDEX` | the pod's number | [Kubernetes: indexed job] |
//! | `WORLD_SIZE` | number of pods, beside `JOB_COMPLETION_INDEX`; set it in the job's template | - |
//!
//! Each pod counts as a node. Kubeflow's PyTorchJob v1 sets `RANK` and `WORLD_SIZE`: see
//! [`user`](crate::launcher::user). An indexed job names no host: set `MASTER_ADDR` to
//! `JOB-0.SERVICE`.
//!
//! [Kubeflow Trainer: PyTorch]: https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch/
//! [Kubernetes: indexed job]: https://kubernetes.io/docs/tasks/job/indexed-parallel-processing-static/

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::{Error, Reason};
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::host::HostError;
use crate::value::placement::{Launcher, Placement, Sourced};

const NODE_RANK: &str = "PET_NODE_RANK";
const NODES: &str = "PET_NNODES";
const MASTER_ADDR: &str = "PET_MASTER_ADDR";
const MASTER_PORT: &str = "PET_MASTER_PORT";
/// An indexed job's pod; beside it `WORLD_SIZE` by itself is no half of a user's set.
pub(crate) const INDEX: &str = "JOB_COMPLETION_INDEX";
const SIZE: &str = "WORLD_SIZE";

/// The variables of Kubeflow Trainer.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::kubernetes::PetVars;
///
/// let environment = Environment::from_vars([("PET_NODE_RANK", "1"), ("PET_NNODES", "2")]);
/// let vars: PetVars = environment.read()?;
/// assert_eq!((vars.node_rank, vars.nodes), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct PetVars {
    /// `PET_NODE_RANK`: the pod's number.
    #[serde(rename = "pet_node_rank")]
    pub node_rank: u32,
    /// `PET_NNODES`: the number of pods.
    #[serde(rename = "pet_nnodes")]
    pub nodes: u32,
    /// `PET_MASTER_ADDR`: the host of pod 0.
    #[serde(rename = "pet_master_addr")]
    pub master_addr: Option<String>,
    /// `PET_MASTER_PORT`: the port at pod 0.
    #[serde(rename = "pet_master_port")]
    pub master_port: Option<String>,
}

/// The variables of an indexed job.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::kubernetes::IndexedJobVars;
///
/// let environment = Environment::from_vars([("JOB_COMPLETION_INDEX", "1"), ("WORLD_SIZE", "2")]);
/// let vars: IndexedJobVars = environment.read()?;
/// assert_eq!((vars.index, vars.size), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct IndexedJobVars {
    /// `JOB_COMPLETION_INDEX`: the pod's number.
    #[serde(rename = "job_completion_index")]
    pub index: u32,
    /// `WORLD_SIZE`: the number of pods.
    #[serde(rename = "world_size")]
    pub size: u32,
}

pub(crate) fn variables() -> Vec<String> {
    [variable_names::<PetVars>(), variable_names::<IndexedJobVars>()].concat()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[NODE_RANK]).or_else(|| {
        // A job of one pod, or one that only counts, has an index and no world.
        if environment.is_set(SIZE) { first_set(environment, &[INDEX]) } else { None }
    })
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Kubernetes;
    let evidence = detect(environment);
    let blame = |error| unreadable(environment, launcher, error, evidence);
    if !environment.is_set(NODE_RANK) {
        let vars: IndexedJobVars = environment.read().map_err(blame)?;
        return one_pod((INDEX, vars.index), (SIZE, vars.size));
    }
    let vars: PetVars = environment.read().map_err(blame)?;
    let mut placement = one_pod((NODE_RANK, vars.node_rank), (NODES, vars.nodes))?;
    if let Some(text) = vars.master_addr {
        let host = text.parse().map_err(|error: HostError| Error::of_setting(error, MASTER_ADDR, &text))?;
        placement.master_addr = Some(Sourced::new(host, MASTER_ADDR));
    }
    if let Some(text) = vars.master_port {
        let port = text.parse().map_err(|_| Error::of_setting(Reason::NotAPort, MASTER_PORT, &text))?;
        placement.master_port = Some(Sourced::new(port, MASTER_PORT));
    }
    Ok(placement)
}

fn one_pod(rank: (&'static str, u32), size: (&'static str, u32)) -> Result<Placement, Error> {
    let mut placement =
        Placement::new(Launcher::Kubernetes, rank, size)?.with_local((rank.0, Some(0)), (rank.0, Some(1)))?;
    placement.node_rank = Some(Sourced::new(rank.1, rank.0));
    placement.node_count = Some(Sourced::new(size.1, size.0));
    Ok(placement)
}
