//! Without the feature `mpi`, no rank is connected by MPI.

use std::time::Duration;

use crate::builder::OverMpi;
use crate::cluster::info::ClusterInfo;
use crate::error::{CollectiveError, ConnectError};

pub(super) fn connect(
    _info: &ClusterInfo,
    _timeout: Duration,
    required: bool,
    _on_lost: fn(&CollectiveError) -> u8,
) -> OverMpi {
    if required { Err(ConnectError::NoMpi) } else { Ok(Err("built without MPI")) }
}

pub(super) fn is_named() -> bool {
    false
}
