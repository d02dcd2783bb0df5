//! Finds this host's own address and interface by the route to the master.

use mpienv_core::{ClusterInfo, Error, Host, LaunchStyle, OwnAddr, Reason};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;
use std::{io, thread};

/// How long the master's name may take to resolve.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Returns this host's own address and interface on the route to rank 0, as `VLLM_HOST_IP`,
/// `GLOO_SOCKET_IFNAME` and `TP_SOCKET_IFNAME` need them.
///
/// Both come from the system's routing table; no packet is sent. If [`ClusterInfo::master_addr`] is
/// a name, it is resolved, which takes at most 10 seconds. On one node, the address may be a
/// loopback address. On several nodes, it never is.
///
/// ```
/// use mpienv::ask::{self, OwnAddr};
/// use mpienv::ClusterInfo;
///
/// let info = ClusterInfo::from_vars([("RANK", "0"), ("WORLD_SIZE", "1")])?;
/// let OwnAddr { address, interface, .. } = ask::own_addr(&info)?;
/// assert!(address.is_loopback());
/// println!("{address} on {}", interface.as_deref().unwrap_or("an unknown interface"));
/// # Ok::<(), mpienv::Error>(())
/// ```
///
/// # Errors
/// Returns an error if rank 0's host is not known, its name does not resolve, or no route leads
/// there. Also returns an error if the job is on several nodes and the route to the master uses a
/// loopback address of this host.
pub fn own_addr(info: &ClusterInfo) -> Result<OwnAddr, Error> {
    own_addr_within(info, PATIENCE)
}

/// Returns the same place with this host's own address, or why it has none.
#[must_use]
pub fn with_own_addr(info: &ClusterInfo) -> ClusterInfo {
    info.with_own_addr(own_addr(info))
}

/// Returns this host's own address, if the master's name resolves in time.
pub(crate) fn own_addr_within(info: &ClusterInfo, patience: Duration) -> Result<OwnAddr, Error> {
    let master = info.master_addr()?;
    let address = address_towards(info, master, patience).map_err(|why| {
        let command = info.launcher().spec().give_master;
        let remedy = format!("give an address of rank 0's host to all ranks: {command}");
        let error = Error::new(Reason::NoOwnAddr(why), remedy).by(info.launcher());
        error.of("MASTER_ADDR").found(master.to_string())
    })?;
    Ok(OwnAddr::new(address, name_of(address)))
}

/// Returns this host's address on the way to a host of the job.
pub(crate) fn address_towards(
    info: &ClusterInfo,
    host: &Host,
    patience: Duration,
) -> Result<IpAddr, String> {
    if *host == Host::ANY {
        return Err("rank 0 listens on every interface and does not know its own address".into());
    }
    let is_here = match info.launch_style() {
        LaunchStyle::Alone | LaunchStyle::SingleNode => true,
        LaunchStyle::Unknown => host.is_loopback(),
        _ => false,
    };
    let mut why = "its name has no address".to_owned();
    for to in resolve(host.to_string(), info.master_port().get(), patience)? {
        match local_address(to) {
            Ok(address) if is_here || !address.is_loopback() => return Ok(address),
            // Debian maps a host's own name to a loopback address in /etc/hosts.
            Ok(address) => {
                why = format!("the route to {} leads to this host itself, by {address}", to.ip())
            }
            Err(error) => why = format!("no route to {}: {error}", to.ip()),
        }
    }
    Err(why)
}

/// Returns the source address of packets to a socket address.
fn local_address(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // For UDP, this only selects the route and sends nothing.
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip().to_canonical())
}

/// Returns the name of this host's interface with an address.
pub(crate) fn name_of(address: IpAddr) -> Option<String> {
    let mut interfaces = interfaces().into_iter();
    interfaces.find(|(_, own)| own.to_canonical() == address).map(|(name, _)| name)
}

/// Returns whether an interface is a bridge of containers or virtual machines, or an end of a
/// virtual cable.
pub fn is_bridge(name: &str) -> bool {
    let prefixes =
        ["docker", "br-", "veth", "virbr", "cni", "podman", "lxdbr", "lxcbr", "nerdctl", "incusbr"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether an address is valid only on one cable.
pub fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns this host's interfaces: name and address, one entry for each address.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let found = if_addrs::get_if_addrs().unwrap_or_default();
    found.into_iter().map(|interface| (interface.name.clone(), interface.ip())).collect()
}

/// Returns the names of interfaces, each once.
#[must_use]
pub fn names_of(interfaces: &[(String, IpAddr)]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in interfaces {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// Does what may never return, in a thread that is abandoned then. Returns `None` after `patience`.
pub(crate) fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (sender, receiver) = mpsc::channel();
    // Once the time is up, nothing waits for the answer.
    thread::Builder::new().name("ask".to_owned()).spawn(move || drop(sender.send(ask())))?;
    Ok(receiver.recv_timeout(patience).ok())
}

/// Resolves a name, for which the system's resolver has no timeout. Returns `None` after `patience`.
#[must_use]
pub fn look_up(name: String, port: u16, patience: Duration) -> Option<io::Result<Vec<SocketAddr>>> {
    let ask = move || (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    within(patience, ask).unwrap_or_else(|error| Some(Err(error)))
}

/// Resolves a name, or tells why it does not resolve.
///
/// # Errors
/// Returns what the system says, or that there was no answer in time.
pub fn resolve(name: String, port: u16, patience: Duration) -> Result<Vec<SocketAddr>, String> {
    match look_up(name, port, patience) {
        Some(found) => found.map_err(|error| error.to_string()),
        None => Err(format!("no answer within {} s", patience.as_secs_f64())),
    }
}
