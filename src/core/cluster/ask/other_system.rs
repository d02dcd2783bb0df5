//! Systems on which no launcher serves PMI, and no process keeps a connection to PMIx.

use std::io;

use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::Overrides;
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::placement::Placement;

/// There is none.
#[derive(Debug)]
pub enum Connection {}

/// There is none.
#[derive(Clone, Debug)]
pub enum Answer {}

/// Does nothing.
pub fn keep_pmix(
    _info: &ClusterInfo,
    _keep: impl FnOnce(Connection) -> io::Result<()>,
) -> Result<(), Error> {
    Ok(())
}

/// Asks nothing.
pub fn asked(
    read: Result<ClusterInfo, Error>,
    _overrides: Overrides,
    _environment: &Environment,
    _keep: impl FnOnce(Connection) -> io::Result<()>,
) -> Result<ClusterInfo, Error> {
    read
}

/// Returns that [`asked`] asks nothing.
pub fn would_ask(_info: &ClusterInfo) -> bool {
    false
}

impl ClusterInfo {
    pub(crate) fn ask_once(&self) -> Result<Option<Answer>, Error> {
        Ok(None)
    }
}

pub(crate) fn complete(_placement: Placement, answer: &Answer) -> Result<Placement, Error> {
    match *answer {}
}

pub(crate) fn secret(answer: &Answer) -> Option<&str> {
    match *answer {}
}
