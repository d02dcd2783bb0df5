//! What `paddle.distributed.init_parallel_env()` reads.
//!
//! Paddle's own launcher sets these too. Ranks meet at `MASTER_ADDR` and `MASTER_PORT`, but Paddle
//! also requires the list of all endpoints.

use super::peers::endpoints;
use super::{Set, Target, addition, local_rank, number};
use crate::cluster::info::ClusterInfo;
use crate::error::Error;

const PAGE: &str = "[distributed/parallel.py](https://github.com/PaddlePaddle/Paddle/blob/develop/python/paddle/distributed/\
                    parallel.py)";

pub(super) const SET: Set = Set {
    name: "paddle",
    title: "PaddlePaddle",
    note: "; needs the hosts of all ranks, from the launcher or by exec --meet; without GPUs, set PADDLE_DISTRI_BACKEND=gloo too",
    additions: &[
        addition("PADDLE_TRAINER_ID", "the number of this process, from 0", PAGE, |info| {
            number(Some(info.rank().index()))
        }),
        addition("PADDLE_TRAINERS_NUM", "the number of processes", PAGE, |info| {
            number(Some(info.world_size()))
        }),
        addition(
            "PADDLE_TRAINER_ENDPOINTS",
            "`host:port` of each rank, with commas",
            PAGE,
            |info| Ok(Some(endpoints(info, Target::Paddle)?.join(","))),
        ),
        addition("PADDLE_CURRENT_ENDPOINT", "`host:port` of this process", PAGE, own),
        addition("PADDLE_MASTER", "`host:port` of rank 0", PAGE, |info| {
            Ok(Some(info.master_addr()?.with_port(info.master_port())))
        }),
        addition(
            "PADDLE_RANK_IN_NODE",
            "the number of this process on its node, from 0",
            PAGE,
            |info| number(Some(local_rank(info, Target::Paddle)?)),
        ),
        addition("PADDLE_LOCAL_SIZE", "the number of processes on this node", PAGE, |info| {
            number(info.local_world_size())
        }),
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
