//! What `paddle.distributed.init_parallel_env()` reads.
//!
//! Paddle's own launcher sets these too. Ranks meet at `MASTER_ADDR` and `MASTER_PORT`, but Paddle
//! also requires the list of all endpoints.

use super::peers::endpoints;
use super::{Set, Target, addition, local_rank, local_size, master, number, rank, size};
use crate::cluster::info::ClusterInfo;
use crate::error::Error;
use crate::launcher::paddle::{ENDPOINT, ENDPOINTS, LOCAL_RANK, LOCAL_SIZE, MASTER, RANK, SIZE};

const PAGE: &str = "[distributed/parallel.py](https://github.com/PaddlePaddle/Paddle/blob/develop/python/paddle/distributed/\
                    parallel.py)";

pub(super) const SET: Set = Set {
    name: "paddle",
    title: "PaddlePaddle",
    note: "; needs the hosts of all ranks, from the launcher or by exec --meet; without GPUs, set PADDLE_DISTRI_BACKEND=gloo too",
    additions: &[
        rank(RANK, PAGE),
        size(SIZE, PAGE),
        addition(ENDPOINTS, "`host:port` of each rank, with commas", PAGE, |info| {
            Ok(Some(endpoints(info, Target::Paddle)?.join(",")))
        }),
        addition(ENDPOINT, "`host:port` of this process", PAGE, own),
        master(MASTER, PAGE),
        addition(LOCAL_RANK, "the number of this process on its node, from 0", PAGE, |info| {
            number(Some(local_rank(info, Target::Paddle)?))
        }),
        local_size(LOCAL_SIZE, PAGE),
        addition(
            "FLAGS_selected_gpus",
            "the number of this process's GPU: its local rank",
            PAGE,
            |info| number(Some(local_rank(info, Target::Paddle)?)),
        ),
    ],
    ..Set::PLAIN
};

fn own(info: &ClusterInfo) -> Result<Option<String>, Error> {
    let rank = info.rank().index() as usize;
    Ok(endpoints(info, Target::Paddle)?.into_iter().nth(rank))
}
