//! PyTorch's `torchrun` (torchelastic).
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `TORCHELASTIC_RUN_ID` | what `--rdzv-id` says; by default a random one on one node, else `none` | [torchrun: environment variables] |
//! | `RANK` | rank | same |
//! | `WORLD_SIZE` | world size | same |
//! | `LOCAL_RANK` | rank on this node | same |
//! | `LOCAL_WORLD_SIZE` | ranks on this node | same |
//! | `GROUP_RANK` | the node's number | same |
//! | `GROUP_WORLD_SIZE` | nodes of the job | same |
//! | `TORCHELASTIC_ERROR_FILE` | where the worker writes its error: another file for every worker | recorded from 2.15.0 |
//!
//! The master is in `MASTER_ADDR` and `MASTER_PORT`, which are taken as they are.
//!
//! [torchrun: environment variables]: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::Error;
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::placement::{Launcher, Placement, Sourced};

const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
const RANK: &str = "RANK";
const SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_SIZE: &str = "LOCAL_WORLD_SIZE";
const NODE_RANK: &str = "GROUP_RANK";
const NODES: &str = "GROUP_WORLD_SIZE";

/// The variables that torchrun sets for every worker.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::torchrun::TorchrunVars;
///
/// let environment = Environment::from_vars([
///     ("RANK", "1"),
///     ("WORLD_SIZE", "2"),
///     ("LOCAL_RANK", "1"),
///     ("LOCAL_WORLD_SIZE", "2"),
/// ]);
/// let vars: TorchrunVars = environment.read()?;
/// assert_eq!((vars.rank, vars.size), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TorchrunVars {
    /// `TORCHELASTIC_RUN_ID`: what `--rdzv-id` says; by default a random one on one node, else `none`.
    #[serde(rename = "torchelastic_run_id")]
    pub run_id: Option<String>,
    /// `RANK`: the rank.
    pub rank: u32,
    /// `WORLD_SIZE`: the world size.
    #[serde(rename = "world_size")]
    pub size: u32,
    /// `LOCAL_RANK`: the rank on this node.
    pub local_rank: u32,
    /// `LOCAL_WORLD_SIZE`: the number of ranks on this node.
    #[serde(rename = "local_world_size")]
    pub local_size: u32,
    /// `GROUP_RANK`: the node's number.
    #[serde(rename = "group_rank")]
    pub node_rank: Option<u32>,
    /// `GROUP_WORLD_SIZE`: the number of nodes.
    #[serde(rename = "group_world_size")]
    pub nodes: Option<u32>,
    /// `TORCHELASTIC_ERROR_FILE`: where the worker writes its error: another file for every worker.
    #[serde(rename = "torchelastic_error_file")]
    pub error_file: Option<String>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<TorchrunVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[RUN_ID])
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Torchrun;
    let evidence = detect(environment);
    let vars: TorchrunVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let mut placement = Placement::new(launcher, (RANK, vars.rank), (SIZE, vars.size))?
        .with_local((LOCAL_RANK, Some(vars.local_rank)), (LOCAL_SIZE, Some(vars.local_size)))?;
    placement.node_rank = vars.node_rank.map(|node| Sourced::new(node, NODE_RANK));
    placement.node_count = vars.nodes.map(|nodes| Sourced::new(nodes, NODES));
    Ok(placement)
}
