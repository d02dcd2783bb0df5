//! What mistral.rs reads on several nodes.
//!
//! With NCCL, one process on each node starts the other processes of its node, one for each GPU, so
//! it does not read a rank. The ring has one process for each rank, each with a file of its own.

use super::peers::ipv4_endpoints;
use super::{Set, Target, TargetFile, Value, addition, decided, number};
use crate::cluster::info::ClusterInfo;
use crate::error::{Error, Reason};
use crate::launcher::mistralrs::{
    GLOBAL, HEAD_PORT, LOCAL, NO_NCCL, RING, SERVER, WORKER, WORKERS,
};
use crate::value::port::Port;

const RING_PAGE: &str = "[mistralrs-quant/src/distributed/mod.rs](https://github.com/EricLBuehler/mistral.rs/blob/master/mistralrs-quant/\
                         src/distributed/mod.rs)";
const PAGE: &str = "[mistralrs-core/src/distributed.rs](https://github.com/EricLBuehler/mistral.rs/blob/master/mistralrs-core/\
                    src/distributed.rs)";

pub(super) const SET: Set = Set {
    name: "mistralrs",
    title: "mistral.rs",
    note: "; start one process on each node, with MISTRALRS_MN_LOCAL_WORLD_SIZE set to the number of its GPUs; or, for the ring, \
           one for each rank with MISTRALRS_NO_NCCL=1, for which the hosts of all ranks must be known, from the launcher or by \
           exec --meet",
    page: PAGE,
    additions: &[
        addition(GLOBAL, "the number of GPUs of all nodes", global_size),
        addition(WORKERS, "on the first of several nodes: the number of the others", |info| {
            number(is_head(info).then(|| info.world_size() - 1))
        }),
        addition(HEAD_PORT, "on the first of several nodes: the port where it listens", |info| {
            Ok(is_head(info).then(|| info.master_port().to_string()))
        }),
        addition(SERVER, "on the other nodes: `address:port` of the first one", server),
        addition(WORKER, "on the other nodes: the number of this node, less one", |info| {
            number(info.rank().index().checked_sub(1).filter(|_| !is_ring(info)))
        }),
        addition(
            RING,
            "with MISTRALRS_NO_NCCL=1: a temporary file with this rank's place in the ring",
            decided,
        )
        .on(RING_PAGE),
    ],
    file: Some(ring),
    ..Set::PLAIN
};

/// Returns whether the user has chosen the ring instead of NCCL, as mistral.rs reads it.
fn is_ring(info: &ClusterInfo) -> bool {
    info.inherited.text(NO_NCCL) == Some("1")
}

/// Returns whether this is the first of several nodes.
fn is_head(info: &ClusterInfo) -> bool {
    info.rank().is_first() && info.world_size() > 1 && !is_ring(info)
}

fn ring(info: &ClusterInfo) -> Result<Option<TargetFile>, Error> {
    let size = info.world_size();
    if size == 1 || !is_ring(info) || info.inherited.is_set(RING) {
        return Ok(None);
    }
    if !size.is_power_of_two() {
        let what =
            format!("a power of two as the number of ranks of its ring, and there are {size}");
        return Err(needs(what, "start 2, 4, 8, ... ranks"));
    }
    let ranks = ipv4_endpoints(info, Target::MistralRs).map_err(|error| error.of(RING))?;
    let rank = info.rank().index();
    let place = |rank: u32| ranks.get(rank as usize);
    let Some(((_, own), (right_host, right))) = place(rank).zip(place((rank + 1) % size)) else {
        let what = format!("the addresses of {size} ranks, and {} are known", ranks.len());
        return Err(needs(what, "report this"));
    };
    let (own, right) = (ring_port(*own)?, ring_port(*right)?);
    let (master, master_port) = (info.master_addr()?, info.master_port());
    // Hosts and ports contain nothing that JSON must escape.
    let text = format!(
        "{{\"master_ip\": \"{master}\", \"master_port\": {master_port}, \"port\": {own}, \"right_ip\": \"{right_host}\", \
         \"right_port\": {right}, \"rank\": {rank}, \"world_size\": {size}}}\n"
    );
    Ok(Some(TargetFile { variable: RING, text }))
}

/// Returns the port where a rank's neighbor connects: rank 0 listens on the master's port, too.
fn ring_port(port: Port) -> Result<Port, Error> {
    port.get().checked_add(1).and_then(Port::new).ok_or_else(|| {
        let what = format!("a port for each rank, and {port} + 1 is above 65535");
        needs(what, "set a lower MASTER_PORT")
    })
}

fn global_size(info: &ClusterInfo) -> Value {
    if is_ring(info) {
        return Ok(None);
    }
    info.check_per_node()?;
    if info.world_size() == 1 {
        return Ok(None);
    }
    let Some(gpus) = info.inherited.setting_text(LOCAL)? else {
        return Err(needs(
            format!("{LOCAL}, the number of GPUs of each node, which no launcher gives"),
            "set it on all nodes, or MISTRALRS_NO_NCCL=1 for the ring of all ranks",
        ));
    };
    let gpus_of_node = gpus.parse::<u32>().ok().filter(|&gpus| gpus > 0);
    let all = gpus_of_node.and_then(|gpus| gpus.checked_mul(info.world_size()));
    let all = all.ok_or_else(|| Error::of_setting(Reason::NotANumber, LOCAL, gpus))?;
    number(Some(all))
}

fn server(info: &ClusterInfo) -> Value {
    if info.rank().is_first() || is_ring(info) {
        return Ok(None);
    }
    let master = info.master_addr()?;
    match master.address() {
        Some(_) => Ok(Some(master.with_port(info.master_port()))),
        None => Err(needs(
            format!("the address of the first node, and {master} is a name"),
            "set MPIENV_MASTER_ADDR to the address",
        )),
    }
}

fn needs(what: String, remedy: &'static str) -> Error {
    Error::new(Reason::ProgramNeeds { program: Target::MistralRs.title(), what }, remedy)
}
