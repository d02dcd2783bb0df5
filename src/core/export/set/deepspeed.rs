//! What DeepSpeed's own launcher sets besides PyTorch's variables.

use super::{Set, addition, node_count, number, own_local_size};
use crate::launcher::user::{CROSS_RANK, CROSS_SIZE, LOCAL_SIZE};

const PAGE: &str = "[deepspeed/launcher/launch.py](https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/\
                    launch.py)";

pub(super) const SET: Set = Set {
    name: "deepspeed",
    title: "DeepSpeed",
    page: PAGE,
    additions: &[
        addition(CROSS_RANK, "the number of this node, from 0; unset if it is not known", |info| {
            number(info.node_rank())
        }),
        addition(CROSS_SIZE, "the number of nodes; unset if it is not known", node_count),
        addition(
            LOCAL_SIZE,
            "the number of processes on this node; unset if it is not known",
            own_local_size,
        ),
    ],
    ..Set::PLAIN
};
