//! What this host is like: everything that a check looks at, gathered once.

use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::mpi_library::MpiLibrary;
use crate::environment::Environment;
use crate::host::Host;
use crate::host_name::host_name;
use crate::info::ClusterInfo;

/// What the checks look at beside the environment.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The master's addresses as this host resolves them, or why it does not; none where no master is known.
    pub master: Result<Vec<IpAddr>, String>,
    /// This host's interfaces: name and address, one row for each address.
    pub interfaces: Vec<(String, IpAddr)>,
    /// Whether nothing listens on the master's port.
    pub port_is_free: bool,
    /// Ports of outgoing connections.
    pub ephemeral_ports: Option<RangeInclusive<u16>>,
    /// This host's name, and the addresses that it has for it.
    pub own_name: (String, Vec<IpAddr>),
    /// How many cores this process may use, and how many are online.
    pub cores: Option<(usize, usize)>,
    /// The MPI library that programs find; `None` without the feature `mpi`, and where no launcher of MPI programs
    /// started several ranks.
    pub mpi: Option<MpiLibrary>,
    /// Whether a folder is there.
    pub is_folder: fn(&Path) -> bool,
}

impl Machine {
    /// This host, as it is now. Names are resolved for at most `patience` each.
    #[must_use]
    pub fn here(info: &ClusterInfo, environment: &Environment, patience: Duration) -> Machine {
        let name = host_name().unwrap_or_default();
        let own = resolve(name.clone(), patience).unwrap_or_default();
        Machine {
            master: info.master_addr().map_or(Ok(Vec::new()), |host| addresses(host, patience)),
            interfaces: interfaces(),
            port_is_free: port_is_free(info),
            ephemeral_ports: ephemeral_ports(),
            own_name: (name, own),
            cores: cores(),
            mpi: mpi(info, environment),
            is_folder: Path::is_dir,
        }
    }

    /// The names of the interfaces, each once.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in &self.interfaces {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }
}

#[cfg(feature = "mpi")]
fn mpi(info: &ClusterInfo, environment: &Environment) -> Option<MpiLibrary> {
    MpiLibrary::here(info, environment)
}

#[cfg(not(feature = "mpi"))]
fn mpi(_info: &ClusterInfo, _environment: &Environment) -> Option<MpiLibrary> {
    None
}

fn addresses(host: &Host, patience: Duration) -> Result<Vec<IpAddr>, String> {
    match host.address() {
        Some(address) => Ok(vec![address]),
        None => resolve(host.to_string(), patience),
    }
}

/// The system's resolver knows no deadline, so it is asked from a thread that may be left behind.
fn resolve(name: String, patience: Duration) -> Result<Vec<IpAddr>, String> {
    let (sender, receiver) = mpsc::channel();
    let asked = name.clone();
    let ask = move || {
        let found = (asked.as_str(), 0).to_socket_addrs();
        let found = found.map(|found| found.map(|address| address.ip().to_canonical()).collect());
        // Whoever asked may have gone.
        let _ = sender.send(found.map_err(|error: io::Error| error.to_string()));
    };
    thread::Builder::new().spawn(ask).map_err(|error| error.to_string())?;
    receiver.recv_timeout(patience).unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs_f64())))
}

fn interfaces() -> Vec<(String, IpAddr)> {
    let found = if_addrs::get_if_addrs().unwrap_or_default();
    found.into_iter().map(|interface| (interface.name.clone(), interface.ip())).collect()
}

fn port_is_free(info: &ClusterInfo) -> bool {
    let port = info.master_port().get();
    let tried = [TcpListener::bind(("::", port)), TcpListener::bind(("0.0.0.0", port))];
    !tried.iter().any(|tried| tried.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse))
        || tried.iter().any(Result::is_ok)
}

fn ephemeral_ports() -> Option<RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u16>().ok());
    Some(numbers.next()??..=numbers.next()??)
}

/// Nobody binds processes to cores where the system has no such thing.
#[cfg(not(target_os = "linux"))]
fn cores() -> Option<(usize, usize)> {
    None
}

#[cfg(target_os = "linux")]
fn cores() -> Option<(usize, usize)> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?.count();
    // In a container these are the container's, elsewhere all that are online.
    let files = ["/sys/fs/cgroup/cpuset.cpus.effective", "/sys/devices/system/cpu/online"];
    let online = files.iter().find_map(|file| count_cores(&std::fs::read_to_string(file).ok()?))?;
    Some((usize::try_from(allowed).ok()?, online))
}

/// How many cores a list like `0-3,8` has.
#[cfg(any(test, target_os = "linux"))]
fn count_cores(list: &str) -> Option<usize> {
    list.trim()
        .split(',')
        .map(|run| {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            Some(last.checked_sub(first)? + 1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(count_cores("0-3,8\n"), Some(5));
        assert_eq!(count_cores("0"), Some(1));
        assert_eq!(count_cores("\n"), None);
    }
}
