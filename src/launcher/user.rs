//! Ranks set by a person, a script, `mpienv launch`, or an earlier `mpienv export`.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `RANK` | rank | [PyTorch: environment variable initialization] |
//! | `WORLD_SIZE` | world size | same |
//! | `LOCAL_RANK` | rank on this node | [torchrun: environment variables] |
//! | `LOCAL_WORLD_SIZE` | ranks on this node | same |
//! | `NODE_RANK` | the node's number | [Lightning: general purpose cluster] |
//!
//! The master's address and port, `MASTER_ADDR` and `MASTER_PORT`, are taken as they are under any launcher.
//!
//! [PyTorch: environment variable initialization]: https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization
//! [torchrun: environment variables]: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
//! [Lightning: general purpose cluster]: https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::Error;
use crate::launcher::{Evidence, first_set, kubernetes, unreadable};
use crate::value::placement::{Launcher, Placement, Sourced};

const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
const NODE_RANK: &str = "NODE_RANK";

/// The variables of PyTorch's convention that tell a rank.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::user::UserVars;
///
/// let environment = Environment::from_vars([("RANK", "1"), ("WORLD_SIZE", "2")]);
/// let vars: UserVars = environment.read()?;
/// assert_eq!((vars.rank, vars.world_size), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct UserVars {
    /// `RANK`: the rank.
    pub rank: u32,
    /// `WORLD_SIZE`: the world size.
    pub world_size: u32,
    /// `LOCAL_RANK`: the rank on this node.
    pub local_rank: Option<u32>,
    /// `LOCAL_WORLD_SIZE`: the number of ranks on this node.
    pub local_world_size: Option<u32>,
    /// `NODE_RANK`: the node's number.
    pub node_rank: Option<u32>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<UserVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    let rank = first_set(environment, &[RANK]);
    // A pod of an indexed job has its rank elsewhere.
    let size = || if environment.is_set(kubernetes::INDEX) { None } else { first_set(environment, &[WORLD_SIZE]) };
    rank.or_else(size)
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::User;
    let evidence = detect(environment);
    let vars: UserVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let mut placement = Placement::new(launcher, (RANK, vars.rank), (WORLD_SIZE, vars.world_size))?
        .with_local((LOCAL_RANK, vars.local_rank), (LOCAL_WORLD_SIZE, vars.local_world_size))?;
    placement.node_rank = vars.node_rank.map(|node| Sourced::new(node, NODE_RANK));
    Ok(placement)
}
