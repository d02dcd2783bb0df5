//! Flux: `flux run`, `flux submit`.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `FLUX_TASK_RANK` | rank | [flux-environment(7)] |
//! | `FLUX_JOB_SIZE` | world size | same |
//! | `FLUX_TASK_LOCAL_ID` | rank on this node | same |
//! | `FLUX_JOB_NNODES` | nodes of the job | same |
//! | `FLUX_JOB_ID` | the job's identity, as text | same |
//!
//! Flux tells no local size but where it follows: all on one node, or one on each. Nothing names
//! rank 0's host.
//!
//! [flux-environment(7)]: https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7/flux-environment.html

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::Error;
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::job::Job;
use crate::value::placement::{Launcher, Placement, Sourced};

const RANK: &str = "FLUX_TASK_RANK";
const SIZE: &str = "FLUX_JOB_SIZE";
const LOCAL_RANK: &str = "FLUX_TASK_LOCAL_ID";
const NODES: &str = "FLUX_JOB_NNODES";

/// The variables that Flux sets for every process.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::flux::FluxVars;
///
/// let environment = Environment::from_vars([("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2")]);
/// let vars: FluxVars = environment.read()?;
/// assert_eq!((vars.rank, vars.size), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct FluxVars {
    /// `FLUX_TASK_RANK`: the rank.
    #[serde(rename = "flux_task_rank")]
    pub rank: u32,
    /// `FLUX_JOB_SIZE`: the world size.
    #[serde(rename = "flux_job_size")]
    pub size: u32,
    /// `FLUX_TASK_LOCAL_ID`: the rank on this node.
    #[serde(rename = "flux_task_local_id")]
    pub local_rank: Option<u32>,
    /// `FLUX_JOB_NNODES`: the number of nodes.
    #[serde(rename = "flux_job_nnodes")]
    pub nodes: Option<u32>,
    /// `FLUX_JOB_ID`: the job's identity.
    #[serde(rename = "flux_job_id")]
    pub job: Option<String>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<FluxVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[RANK])
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Flux;
    let evidence = detect(environment);
    let vars: FluxVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let local_size = match vars.nodes {
        Some(1) => Some(vars.size),
        Some(nodes) if nodes == vars.size => Some(1),
        _ => None,
    };
    let mut placement = Placement::new(launcher, (RANK, vars.rank), (SIZE, vars.size))?
        .with_local((LOCAL_RANK, vars.local_rank), (NODES, local_size))?;
    placement.node_count = vars.nodes.map(|nodes| Sourced::new(nodes, NODES));
    Ok(match vars.job {
        Some(id) => placement.with_job(Job { id, step: String::new(), restarts: 0 }, "hash of FLUX_JOB_ID"),
        None => placement,
    })
}
