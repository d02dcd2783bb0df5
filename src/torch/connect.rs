//! Connects a group whose ranks meet at an address that PyTorch's store has carried.

use std::net::TcpListener;
use std::time::Duration;

use mpienv_collective::{Backend, Group};
use mpienv_core::{ClusterInfo, Host, Port};

use crate::failure::Failure;

/// Where and how the ranks of a group meet.
pub(crate) struct Meeting<'a> {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// On rank 0, what the others connect to.
    pub(crate) listener: Option<TcpListener>,
    /// Rank 0's address and port.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    /// What only the ranks of the group know.
    pub(crate) secret: &'a str,
    pub(crate) timeout: Duration,
}

/// Connects the group. All its ranks must call this.
pub(crate) fn connect(meeting: Meeting<'_>) -> Result<Group, Failure> {
    let Meeting { rank, size, listener, host, port, secret, timeout } = meeting;
    if (rank, size) == (0, 1) {
        return Ok(Group::alone());
    }
    let vars = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("MPIENV_TOKEN", secret.to_owned()),
    ];
    let info = ClusterInfo::from_vars(vars).map_err(Failure::argument)?;
    let host: Host = host.parse().map_err(Failure::argument)?;
    let port = Port::try_from(port).map_err(Failure::argument)?;
    let builder = Group::builder(&info)
        .quiet(true)
        .backend(Backend::SharedMemory)
        .timeout(timeout)
        .meet_at(host, port);
    let builder = match listener {
        Some(listener) => builder.listener(listener),
        None => builder,
    };
    Ok(builder.connect()?)
}
