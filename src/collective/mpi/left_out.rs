//! Without the feature `mpi`, no rank is connected by MPI.

use crate::builder::OverMpi;
use crate::cluster::info::ClusterInfo;
use crate::error::{CollectiveError, ConnectError};
use crate::timeouts::Timeouts;

pub(super) fn connect(
    _info: &ClusterInfo,
    _timeouts: Timeouts,
    required: bool,
    _on_lost: fn(&CollectiveError) -> u8,
) -> OverMpi {
    if required { Err(ConnectError::NoMpi) } else { Ok(Err("built without MPI")) }
}

pub(super) fn is_named() -> bool {
    false
}
