//! oneCCL's own variables, which give only the place on this node.
//!
//! They select no launcher: oneCCL takes the rank and the world size from its caller.

use crate::environment::Environment;
use crate::error::Error;
use crate::finding::Finding;
use crate::launcher::alone::BY_ITSELF;

/// How oneCCL finds the place of a process.
pub(crate) const BY: &str = "CCL_PROCESS_LAUNCHER";
/// The value for a process whose place its own variables give.
pub(crate) const NONE: &str = "none";
pub(crate) const LOCAL_RANK: &str = "CCL_LOCAL_RANK";
pub(crate) const LOCAL_SIZE: &str = "CCL_LOCAL_SIZE";

/// What these variables leave open.
const WHY: &str =
    "oneCCL's variables give the place on this node, and neither the rank nor the world size";

const REMEDY: &str = "start the process with mpirun, or set RANK, WORLD_SIZE and MASTER_ADDR";

/// Returns the error for a process that is one of several according to oneCCL's variables alone.
pub(crate) fn refuse(environment: &Environment) -> Option<Error> {
    let above = |name: &'static str, least: u32| {
        let number = environment.digits::<u32>(name)?;
        (number > least).then_some((name, number))
    };
    let (name, number) = above(LOCAL_SIZE, 1).or_else(|| above(LOCAL_RANK, 0))?;
    let remedy = format!("{REMEDY}, or {BY_ITSELF}");
    Some(Error::new(WHY, remedy).of(name).found(number))
}

/// Reports the only process on its node, of which there may be others on other nodes.
pub(crate) fn only_local(environment: &Environment) -> Option<Finding> {
    let name = environment.first_set(&[LOCAL_RANK, LOCAL_SIZE])?;
    Some(Finding::warning(
        "place-unknown",
        format!("{} is set, and no launcher's variables are", environment.shown(name)),
        format!("{WHY}: mpienv treats this process as the only one"),
        format!("{REMEDY}; or set {BY_ITSELF}"),
    ))
}
