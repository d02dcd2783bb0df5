//! A port for a job on this machine alone.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::value::port::Port;

/// The lowest port that a job on this machine alone gets.
const LOWEST_PORT: u32 = 20_000;
/// How many there are from the lowest on.
const PORTS: u32 = 10_000;

/// A port without a listener, 20000 to 29999.
///
/// Below the ephemeral ports, so that no outgoing connection takes it before rank 0 listens; from
/// another start in every process, so that jobs started at once do not choose the same.
pub(super) fn free_port() -> io::Result<Port> {
    let start = std::process::id();
    let numbers = (0..PORTS).map(|step| LOWEST_PORT + start.wrapping_mul(7).wrapping_add(step) % PORTS);
    let mut ports = numbers.filter_map(|number| u16::try_from(number).ok().and_then(Port::new));
    let free = ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port.get())).is_ok());
    free.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}
