//! Finds the network interface, and what each library calls it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use mpienv_core::seam::{ASKED, INTERFACE, NCCL_DEFAULT, NCCL_IFNAME, Sourced};
use mpienv_core::{
    ClusterInfo, Error, Host, Interface, LaunchStyle, OwnAddr, OwnInterface, Reason, host_name,
};

use crate::route::{
    self, address_towards, interfaces, is_bridge, is_link_local, name_of, names_of,
    own_addr_within, resolve,
};

/// The variable that gloo reads.
const GLOO: &str = "GLOO_SOCKET_IFNAME";
/// How long a name may take to resolve if no setting names an interface.
const PATIENCE_OF_DEFAULT: Duration = Duration::from_secs(2);
/// How many other hosts are tried if there is no route to the master.
const MOST_TRIED: usize = 2;
/// Where Linux describes its devices.
const DEVICES: &str = "/sys/class";
/// A table of an InfiniBand port has at most so many addresses.
const MOST_GIDS: usize = 256;

/// Names of this host's interfaces, each with an address.
type Interfaces = [(String, IpAddr)];

/// An interface, this host's address on it, and why it is this one.
struct Found {
    name: String,
    address: IpAddr,
    why: String,
}

/// Returns the same place, whose exports also tell the libraries of a program which network
/// interface to use.
///
/// The builder's [`interface`](mpienv_core::ClusterInfoBuilder::interface) or the variable
/// `MPIENV_INTERFACE` selects it; without them, it is [`Interface::Default`]. These variables are
/// set, each unless it has a value already: `GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME`,
/// `NCCL_SOCKET_IFNAME`, `UCX_NET_DEVICES` and `VLLM_HOST_IP`. With the default, it is only the
/// first. [`ClusterInfo::interface`] returns them. If all ranks are on this host, and the default of
/// `NCCL_SOCKET_IFNAME` excludes all its interfaces, that variable is not set.
///
/// No packet is sent to the job's hosts. For [`Interface::Auto`], the names of hosts are resolved,
/// each for at most 10 seconds; for the default at most 2 seconds. `mpienv exec` and `launch` call
/// this function.
///
/// ```
/// use mpienv::{ClusterInfo, ask};
///
/// let vars = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MPIENV_INTERFACE", "auto")];
/// let info = ask::on_interface(&ClusterInfo::from_vars(vars)?)?;
/// let own = info.interface().expect("a host has a loopback interface");
/// assert_eq!(info.exports()?.get("NCCL_SOCKET_IFNAME"), Some(&*format!("={}", own.name)));
/// # Ok::<(), mpienv::Error>(())
/// ```
///
/// # Errors
/// Returns an error if this host has no such interface, or several. Also returns an error for
/// [`Interface::Auto`] if [`own_addr`](crate::own_addr) does and the host has not exactly one
/// interface that other hosts may reach. The default returns no error.
pub fn on_interface(info: &ClusterInfo) -> Result<ClusterInfo, Error> {
    let default = Sourced::new(Interface::Default, "default");
    let asked = info.asked_interface().unwrap_or(&default);
    let found = match &asked.value {
        Interface::Default if gloo_finds_nothing(info) => {
            towards_the_job(info, PATIENCE_OF_DEFAULT).ok()
        }
        Interface::Auto => Some(towards_the_job(info, route::PATIENCE)?),
        Interface::Name(name) => {
            let all = interfaces();
            let own = address_on(&all, |own, _| own == name);
            Some(own.ok_or_else(|| refuse(asked, "no interface has this name", &all))?)
        }
        Interface::Within(subnet) => {
            let all = interfaces();
            let within = |_: &str, address| subnet.contains(address);
            let own = address_on(&all, within);
            let own = own.ok_or_else(|| refuse(asked, "no address is in this range", &all))?;
            if !is_only(&own, &all, within) {
                return Err(refuse(asked, "several interfaces are in this range", &all));
            }
            Some(own)
        }
        // Every library chooses by itself.
        _ => None,
    };
    let found = found.map(|found| named(info, found, asked));
    Ok(on_own_interfaces(info.with_interface(found)))
}

