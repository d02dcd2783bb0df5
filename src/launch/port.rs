//! A port for a job on this machine alone.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::launch::error::LaunchError;
use mpienv_core::seam::ports_from;
use mpienv_core::{Port, PortRange};

/// Where such a port is from.
pub(super) const WHY: &str = "free when the workers were started";

/// Returns a port of the range on which nothing listens now.
///
/// Each process and attempt starts its search elsewhere, so that jobs started at once do not choose
/// the same port.
pub(super) fn free_port(range: PortRange, attempt: u32) -> Result<Port, LaunchError> {
    let mut ports = ports_from(range, u64::from(std::process::id()) * 7 + u64::from(attempt));
    let free = ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port.get())).is_ok());
    free.ok_or_else(|| LaunchError::NoPort(io::ErrorKind::AddrInUse.into()))
}
