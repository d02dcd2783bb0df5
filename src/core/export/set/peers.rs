//! Where each rank listens, for programs that need a list of all ranks.

use std::net::SocketAddr;

use super::Target;
use crate::cluster::info::ClusterInfo;
use crate::cluster::interface::OwnAddr;
use crate::error::{Error, Reason};
use crate::launcher::Launcher;
use crate::launcher::placement::LaunchStyle;
use crate::value::host::Host;
use crate::value::port::Port;

/// Returns `host:port` of each rank, in rank order. On each host, ports start at the master's, one
/// for each rank there.
pub(super) fn endpoints(info: &ClusterInfo, target: Target) -> Result<Vec<String>, Error> {
    let size = info.world_size();
    if let Some(endpoints) = &info.endpoints {
        return Ok(endpoints.to_vec());
    }
    let own = |(host, rank): (&Host, u32)| Ok(host.with_port(port(info, rank, target.title())?));
    if info.local_world_size() == Some(size) {
        let host = info.master_addr()?;
        return (0..size).map(|rank| own((host, rank))).collect();
    }
    if let Some((hosts, per_node)) = info.hosts().zip(ranks_of_each_node(info)) {
        let ranks = hosts.iter().flat_map(|host| (0..per_node).map(move |rank| (host, rank)));
        return ranks.map(own).collect();
    }
    let remedy = "start all ranks on one node, or one process on each node of a platform that lists its nodes";
    Err(Error::new(Reason::HostsUnknown { program: target.title(), world_size: size }, remedy)
        .by(info.launcher()))
}

impl ClusterInfo {
    /// Returns where this rank listens, for programs that need a list of all ranks: `host:port`
    /// with its host's own address.
    #[doc(hidden)]
    pub fn own_endpoint(&self, own: &OwnAddr) -> Result<String, Error> {
        let program = "the list of all ranks";
        let remedy = "start all ranks on one node";
        let missing = || Error::new(Reason::NoLocalRank { program }, remedy);
        let port = port(self, self.local_rank().ok_or_else(missing)?, program)?;
        Ok(SocketAddr::new(own.address, port.get()).to_string())
    }

    /// Returns the same place with the [`own_endpoint`](ClusterInfo::own_endpoint) of each rank.
    #[doc(hidden)]
    pub fn with_endpoints(&self, endpoints: Vec<String>) -> ClusterInfo {
        ClusterInfo { endpoints: Some(endpoints.into()), ..self.clone() }
    }
}

/// Returns the host and the port of each rank, in rank order, for programs that only know IPv4.
pub(super) fn ipv4_endpoints(
    info: &ClusterInfo,
    target: Target,
) -> Result<Vec<(String, Port)>, Error> {
    let split = |endpoint: String| {
        let found = endpoint.rsplit_once(':').filter(|(host, _)| !host.contains(':'));
        let found = found.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        found.ok_or_else(|| {
            let what = format!("an IPv4 address of each rank, and a rank is at {endpoint}");
            let remedy = "set MPIENV_MASTER_ADDR to an IPv4 address, so that the ranks use IPv4";
            Error::new(Reason::ProgramNeeds { program: target.title(), what }, remedy)
        })
    };
    endpoints(info, target)?.into_iter().map(split).collect()
}

/// Returns how many ranks each node has. `None` if the launcher may assign ranks other than node by
/// node.
fn ranks_of_each_node(info: &ClusterInfo) -> Option<u32> {
    match info.launch_style() {
        LaunchStyle::PerNode => Some(1),
        // Workers that were started by one process on each node.
        LaunchStyle::PerProcess if info.launcher() == Launcher::User => info.local_world_size(),
        _ => None,
    }
}

fn port(info: &ClusterInfo, local_rank: u32, program: &'static str) -> Result<Port, Error> {
    let first = info.master_port();
    let port = u16::try_from(local_rank).ok().and_then(|rank| first.get().checked_add(rank));
    port.and_then(Port::new).ok_or_else(|| {
        let what =
            format!("a port for each rank of a node, and {first} + {local_rank} is above 65535");
        Error::new(Reason::ProgramNeeds { program, what }, "set a lower MASTER_PORT")
    })
}
