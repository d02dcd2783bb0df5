//! The launchers, one file each, and the order in which they are looked for.

pub(crate) mod alone;
pub mod open_mpi;
pub mod user;

use crate::environment::Environment;
use crate::error::{Error, quote};
use crate::placement::{Launcher, Placement};

/// The variable that made a launcher the one, with its value: `OMPI_COMM_WORLD_RANK="3"`.
pub(crate) type Evidence = String;

/// One launcher: how to see that it started this process, and how to read what it tells.
pub(crate) struct Row {
    pub launcher: Launcher,
    /// Never fails: a set that is only half there is evidence too, and reading it is the error.
    pub detect: fn(&Environment) -> Option<Evidence>,
    pub read: fn(&Environment) -> Result<Placement, Error>,
}

/// Every launcher, innermost first: the first that is detected started this process.
pub(crate) static TABLE: &[Row] = &[
    Row { launcher: Launcher::OpenMpi, detect: open_mpi::detect, read: open_mpi::read },
    Row { launcher: Launcher::User, detect: user::detect, read: user::read },
    Row { launcher: Launcher::Alone, detect: alone::detect, read: alone::read },
];

/// The first of these variables that is set.
pub(crate) fn first_set(environment: &Environment, names: &[&str]) -> Option<Evidence> {
    let name = names.iter().find(|name| environment.has(name))?;
    let value = environment.get(name)?.to_string_lossy();
    Some(format!("{name}={}", quote(value.trim())))
}
