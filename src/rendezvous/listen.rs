//! Where rank 0 listens.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use mio::net::TcpListener;
use socket2::{Domain, SockRef, Socket, Type};

use super::error::RendezvousError;
use mpienv_ask::seam::look_up;
use mpienv_core::{Host, Port};

/// How many connections may wait to be accepted. The system may allow fewer.
pub(super) const BACKLOG: i32 = 4096;
/// How long the master's name may take to resolve.
const PATIENCE: Duration = Duration::from_secs(1);

/// The addresses of this host that rank 0 listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addresses {
    Every,
    /// Every address that `localhost` may resolve to.
    Loopback,
    These(Vec<IpAddr>),
}

impl Addresses {
    /// The addresses for a master, as this host resolves it now, and what is wrong with the master,
    /// if its address shows it.
    pub(super) fn of(master: &Host, bind: Option<IpAddr>) -> (Addresses, Option<String>) {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let own: Vec<IpAddr> =
            interfaces.iter().map(|interface| interface.ip().to_canonical()).collect();
        choose(master, bind, &own, || {
            let resolved =
                look_up(master.to_string(), 0, PATIENCE).and_then(Result::ok).unwrap_or_default();
            resolved.into_iter().map(|address| address.ip().to_canonical()).collect()
        })
    }

    /// The address of a socket that listens already.
    fn of_socket(address: IpAddr) -> Addresses {
        if address.is_unspecified() {
            Addresses::Every
        } else {
            Addresses::These(vec![address.to_canonical()])
        }
    }

    /// The addresses as a list, with the unspecified address for every address.
    pub(super) fn list(&self) -> Vec<IpAddr> {
        match self {
            Addresses::Every => vec![Ipv6Addr::UNSPECIFIED.into()],
            Addresses::Loopback => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            Addresses::These(addresses) => addresses.clone(),
        }
    }
}

/// The master's own addresses, if all of them are this host's and other hosts can reach it by them.
/// Otherwise, every address, and why the other ranks may not find rank 0 at the master's.
fn choose(
    master: &Host,
    bind: Option<IpAddr>,
    own: &[IpAddr],
    resolve: impl FnOnce() -> Vec<IpAddr>,
) -> (Addresses, Option<String>) {
    if let Some(address) = bind {
        return (Addresses::of_socket(address), None);
    }
    if master.is_loopback() {
        let named = master.address().map(|address| Addresses::These(vec![address]));
        return (named.unwrap_or(Addresses::Loopback), None);
    }
    let mut found = master.address().map_or_else(resolve, |address| vec![address.to_canonical()]);
    found.sort_unstable();
    found.dedup();
    // Debian's /etc/hosts resolves a host's own name to 127.0.1.1, but other hosts reach it by
    // another address.
    let is_for_all = |address: &IpAddr| {
        let is_link_local =
            matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        !address.is_loopback()
            && !address.is_unspecified()
            && !is_link_local
            && own.contains(address)
    };
    let is_here = |address: &IpAddr| {
        address.is_loopback() || address.is_unspecified() || own.contains(address)
    };
    if found.is_empty() {
        let why = format!("the name {master} does not resolve on rank 0's host");
        (Addresses::Every, Some(why))
    } else if found.iter().all(is_for_all) {
        (Addresses::These(found), None)
    } else {
        let why = || format!("{master} is not an address of rank 0's host");
        (Addresses::Every, (!found.iter().any(is_here)).then(why))
    }
}

/// Opens rank 0's sockets.
pub(crate) fn listen(
    addresses: &Addresses,
    port: Port,
) -> Result<Vec<TcpListener>, RendezvousError> {
    match addresses {
        // If the host has IPv6, one socket accepts IPv6 and IPv4.
        Addresses::Every => match open(Ipv6Addr::UNSPECIFIED.into(), port) {
            Err(RendezvousError::Listen { .. }) => {
                Ok(vec![open(Ipv4Addr::UNSPECIFIED.into(), port)?])
            }
            socket => Ok(vec![socket?]),
        },
        Addresses::Loopback => {
            let mut sockets = vec![open(Ipv4Addr::LOCALHOST.into(), port)?];
            // `localhost` may resolve to ::1 first, but not on a host without IPv6.
            match open(Ipv6Addr::LOCALHOST.into(), port) {
                Err(RendezvousError::Listen { .. }) => {}
                socket => sockets.push(socket?),
            }
            Ok(sockets)
        }
        Addresses::These(addresses) => {
            addresses.iter().map(|&address| open(address, port)).collect()
        }
    }
}

