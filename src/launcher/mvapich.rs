//! MVAPICH's `mpirun_rsh` and `mpiexec`: MVAPICH2 (`MV2_`), MVAPICH 3 and later (`MVP_`).
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `MV2_COMM_WORLD_RANK` | rank | [MVAPICH2 user guide] |
//! | `MV2_COMM_WORLD_SIZE` | world size | same |
//! | `MV2_COMM_WORLD_LOCAL_RANK` | rank on this node | same |
//! | `MV2_COMM_WORLD_LOCAL_SIZE` | ranks on this node | same |
//! | `MVP_COMM_WORLD_LOCAL_RANK` | rank on this node, from version 3 on | [MVAPICH user guide] |
//! | `PMI_ID` or `PMI_RANK` | rank, beside `MVP_COMM_WORLD_LOCAL_RANK` | same |
//! | `PMI_SIZE` | world size, beside `MVP_COMM_WORLD_LOCAL_RANK` | same |
//!
//! Nothing names rank 0's host.
//!
//! [MVAPICH2 user guide]: https://mvapich.cse.ohio-state.edu/userguide/
//! [MVAPICH user guide]: https://mvapich.cse.ohio-state.edu/userguide/

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::Error;
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::placement::{Launcher, Placement};

const RANK: &str = "MV2_COMM_WORLD_RANK";
const SIZE: &str = "MV2_COMM_WORLD_SIZE";
const LOCAL_RANK: &str = "MV2_COMM_WORLD_LOCAL_RANK";
const LOCAL_SIZE: &str = "MV2_COMM_WORLD_LOCAL_SIZE";
const MVP_LOCAL_RANK: &str = "MVP_COMM_WORLD_LOCAL_RANK";
const PMI_ID: &str = "PMI_ID";
const PMI_RANK: &str = "PMI_RANK";
const PMI_SIZE: &str = "PMI_SIZE";

/// The variables that MVAPICH2 sets for every process.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::mvapich::MvapichVars;
///
/// let environment = Environment::from_vars([("MV2_COMM_WORLD_RANK", "1"), ("MV2_COMM_WORLD_SIZE", "2")]);
/// let vars: MvapichVars = environment.read()?;
/// assert_eq!((vars.rank, vars.size), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct MvapichVars {
    /// `MV2_COMM_WORLD_RANK`: the rank.
    #[serde(rename = "mv2_comm_world_rank")]
    pub rank: u32,
    /// `MV2_COMM_WORLD_SIZE`: the world size.
    #[serde(rename = "mv2_comm_world_size")]
    pub size: u32,
    /// `MV2_COMM_WORLD_LOCAL_RANK`: the rank on this node.
    #[serde(rename = "mv2_comm_world_local_rank")]
    pub local_rank: Option<u32>,
    /// `MV2_COMM_WORLD_LOCAL_SIZE`: the number of ranks on this node.
    #[serde(rename = "mv2_comm_world_local_size")]
    pub local_size: Option<u32>,
}

/// The variables that MVAPICH sets from version 3 on.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::mvapich::MvpVars;
///
/// let environment = Environment::from_vars([
///     ("MVP_COMM_WORLD_LOCAL_RANK", "0"),
///     ("PMI_ID", "1"),
///     ("PMI_SIZE", "2"),
/// ]);
/// let vars: MvpVars = environment.read()?;
/// assert_eq!((vars.pmi_id, vars.pmi_size), (Some(1), 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct MvpVars {
    /// `MVP_COMM_WORLD_LOCAL_RANK`: the rank on this node.
    #[serde(rename = "mvp_comm_world_local_rank")]
    pub local_rank: u32,
    /// `PMI_ID`: the rank, as `mpirun_rsh` tells it.
    pub pmi_id: Option<u32>,
    /// `PMI_RANK`: the rank, as `mpiexec` tells it.
    pub pmi_rank: Option<u32>,
    /// `PMI_SIZE`: the world size.
    pub pmi_size: u32,
}

pub(crate) fn variables() -> Vec<String> {
    [variable_names::<MvapichVars>(), variable_names::<MvpVars>()].concat()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    let mv2 = first_set(environment, &[RANK, SIZE]);
    // Newer ones tell the rank through PMI.
    let mvp = || first_set(environment, &[PMI_ID, PMI_RANK]).and_then(|_| first_set(environment, &[MVP_LOCAL_RANK]));
    mv2.or_else(mvp)
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Mvapich;
    let evidence = detect(environment);
    let blame = |error| unreadable(environment, launcher, error, evidence);
    if environment.is_set(RANK) || environment.is_set(SIZE) {
        let vars: MvapichVars = environment.read().map_err(blame)?;
        return Placement::new(launcher, (RANK, vars.rank), (SIZE, vars.size))?
            .with_local((LOCAL_RANK, vars.local_rank), (LOCAL_SIZE, vars.local_size));
    }
    let vars: MvpVars = environment.read().map_err(blame)?;
    let rank = match (vars.pmi_rank, vars.pmi_id) {
        (Some(rank), _) => (PMI_RANK, rank),
        (None, id) => (PMI_ID, id.unwrap_or_default()),
    };
    Placement::new(launcher, rank, (PMI_SIZE, vars.pmi_size))?
        .with_local((MVP_LOCAL_RANK, Some(vars.local_rank)), (MVP_LOCAL_RANK, None))
}
