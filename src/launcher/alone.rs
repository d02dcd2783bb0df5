//! No launcher: one process by itself, rank 0 of 1.

use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::{Evidence, slurm};
use crate::value::placement::{Launcher, Placement};

const SOURCE: &str = "no launcher's variables are set";

pub(crate) fn variables() -> Vec<String> {
    Vec::new()
}

pub(crate) fn detect(_environment: &Environment) -> Option<Evidence> {
    Some(SOURCE)
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let mut placement =
        Placement::new(Launcher::Alone, (SOURCE, 0), (SOURCE, 1))?.with_local((SOURCE, Some(0)), (SOURCE, Some(1)))?;
    placement.findings.extend(slurm::outside_of_steps(environment));
    Ok(placement)
}
