//! This host's address and interface on the route to rank 0.

use super::{Unknown, Value};
use crate::cluster::info::ClusterInfo;

pub(super) fn own_addr(info: &ClusterInfo) -> Result<Value, Unknown> {
    Ok(Value::Text(info.own_addr().map_err(Unknown::Error)?.address.to_string()))
}

pub(super) fn interface(info: &ClusterInfo) -> Result<Value, Unknown> {
    let own = info.own_addr().map_err(Unknown::Error)?;
    own.interface
        .map(Value::Text)
        .ok_or_else(|| Unknown::Because(format!("no interface has {}", own.address)))
}