/// Returns the same place without NCCL's default where that excludes all interfaces of the job's
/// only host. Resolves no name.
#[must_use]
pub fn on_own_interfaces(info: ClusterInfo) -> ClusterInfo {
    let is_default = info.nccl_is_default() && info.nccl_socket_ifname() == Some(NCCL_DEFAULT);
    if is_default && info.node_count() == Some(1) && nccl_has_none(&interfaces()) {
        // With the default, NCCL fails. Without it, NCCL chooses an interface itself.
        return info.without_nccl_default(
            "not set, because the default excludes all interfaces of this host",
        );
    }
    info
}

/// Returns what an interface is called in each variable that is to be set.
fn named(info: &ClusterInfo, found: Found, asked: &Sourced<Interface>) -> OwnInterface {
    let Found { name, address, why } = found;
    let is_default = asked.value == Interface::Default;
    let values = [
        // A list of complete names, one for each device.
        (GLOO, name.clone()),
        ("TP_SOCKET_IFNAME", name.clone()),
        // Without `=`, a name would be a prefix.
        (NCCL_IFNAME, format!("={name}")),
        ("UCX_NET_DEVICES", ucx_devices(Path::new(DEVICES), &name)),
        ("VLLM_HOST_IP", address.to_string()),
    ];
    let is_kept = |variable: &'static str| match variable {
        NCCL_IFNAME => !info.nccl_is_default(),
        other => info.environment().is_set(other),
    };
    let (kept, set): (Vec<_>, Vec<_>) = values
        .into_iter()
        .filter(|(variable, _)| !is_default || *variable == GLOO)
        .partition(|(variable, _)| is_kept(variable));
    let kept = kept.into_iter().map(|(variable, _)| variable).collect();
    let source = match &*asked.source {
        "default" => format!("default: {why}"),
        source => format!("{} ({source}): {why}", asked.value),
    };
    OwnInterface::new(name, address, source, set, kept)
}

/// Returns whether the job is known to be on several nodes and gloo would use a loopback
/// address, because this host's name has no other.
fn gloo_finds_nothing(info: &ClusterInfo) -> bool {
    let is_on_several =
        matches!(info.launch_style(), LaunchStyle::PerNode | LaunchStyle::PerProcess)
            || info.node_count().is_some_and(|nodes| nodes > 1);
    // The ranks of a job that meets on a loopback address are all on this host.
    let is_here = info.master_addr().is_ok_and(Host::is_loopback);
    is_on_several && !is_here && !info.environment().is_set(GLOO) && {
        let own = host_name().and_then(|name| resolve(name, 0, PATIENCE_OF_DEFAULT).ok());
        let own = own.unwrap_or_default();
        let own = own.iter().map(|address| address.ip().to_canonical());
        gloo_takes(own, &interfaces()).is_none_or(|address| address.is_loopback())
    }
}

/// Returns the interface with the route to the master. From the master's own host, which may
/// know itself by a loopback address, it is the one with the route to another host of the job,
/// or the only one that other hosts may reach.
fn towards_the_job(info: &ClusterInfo, patience: Duration) -> Result<Found, Error> {
    let found =
        |address: IpAddr, why: String| name_of(address).map(|name| Found { name, address, why });
    let error = match own_addr_within(info, patience) {
        Ok(OwnAddr { address, .. }) => {
            let why = info.master_addr().map(|master| format!("the route to {master}"))?;
            return found(address, why).ok_or_else(|| {
                let reason = Reason::NoOwnAddr(format!("no interface has the address {address}"));
                let remedy = format!("set {INTERFACE} to an interface's name");
                Error::new(reason, remedy).by(info.launcher())
            });
        }
        Err(error) => error,
    };
    let master = info.master_addr().ok();
    let others = info.hosts().unwrap_or_default().iter().filter(|host| Some(*host) != master);
    let mut routes = others.take(MOST_TRIED).filter_map(|host| {
        let address = address_towards(info, host, patience).ok()?;
        found(address, format!("the route to {host}"))
    });
    routes.next().or_else(|| only(&interfaces())).ok_or(error)
}

