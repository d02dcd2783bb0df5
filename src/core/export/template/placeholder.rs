//! The placeholders' names and values.

use crate::cluster::info::ClusterInfo;
use crate::cluster::interface::OwnAddr;
use crate::error::Error;
use crate::value::host::Host;

/// The placeholders, each with what replaces it.
pub(super) const PLACEHOLDERS: &[Placeholder] = &[
    placeholder("rank", "the number of this process in the job, from 0", |info| {
        Ok(number(info.rank().index()))
    }),
    placeholder("world_size", "the number of processes in the job", |info| {
        Ok(number(info.world_size()))
    }),
    placeholder("local_rank", "the number of this process on its node, from 0", |info| {
        known(info, info.local_rank())
    }),
    placeholder("local_world_size", "the number of processes on this node", |info| {
        known(info, info.local_world_size())
    }),
    placeholder("nproc_per_node", "the same as `local_world_size`, as launchers name it", |info| {
        known(info, info.local_world_size())
    }),
    placeholder("node_rank", "the number of this node, from 0", |info| {
        node(info, info.node_rank())
    }),
    placeholder("nnodes", "the number of nodes", |info| node(info, info.node_count())),
    placeholder(
        "master_addr",
        "the host of rank 0: a name, or an address without brackets",
        |info| Ok(Value::Text(info.master_addr().map_err(Unknown::Error)?.to_string())),
    ),
    placeholder("master_port", "the port at the host of rank 0", |info| {
        Ok(Value::Number(info.master_port().get().into()))
    }),
    placeholder("master", "`host:port` of rank 0, with an IPv6 address in brackets", |info| {
        Ok(Value::Text(info.master_addr().map_err(Unknown::Error)?.with_port(info.master_port())))
    }),
    placeholder("own_addr", "this host's own address on the way to rank 0", own_addr),
    placeholder("interface", "the network interface with that address", interface),
    placeholder("restart", "how often the job was restarted, from 0", |info| {
        known(info, info.restart_count())
    }),
    placeholder("hosts", "the hosts of all nodes, in order, with commas", hosts),
    placeholder(
        SECRET,
        "a random secret of all ranks, for a variable: `mpienv exec --template --meet 600 -- env NAME={secret} CMD...`",
        |_| {
            let why = "the ranks get it when they meet, in `mpienv exec --meet TIME`";
            Err(Unknown::Because(why.to_owned()))
        },
    ),
];

/// Placeholders whose values come from the system's routes and name service, which takes time.
pub(super) const ASKED: [&str; 2] = ["own_addr", "interface"];

/// Placeholders that describe a process, and not the node whose programs it starts.
pub(super) const OF_PROCESS: [&str; 5] =
    ["rank", "world_size", "local_rank", "local_world_size", "nproc_per_node"];

pub(super) const MASTER_PORT: &str = "master_port";

/// The placeholder whose value does not come from the environment.
pub(super) const SECRET: &str = "secret";

pub(super) struct Placeholder {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) value: fn(&ClusterInfo) -> Result<Value, Unknown>,
}

const fn placeholder(
    name: &'static str,
    meaning: &'static str,
    value: fn(&ClusterInfo) -> Result<Value, Unknown>,
) -> Placeholder {
    Placeholder { name, meaning, value }
}

/// What replaces a placeholder.
pub(super) enum Value {
    Number(u64),
    Text(String),
}

/// Why a placeholder has no value.
pub(super) enum Unknown {
    Error(Error),
    Because(String),
}

fn own(info: &ClusterInfo) -> Result<&OwnAddr, Unknown> {
    let why = || Unknown::Because("this host was not asked for its own address".to_owned());
    info.surroundings
        .own_addr
        .as_ref()
        .ok_or_else(why)?
        .as_ref()
        .map_err(|error| Unknown::Error(error.clone()))
}

fn own_addr(info: &ClusterInfo) -> Result<Value, Unknown> {
    Ok(Value::Text(own(info)?.address.to_string()))
}

fn interface(info: &ClusterInfo) -> Result<Value, Unknown> {
    let OwnAddr { address, interface } = own(info)?;
    let why = || Unknown::Because(format!("no interface has {address}"));
    interface.clone().map(Value::Text).ok_or_else(why)
}

fn number(value: u32) -> Value {
    Value::Number(value.into())
}

fn known(info: &ClusterInfo, value: Option<u32>) -> Result<Value, Unknown> {
    let why = || {
        Unknown::Because(format!("{} does not give it to its processes", info.launcher().title()))
    };
    value.map(number).ok_or_else(why)
}

fn hosts(info: &ClusterInfo) -> Result<Value, Unknown> {
    let names =
        |hosts: &[Host]| hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let why = || Unknown::Because(info.provenance().hosts.to_string());
    info.hosts().map(|hosts| Value::Text(names(hosts))).ok_or_else(why)
}

fn node(info: &ClusterInfo, value: Option<u32>) -> Result<Value, Unknown> {
    let spec = info.launcher().spec();
    let why = || {
        let title = info.launcher().title();
        Unknown::Because(format!(
            "{title} does not give it to its processes; start one process on each node: {}",
            spec.one_per_node
        ))
    };
    value.map(number).ok_or_else(why)
}
