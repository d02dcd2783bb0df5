//! A port for a job on this machine alone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use crate::error::LaunchError;
use mpienv_core::{Port, PortRange};

/// Where such a port is from.
pub(super) const WHY: &str = "free when the workers were started";

/// The addresses of which a host may have only one.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Returns a port of the range on which nothing listens now.
///
/// The search starts at the port that a number selects: a random one for each job, so that jobs
/// started at once do not choose the same port, and the next one for each attempt. In containers, the
/// numbers of their processes are the same.
pub(super) fn free_port(range: PortRange, number: u64) -> Result<Port, LaunchError> {
    let mut why = io::Error::from(io::ErrorKind::AddrInUse);
    for port in range.ports_from(number) {
        match is_free(port) {
            Ok(true) => return Ok(port),
            Ok(false) => {}
            Err(error) => why = error,
        }
    }
    Err(LaunchError::NoPort(why))
}

/// Returns whether nothing listens on a port, or why this process cannot listen there at all.
fn is_free(port: Port) -> io::Result<bool> {
    let tries = LOOPBACK.map(|address| TcpListener::bind((address, port.get())));
    let is_used = |kind: io::ErrorKind| kind == io::ErrorKind::AddrInUse;
    if tries.iter().any(|tried| tried.as_ref().is_err_and(|error| is_used(error.kind()))) {
        return Ok(false);
    }
    match tries {
        [Err(error), Err(_)] => Err(error),
        _ => Ok(true),
    }
}
