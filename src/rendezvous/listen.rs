//! Where rank 0 listens.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mio::net::TcpListener;
use socket2::{Domain, Socket, Type};

use super::error::RendezvousError;
use crate::value::host::Host;
use crate::value::port::Port;

/// Connections that the system keeps for rank 0 until it takes them; the system may hold fewer.
const BACKLOG: i32 = 4096;

/// Rank 0's sockets: only loopback when the master is a loopback address, else every address of the host.
pub(crate) fn listen(host: &Host, port: Port) -> Result<Vec<TcpListener>, RendezvousError> {
    let v4 = |address| IpAddr::V4(address);
    if !host.is_loopback() {
        // One socket takes IPv6 and IPv4, where the host has IPv6 at all.
        return match open(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port) {
            Ok(socket) => Ok(vec![socket]),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(RendezvousError::PortInUse { port }),
            Err(_) => Ok(vec![named(v4(Ipv4Addr::UNSPECIFIED), port)?]),
        };
    }
    if let Some(address) = host.address() {
        return Ok(vec![named(address, port)?]);
    }
    let mut sockets = vec![named(v4(Ipv4Addr::LOCALHOST), port)?];
    // `localhost` may resolve to ::1 first; a host without IPv6 never resolves it so.
    match open(IpAddr::V6(Ipv6Addr::LOCALHOST), port) {
        Ok(socket) => sockets.push(socket),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(RendezvousError::PortInUse { port }),
        Err(_) => {}
    }
    Ok(sockets)
}

fn named(address: IpAddr, port: Port) -> Result<TcpListener, RendezvousError> {
    open(address, port).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => RendezvousError::PortInUse { port },
        _ => RendezvousError::Listen { address: Host::from(address).with_port(port), source },
    })
}

fn open(address: IpAddr, port: Port) -> io::Result<TcpListener> {
    let address = SocketAddr::new(address, port.get());
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A run that ended a moment ago leaves connections that hold the port; Windows gives the flag another meaning.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket.into()))
}
