//! Where each rank listens, for programs that want a list of all.

use super::Target;
use crate::cluster::info::ClusterInfo;
use crate::error::{Error, Reason};
use crate::launcher::Launcher;
use crate::value::placement::LaunchStyle;
use crate::value::port::Port;

/// `host:port` of each rank, in rank order: on each host the ports from the master's on, one for each rank there.
pub(super) fn endpoints(info: &ClusterInfo, target: Target) -> Result<Vec<String>, Error> {
    let size = info.world_size();
    if info.local_world_size() == Some(size) {
        let host = info.master_addr()?;
        return (0..size).map(|rank| Ok(host.with_port(port(info, rank, target)?))).collect();
    }
    if let Some((hosts, per_node)) = info.hosts().zip(ranks_of_each_node(info)) {
        let ranks = hosts.iter().flat_map(|host| (0..per_node).map(move |rank| (host, rank)));
        return ranks.map(|(host, rank)| Ok(host.with_port(port(info, rank, target)?))).collect();
    }
    let what =
        format!("the hosts of all {size} ranks, and {} does not give them to its processes", info.launcher().title());
    let remedy = "start all ranks on one node, or one process on each node of a platform that lists its nodes";
    Err(Error::new(Reason::ProgramNeeds { program: target.title(), what }, remedy))
}

/// How many ranks each node has, node by node in the order of ranks; `None` if the launcher may deal them otherwise.
fn ranks_of_each_node(info: &ClusterInfo) -> Option<u32> {
    match info.launch_style() {
        LaunchStyle::PerNode => Some(1),
        // Workers that one process on each node starts.
        LaunchStyle::PerProcess if info.launcher() == Launcher::User => info.local_world_size(),
        _ => None,
    }
}

fn port(info: &ClusterInfo, local_rank: u32, target: Target) -> Result<Port, Error> {
    let first = info.master_port();
    let port = u16::try_from(local_rank).ok().and_then(|rank| first.get().checked_add(rank)).and_then(Port::new);
    port.ok_or_else(|| {
        let what = format!("a port for each rank of a node, and {first} + {local_rank} is above 65535");
        Error::new(Reason::ProgramNeeds { program: target.title(), what }, "set a lower MASTER_PORT")
    })
}
