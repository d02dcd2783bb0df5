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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_address_is_that_of_the_way_to_the_master() {
        let values =
            ClusterInfo::from_vars([("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().placeholders();
        assert_eq!(values.expand("--ip={own_addr}").unwrap().as_deref(), Some("--ip=127.0.0.1"));
        assert_eq!(values.expand("{interface}").unwrap().as_deref(), Some("lo"));
    }
}
