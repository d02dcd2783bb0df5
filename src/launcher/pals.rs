//! HPE Cray PALS: `mpiexec` and `aprun` on Cray EX systems.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `PALS_RANKID` | rank | [HPE: mpiexec(1)] |
//! | `PMI_SIZE` | world size; PALS has none of its own | same |
//! | `PALS_LOCAL_RANKID` | rank on this node | same |
//! | `PALS_LOCAL_SIZE` | ranks on this node | same |
//! | `PALS_NODEID` | the node's number | same |
//! | `PALS_APID` | the application's identity | same |
//!
//! Nothing names rank 0's host.
//!
//! [HPE: mpiexec(1)]: https://cpe.ext.hpe.com/docs/latest/pals/mpiexec.1.html

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::Error;
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::job::Job;
use crate::value::placement::{Launcher, Placement, Sourced};

const RANK: &str = "PALS_RANKID";
const SIZE: &str = "PMI_SIZE";
const LOCAL_RANK: &str = "PALS_LOCAL_RANKID";
const LOCAL_SIZE: &str = "PALS_LOCAL_SIZE";
const NODE_ID: &str = "PALS_NODEID";

/// The variables that PALS sets for every process.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::pals::PalsVars;
///
/// let environment = Environment::from_vars([("PALS_RANKID", "1"), ("PMI_SIZE", "2")]);
/// let vars: PalsVars = environment.read()?;
/// assert_eq!((vars.rank, vars.size), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct PalsVars {
    /// `PALS_RANKID`: the rank.
    #[serde(rename = "pals_rankid")]
    pub rank: u32,
    /// `PMI_SIZE`: the world size.
    #[serde(rename = "pmi_size")]
    pub size: u32,
    /// `PALS_LOCAL_RANKID`: the rank on this node.
    #[serde(rename = "pals_local_rankid")]
    pub local_rank: Option<u32>,
    /// `PALS_LOCAL_SIZE`: the number of ranks on this node.
    #[serde(rename = "pals_local_size")]
    pub local_size: Option<u32>,
    /// `PALS_NODEID`: the node's number.
    #[serde(rename = "pals_nodeid")]
    pub node_id: Option<u32>,
    /// `PALS_APID`: the application's identity.
    #[serde(rename = "pals_apid")]
    pub application: Option<String>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<PalsVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[RANK])
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Pals;
    let evidence = detect(environment);
    let vars: PalsVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let mut placement = Placement::new(launcher, (RANK, vars.rank), (SIZE, vars.size))?
        .with_local((LOCAL_RANK, vars.local_rank), (LOCAL_SIZE, vars.local_size))?;
    placement.node_rank = vars.node_id.map(|node| Sourced::new(node, NODE_ID));
    Ok(match vars.application {
        Some(id) => placement.with_job(Job { id, step: String::new(), restarts: 0 }, "hash of PALS_APID"),
        None => placement,
    })
}
