//! Hydra: `mpiexec` and `mpiexec.hydra` of MPICH, Intel MPI and their kin; also any launcher that
//! tells only PMI's rank and size.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `PMI_RANK` | rank | [MPICH: Hydra's proxy] |
//! | `PMI_SIZE` | world size | same |
//! | `MPI_LOCALRANKID` | rank on this node | same |
//! | `MPI_LOCALNRANKS` | ranks on this node | same |
//! | `HYDRA_BSTRAP_NODE_ID` | the node's number; Intel MPI only, internal | recorded from 2021.18.1 |
//! | `I_MPI_HYDRA_UUID` | the job's identity, the same on all ranks; Intel MPI only, internal | recorded from 2021.18.1 |
//!
//! Nothing names rank 0's host.
//!
//! [MPICH: Hydra's proxy]: https://github.com/pmodels/mpich/blob/main/src/pm/hydra/proxy/pmip_cb.c

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::Error;
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::job::Job;
use crate::value::placement::{Launcher, Placement, Sourced};

const RANK: &str = "PMI_RANK";
const SIZE: &str = "PMI_SIZE";
const LOCAL_RANK: &str = "MPI_LOCALRANKID";
const LOCAL_SIZE: &str = "MPI_LOCALNRANKS";
pub(crate) const NODE_ID: &str = "HYDRA_BSTRAP_NODE_ID";
pub(crate) const UUID: &str = "I_MPI_HYDRA_UUID";

/// The variables that Hydra sets for every process.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::hydra::HydraVars;
///
/// let environment = Environment::from_vars([("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1")]);
/// let vars: HydraVars = environment.read()?;
/// assert_eq!((vars.rank, vars.size, vars.local_rank), (1, 2, Some(1)));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct HydraVars {
    /// `PMI_RANK`: the rank.
    #[serde(rename = "pmi_rank")]
    pub rank: u32,
    /// `PMI_SIZE`: the world size.
    #[serde(rename = "pmi_size")]
    pub size: u32,
    /// `MPI_LOCALRANKID`: the rank on this node.
    #[serde(rename = "mpi_localrankid")]
    pub local_rank: Option<u32>,
    /// `MPI_LOCALNRANKS`: the number of ranks on this node.
    #[serde(rename = "mpi_localnranks")]
    pub local_size: Option<u32>,
    /// `HYDRA_BSTRAP_NODE_ID`: the node's number (Intel MPI only).
    #[serde(rename = "hydra_bstrap_node_id")]
    pub node_id: Option<u32>,
    /// `I_MPI_HYDRA_UUID`: the job's identity (Intel MPI only).
    #[serde(rename = "i_mpi_hydra_uuid")]
    pub uuid: Option<String>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<HydraVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    if environment.is_set(LOCAL_RANK) { first_set(environment, &[RANK, SIZE]) } else { None }
}

/// A rank and a size by themselves, which several launchers set.
pub(crate) fn detect_bare(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[RANK, SIZE])
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Hydra;
    let evidence = detect_bare(environment);
    let vars: HydraVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let mut placement = Placement::new(launcher, (RANK, vars.rank), (SIZE, vars.size))?
        .with_local((LOCAL_RANK, vars.local_rank), (LOCAL_SIZE, vars.local_size))?;
    placement.node_rank = vars.node_id.map(|node| Sourced::new(node, NODE_ID));
    Ok(match vars.uuid {
        Some(id) => placement.with_job(Job { id, step: String::new(), restarts: 0 }, "hash of I_MPI_HYDRA_UUID"),
        None => placement,
    })
}
