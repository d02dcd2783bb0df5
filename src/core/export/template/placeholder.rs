//! The placeholders' names and values.

use crate::cluster::info::ClusterInfo;
use crate::cluster::interface::OwnAddr;
use crate::error::Error;

/// A placeholder: its name, what replaces it, and its value.
pub(super) type Placeholder =
    (&'static str, &'static str, fn(&ClusterInfo) -> Result<Value, Unknown>);

pub(super) const PLACEHOLDERS: &[Placeholder] = &[
    ("rank", "the number of this process in the job, from 0", |info| {
        Ok(number(info.rank().index()))
    }),
    ("world_size", "the number of processes in the job", |info| Ok(number(info.world_size()))),
    ("local_rank", "the number of this process on its node, from 0", |info| {
        known(info, info.local_rank())
    }),
    ("local_world_size", "the number of processes on this node", local_size),
    ("nproc_per_node", "the same as `local_world_size`, as launchers name it", local_size),
    ("node_rank", "the number of this node, from 0", |info| node(info, info.node_rank())),
    ("nnodes", "the number of nodes", |info| node(info, info.node_count())),
    ("master_addr", "the host of rank 0: a name, or an address without brackets", |info| {
        Ok(Value::Text(info.master_addr().map_err(Unknown::Error)?.to_string()))
    }),
    (MASTER_PORT, "the port at the host of rank 0", |info| {
        Ok(Value::Number(info.master_port().get().into()))
    }),
    ("master", "`host:port` of rank 0, with an IPv6 address in brackets", |info| {
        Ok(Value::Text(info.master_addr().map_err(Unknown::Error)?.with_port(info.master_port())))
    }),
    ("own_addr", "this host's own address on the way to rank 0", |info| {
        Ok(Value::Text(own(info)?.address.to_string()))
    }),
    ("interface", "the network interface with that address", interface),
    ("restart", "how often the job was restarted, from 0", |info| {
        known(info, info.restart_count())
    }),
    ("hosts", "the hosts of all nodes, in order, with commas", hosts),
    (
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
    let own = info.surroundings.own_addr.as_ref().ok_or_else(why)?;
    own.as_ref().map_err(|error| Unknown::Error(error.clone()))
}

fn interface(info: &ClusterInfo) -> Result<Value, Unknown> {
    let OwnAddr { address, interface } = own(info)?;
    let why = || Unknown::Because(format!("no interface has {address}"));
    interface.clone().map(Value::Text).ok_or_else(why)
}

fn hosts(info: &ClusterInfo) -> Result<Value, Unknown> {
    let why = || Unknown::Because(info.provenance().hosts.to_string());
    let names: Vec<_> = info.hosts().ok_or_else(why)?.iter().map(ToString::to_string).collect();
    Ok(Value::Text(names.join(",")))
}

fn number(value: u32) -> Value {
    Value::Number(value.into())
}

fn local_size(info: &ClusterInfo) -> Result<Value, Unknown> {
    known(info, info.local_world_size())
}

fn known(info: &ClusterInfo, value: Option<u32>) -> Result<Value, Unknown> {
    value.map(number).ok_or_else(|| Unknown::Because(not_given(info)))
}

fn node(info: &ClusterInfo, value: Option<u32>) -> Result<Value, Unknown> {
    value.map(number).ok_or_else(|| {
        let command = info.launcher().spec().one_per_node;
        let remedy = format!("start one process on each node: {command}");
        Unknown::Because(format!("{}; {remedy}", not_given(info)))
    })
}

fn not_given(info: &ClusterInfo) -> String {
    format!("{} does not give it to its processes", info.launcher().title())
}
