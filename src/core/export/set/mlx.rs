//! What `mlx.core.distributed.init()` reads.
//!
//! Two backends meet at an address: NCCL, and JACCL, which also needs a file with its devices. The
//! ring backend needs a file with all addresses, which no launcher writes.

use super::{Set, addition, number};
use crate::cluster::info::ClusterInfo;
use crate::error::Error;

const PAGE: &str =
    "[distributed.rst](https://github.com/ml-explore/mlx/blob/main/docs/src/usage/distributed.rst)";

pub(super) const SET: Set = Set {
    name: "mlx",
    title: "MLX",
    note: "; the ring backend also needs MLX_HOSTFILE, and JACCL needs MLX_IBV_DEVICES, which you set",
    additions: &[
        addition("MLX_RANK", "the number of this process, from 0", PAGE, |info| {
            number(Some(info.rank().index()))
        }),
        addition("MLX_WORLD_SIZE", "the number of processes", PAGE, |info| {
            number(Some(info.world_size()))
        }),
        addition("NCCL_HOST_IP", "the host of rank 0, for the NCCL backend", PAGE, |info| {
            Ok(Some(info.master_addr()?.to_string()))
        }),
        addition(
            "NCCL_PORT",
            "the port at the host of rank 0, for the NCCL backend",
            PAGE,
            |info| Ok(Some(info.master_port().to_string())),
        ),
        addition(
            "MLX_JACCL_COORDINATOR",
            "`host:port` of rank 0, for the JACCL backend",
            PAGE,
            coordinator,
        ),
    ],
    ..Set::PLAIN
};

fn coordinator(info: &ClusterInfo) -> Result<Option<String>, Error> {
    Ok(Some(info.master_addr()?.with_port(info.master_port())))
}