/// Returns the address that gloo uses: the first of this host's name that is one of this host.
fn gloo_takes(mut of_name: impl Iterator<Item = IpAddr>, all: &Interfaces) -> Option<IpAddr> {
    let is_own = |address: &IpAddr| all.iter().any(|(_, own)| own.to_canonical() == *address);
    of_name.find(|address| address.is_loopback() || is_own(address))
}

/// Returns whether NCCL's default excludes all interfaces.
fn nccl_has_none(interfaces: &Interfaces) -> bool {
    // An empty list is one that could not be read.
    !interfaces.is_empty() && !interfaces.iter().any(|(name, _)| nccl_takes(NCCL_DEFAULT, name))
}

/// Returns whether NCCL's grammar selects a name: `^` in front excludes, then `=` requires whole
/// names; otherwise, entries are prefixes.
///
/// As in NCCL's `ncclFindInterfaces`, both marks apply to the whole list.
pub fn nccl_takes(value: &str, name: &str) -> bool {
    let (excludes, list) = value.strip_prefix('^').map_or((false, value), |list| (true, list));
    let (whole, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
    let mut entries = list.split(',').map(|entry| entry.split(':').next().unwrap_or(entry));
    let listed = entries.any(|entry| {
        !entry.is_empty() && if whole { name == entry } else { name.starts_with(entry) }
    });
    listed != excludes
}

/// Returns the only interface that other hosts may reach.
fn only(all: &Interfaces) -> Option<Found> {
    let may_reach = |name: &str, address: IpAddr| {
        !address.is_loopback() && !is_link_local(&address) && !is_bridge(name)
    };
    let own = address_on(all, may_reach).filter(|own| is_only(own, all, may_reach))?;
    Some(Found { why: "the only interface that other hosts may reach".to_owned(), ..own })
}

/// Returns whether no other interface has an address that is wanted.
fn is_only(own: &Found, all: &Interfaces, is_wanted: impl Fn(&str, IpAddr) -> bool) -> bool {
    let mut others = all.iter().filter(|(name, _)| *name != own.name);
    !others.any(|(name, address)| is_wanted(name, *address))
}

/// Returns the first address that is wanted: IPv4 before IPv6, and link-local ones last, because
/// few programs accept a zone.
fn address_on(all: &Interfaces, is_wanted: impl Fn(&str, IpAddr) -> bool) -> Option<Found> {
    let wanted = all.iter().filter(|(name, address)| is_wanted(name, *address));
    let (name, address) =
        wanted.min_by_key(|(_, address)| (is_link_local(address), address.is_ipv6()))?;
    let why = format!("this host's {address}");
    Some(Found { name: name.clone(), address: address.to_canonical(), why })
}

fn refuse(asked: &Sourced<Interface>, why: &str, interfaces: &Interfaces) -> Error {
    let variable = if asked.source == ASKED { "--interface" } else { INTERFACE };
    let listed = names_of(interfaces).into_iter().map(|name| {
        let own = interfaces.iter().filter(|(own, _)| own == name);
        let own: Vec<_> = own.map(|(_, address)| address.to_string()).collect();
        format!("{name} ({})", own.join(" "))
    });
    let reason = format!("{why}; this host has {}", listed.collect::<Vec<_>>().join(", "));
    let remedy = "name one of these interfaces, or a range with an address of only one";
    Error::new(Reason::NoInterface(reason), remedy).of(variable).found(asked.value.to_string())
}

/// Returns the devices of an interface as UCX calls them: its RDMA devices with their ports, and
/// the interface itself, which UCX uses for TCP. Without the former, UCX would give up RDMA.
fn ucx_devices(devices: &Path, name: &str) -> String {
    // An address may have a label of its own, such as `eth0:1`.
    let name = name.split(':').next().unwrap_or(name);
    let mut ports = Vec::new();
    let infiniband = devices.join("infiniband");
    for device in entries(&infiniband) {
        let of_device = infiniband.join(&device).join("ports");
        let own = entries(&of_device);
        let own =
            own.iter().filter(|port| has(&of_device.join(port).join("gid_attrs/ndevs"), name));
        ports.extend(own.map(|port| format!("{device}:{port}")));
    }
    if ports.is_empty() {
        // InfiniBand's own table names no interface. The interface's number counts from 0.
        let interface = devices.join("net").join(name);
        let number = read(&interface.join("dev_port")).and_then(|text| text.parse::<u32>().ok());
        let port = number.unwrap_or(0) + 1;
        let own = entries(&interface.join("device/infiniband"));
        ports.extend(own.iter().map(|device| format!("{device}:{port}")));
    }
    ports.push(name.to_owned());
    ports.join(",")
}

/// Returns whether one of an RDMA port's addresses is an interface's.
fn has(table: &Path, name: &str) -> bool {
    let mut rows = (0..MOST_GIDS).map(|row| table.join(row.to_string()));
    rows.any(|row| read(&row).is_some_and(|owner| owner == name))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the names of what is in a folder, in alphabetical order.
pub fn entries(folder: &Path) -> Vec<String> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interfaces in a text such as `lo 127.0.0.1, eth0 10.0.0.4`.
    fn these(text: &str) -> Vec<(String, IpAddr)> {
        let pair = |text: &str| {
            let (name, address) = text.split_once(' ').unwrap();
            (name.to_owned(), address.parse().unwrap())
        };
        text.split(", ").map(pair).collect()
    }

    #[test]
    fn gloo_takes_the_first_address_of_the_hosts_name_that_is_its_own() {
        let own = these("lo 127.0.0.1, eth0 10.0.0.4, eth1 10.1.0.4");
        let takes = |text: &str| {
            let addresses = text.split_whitespace().map(|text| text.parse().unwrap());
            gloo_takes(addresses, &own).map(|address| address.to_string())
        };
        for (of_name, taken) in [
            ("", None),
            ("10.9.9.9", None),
            ("127.0.1.1", Some("127.0.1.1")),
            ("10.9.9.9 10.1.0.4", Some("10.1.0.4")),
            ("127.0.1.1 10.0.0.4", Some("127.0.1.1")),
        ] {
            assert_eq!(takes(of_name).as_deref(), taken, "{of_name}");
        }
    }

    #[test]
    fn the_only_interface_is_neither_loopback_nor_a_bridge_nor_link_local() {
        let name =
            |text: &str| only(&these(text)).map(|own| format!("{} {}", own.name, own.address));
        let host =
            "lo 127.0.0.1, docker0 172.17.0.1, usb0 169.254.3.1, eth0 fd77::4, eth0 10.0.0.4";
        assert_eq!(name(host).as_deref(), Some("eth0 10.0.0.4"));
        assert_eq!(name(&format!("{host}, eth1 10.1.0.4")), None);
        assert_eq!(name("lo 127.0.0.1, docker0 172.17.0.1"), None);
    }

    #[test]
    fn nccl_is_left_nothing_where_a_host_has_only_loopback_and_dockers_bridge() {
        assert!(nccl_has_none(&these("lo 127.0.0.1")));
        assert!(nccl_has_none(&these("lo 127.0.0.1, docker0 172.17.0.1")));
        assert!(!nccl_has_none(&these("lo 127.0.0.1, eth0 10.0.0.4")));
    }

    #[test]
    fn ucx_gets_the_rdma_device_of_an_interface_and_the_interface_for_tcp() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // InfiniBand: the second port of one device. RoCE: a VLAN of another device.
        write("net/ib1/dev_port", "1\n");
        write("net/ib1/device/infiniband/mlx5_0/node_type", "1: CA\n");
        write("infiniband/mlx5_0/ports/2/gid_attrs/types/0", "IB/RoCE v1\n");
        write("infiniband/mlx5_2/ports/1/gid_attrs/ndevs/0", "ens2\n");
        write("infiniband/mlx5_2/ports/1/gid_attrs/ndevs/3", "ens2.7\n");
        write("net/eth0/dev_port", "0\n");
        for (name, devices) in [
            ("ib1", "mlx5_0:2,ib1"),
            ("ens2", "mlx5_2:1,ens2"),
            ("ens2.7", "mlx5_2:1,ens2.7"),
            ("eth0", "eth0"),
            ("eth0:1", "eth0"),
        ] {
            assert_eq!(ucx_devices(root, name), devices);
        }
    }
}
