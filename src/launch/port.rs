//! A port for a job on this machine alone.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use mpienv_core::seam::ports_from;

use crate::value::port::Port;
use crate::value::port_range::PortRange;

/// Returns a port of the range on which nothing listens now.
///
/// Each process and attempt starts its search elsewhere, so that jobs started at once do not choose
/// the same port.
pub(super) fn free_port(range: PortRange, attempt: u32) -> io::Result<Port> {
    let mut ports = ports_from(range, u64::from(std::process::id()) * 7 + u64::from(attempt));
    let free = ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port.get())).is_ok());
    free.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}
