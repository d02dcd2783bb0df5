//! What mistral.rs reads on several nodes.
//!
//! One process on each node starts the other processes of its node, one for each GPU, so it does
//! not read a rank.

use super::{Set, Target, addition, number};
use crate::cluster::info::ClusterInfo;
use crate::error::{Error, Reason};

const LOCAL: &str = "MISTRALRS_MN_LOCAL_WORLD_SIZE";
const PAGE: &str = "[mistralrs-core/src/distributed.rs](https://github.com/EricLBuehler/mistral.rs/blob/master/mistralrs-core/\
                    src/distributed.rs)";

pub(super) const SET: Set = Set {
    name: "mistralrs",
    title: "mistral.rs",
    note: "; start one process on each node, with MISTRALRS_MN_LOCAL_WORLD_SIZE set to the number of its GPUs",
    additions: &[
        addition(
            "MISTRALRS_MN_GLOBAL_WORLD_SIZE",
            "the number of GPUs of all nodes",
            PAGE,
            global_size,
        ),
        addition(
            "MISTRALRS_MN_HEAD_NUM_WORKERS",
            "on the first of several nodes: the number of the others",
            PAGE,
            |info| {
                number(
                    (info.rank().is_first() && info.world_size() > 1)
                        .then(|| info.world_size() - 1),
                )
            },
        ),
        addition(
            "MISTRALRS_MN_HEAD_PORT",
            "on the first of several nodes: the port where it listens",
            PAGE,
            |info| {
                let is_head = info.rank().is_first() && info.world_size() > 1;
                Ok(is_head.then(|| info.master_port().to_string()))
            },
        ),
        addition(
            "MISTRALRS_MN_WORKER_SERVER_ADDR",
            "on the other nodes: `address:port` of the first one",
            PAGE,
            server,
        ),
        addition(
            "MISTRALRS_MN_WORKER_ID",
            "on the other nodes: the number of this node, less one",
            PAGE,
            |info| number(info.rank().index().checked_sub(1)),
        ),
    ],
    ..Set::PLAIN
};

fn global_size(info: &ClusterInfo) -> Result<Option<String>, Error> {
    info.check_per_node()?;
    if info.world_size() == 1 {
        return Ok(None);
    }
    let gpus = info.inherited.get_str(LOCAL).map_err(Error::reading_setting)?;
    let Some(gpus) = gpus.map(str::trim).filter(|gpus| !gpus.is_empty()) else {
        return Err(needs(
            format!("{LOCAL}, the number of GPUs of each node, which no launcher gives"),
            "set it on all nodes",
        ));
    };
    let size = gpus
        .parse::<u32>()
        .ok()
        .filter(|&gpus| gpus > 0)
        .and_then(|gpus| gpus.checked_mul(info.world_size()));
    size.map(|size| Some(size.to_string()))
        .ok_or_else(|| Error::of_setting(Reason::NotANumber, LOCAL, gpus))
}

fn server(info: &ClusterInfo) -> Result<Option<String>, Error> {
    if info.rank().is_first() {
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
