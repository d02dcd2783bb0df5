//! Asking the launcher, for the command.

use std::io;

use super::{Overrides, builder};
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::error::Error;

pub use crate::cluster::ask::Connection;
pub use crate::launcher::context::Server;
pub use crate::pmi::{Answer, Link, Nodes, PmiError, Question, inherited};

/// Calls `keep` with the connection to the launcher's PMIx server, if reading this has asked it.
///
/// # Errors
/// Returns an error if the connection cannot be kept.
pub fn keep_pmix(
    info: &ClusterInfo,
    keep: impl FnOnce(Connection) -> io::Result<()>,
) -> Result<(), Error> {
    info.keep_pmix(keep)
}

/// Asks the launcher for rank 0's host if nothing names it, and returns the place with the answer.
///
/// Calls `keep` with the connection that must outlive this process.
///
/// # Errors
/// Returns an error if the launcher does not answer, or if not all ranks ask.
pub fn asked(
    read: Result<ClusterInfo, Error>,
    overrides: Overrides,
    environment: &Environment,
    keep: impl FnOnce(Connection) -> io::Result<()>,
) -> Result<ClusterInfo, Error> {
    let asking = builder(overrides);
    if let Some(info) = asking.ask_pmix(environment, &read)? {
        info.keep_pmix(keep)?;
        return Ok(info);
    }
    let info = read?;
    match info.ask(keep)? {
        None => Ok(info),
        answer => {
            let overrides = Overrides { answer, ..asking.overrides };
            builder(overrides).environment(environment).read()
        }
    }
}
