//! What `paddle.distributed.init_parallel_env()` reads.
//!
//! Paddle's own launcher sets these too. Ranks meet at `MASTER_ADDR` and `MASTER_PORT`, but Paddle
//! also requires the list of all endpoints.

use super::peers::endpoints;
use super::{Set, Target, Value, addition, local_rank, local_size, master, number, rank, size};
use crate::cluster::info::ClusterInfo;
use crate::launcher::paddle::{ENDPOINT, ENDPOINTS, LOCAL_RANK, LOCAL_SIZE, MASTER, RANK, SIZE};

const PAGE: &str = "[distributed/parallel.py](https://github.com/PaddlePaddle/Paddle/blob/develop/python/paddle/distributed/\
                    parallel.py)";

pub(super) const SET: Set = Set {
    name: "paddle",
    title: "PaddlePaddle",
    note: "; needs the hosts of all ranks, from the launcher or by exec --meet; without GPUs, set PADDLE_DISTRI_BACKEND=gloo too",
    page: PAGE,
    additions: &[
        rank(RANK),
        size(SIZE),
        addition(ENDPOINTS, "`host:port` of each rank, with commas", |info| {
            Ok(Some(endpoints(info, Target::Paddle)?.join(",")))
        }),
        addition(ENDPOINT, "`host:port` of this process", |info| {
            let rank = info.rank().index() as usize;
            Ok(endpoints(info, Target::Paddle)?.into_iter().nth(rank))
        }),
        master(MASTER),
        addition(LOCAL_RANK, "the number of this process on its node, from 0", own_local_rank),
        local_size(LOCAL_SIZE),
        addition(
            "FLAGS_selected_gpus",
            "the number of this process's GPU: its local rank",
            own_local_rank,
        ),
    ],
    ..Set::PLAIN
};

fn own_local_rank(info: &ClusterInfo) -> Value {
    number(Some(local_rank(info, Target::Paddle)?))
}