/// Takes over a socket that listens already. The caller's own stays open.
pub(crate) fn take_over(
    listener: &std::net::TcpListener,
) -> Result<(TcpListener, Addresses, Port), RendezvousError> {
    let taken = || {
        let (listener, address) = (listener.try_clone()?, listener.local_addr()?);
        listener.set_nonblocking(true)?;
        // The standard library lets only 128 connections wait.
        SockRef::from(&listener).listen(BACKLOG)?;
        let port = Port::new(address.port()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok((TcpListener::from_std(listener), Addresses::of_socket(address.ip()), port))
    };
    taken().map_err(RendezvousError::System)
}

/// What would happen to a program that listens on a port of this host, on every address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It could listen.
    Free,
    /// Another program listens there, at any address.
    InUse,
    /// The system does not let this process listen there.
    Denied,
}

/// Returns the state of the port. Nothing can connect meanwhile.
pub fn state_of(port: Port) -> PortState {
    let at = |address: IpAddr| match bound(SocketAddr::new(address, port.get())) {
        Ok(_) => Some(PortState::Free),
        Err(error) => match error.kind() {
            io::ErrorKind::AddrInUse => Some(PortState::InUse),
            io::ErrorKind::PermissionDenied => Some(PortState::Denied),
            _ => None,
        },
    };
    // Without IPv6, only the second says something.
    let state = at(Ipv6Addr::UNSPECIFIED.into()).or_else(|| at(Ipv4Addr::UNSPECIFIED.into()));
    state.unwrap_or(PortState::Free)
}

fn open(address: IpAddr, port: Port) -> Result<TcpListener, RendezvousError> {
    let socket = bound(SocketAddr::new(address, port.get())).and_then(|socket| {
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(TcpListener::from_std(socket.into()))
    });
    socket.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => RendezvousError::PortInUse { port },
        _ => RendezvousError::Listen { address: Host::from(address).with_port(port), error },
    })
}

/// Returns a socket with this address, which does not listen yet.
fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A run that just exited leaves connections that hold the port.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Listens on a port that the system chooses: on loopback only if the master's address is loopback,
/// and otherwise on every address.
///
/// # Errors
/// The system has no such address, or no socket or port left.
pub fn on_free_port(master: &Host) -> io::Result<std::net::TcpListener> {
    if master.is_loopback() {
        return at_free_port(master.address().unwrap_or(Ipv4Addr::LOCALHOST.into()));
    }
    at_free_port(Ipv6Addr::UNSPECIFIED.into())
        .or_else(|_| at_free_port(Ipv4Addr::UNSPECIFIED.into()))
}

/// Listens on a port that the system chooses, at this address of the host.
///
/// # Errors
/// Those of [`on_free_port`].
pub fn at_free_port(address: IpAddr) -> io::Result<std::net::TcpListener> {
    let socket = bound(SocketAddr::new(address, 0))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn chosen(master: &str, bind: Option<&str>, resolved: &[&str]) -> Addresses {
        let own = addresses(&["127.0.0.1", "::1", "10.0.0.4", "fd00::4", "fe80::4"]);
        let bind = bind.map(|bind| bind.parse().unwrap());
        choose(&master.parse().unwrap(), bind, &own, || addresses(resolved)).0
    }

    #[test]
    fn rank_0_listens_on_the_masters_own_addresses_only_if_others_reach_it_by_them() {
        let these = |texts: &[&str]| Addresses::These(addresses(texts));
        for (master, resolved, expected) in [
            ("10.0.0.4", &[][..], these(&["10.0.0.4"])),
            ("fd00::4", &[], these(&["fd00::4"])),
            ("node4", &["10.0.0.4"], these(&["10.0.0.4"])),
            ("node4", &["fd00::4", "10.0.0.4", "10.0.0.4"], these(&["10.0.0.4", "fd00::4"])),
            // Debian's entry for the host's own name, which other hosts resolve to another address.
            ("node4", &["127.0.1.1"], Addresses::Every),
            ("node4", &["10.0.0.4", "127.0.1.1"], Addresses::Every),
            // Addresses of a service or a gateway that forwards here, and a name that does not
            // resolve yet.
            ("203.0.113.9", &[], Addresses::Every),
            ("node4", &["10.0.0.4", "203.0.113.9"], Addresses::Every),
            ("node4", &[], Addresses::Every),
            ("0.0.0.0", &[], Addresses::Every),
            ("fe80::4", &[], Addresses::Every),
            ("localhost", &[], Addresses::Loopback),
            ("127.0.0.1", &[], these(&["127.0.0.1"])),
            ("::1", &[], these(&["::1"])),
        ] {
            assert_eq!(chosen(master, None, resolved), expected, "{master} {resolved:?}");
        }
    }

    #[test]
    fn an_address_that_is_asked_for_goes_before_the_masters() {
        assert_eq!(
            chosen("node4", Some("fd00::4"), &["10.0.0.4"]),
            Addresses::These(addresses(&["fd00::4"]))
        );
        for every in ["0.0.0.0", "::"] {
            assert_eq!(chosen("10.0.0.4", Some(every), &[]), Addresses::Every);
        }
    }
}
