//! What DeepSpeed's own launcher sets besides PyTorch's variables.

use super::{Set, addition, number};
use crate::launcher::user::{CROSS_RANK, CROSS_SIZE, LOCAL_SIZE};

const PAGE: &str = "[deepspeed/launcher/launch.py](https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/\
                    launch.py)";

pub(super) const SET: Set = Set {
    name: "deepspeed",
    title: "DeepSpeed",
    additions: &[
        addition(
            CROSS_RANK,
            "the number of this node, from 0; unset if it is not known",
            PAGE,
            |info| number(info.node_rank()),
        ),
        addition(CROSS_SIZE, "the number of nodes; unset if it is not known", PAGE, |info| {
            number(info.node_count())
        }),
        addition(
            LOCAL_SIZE,
            "the number of processes on this node; unset if it is not known",
            PAGE,
            |info| number(info.local_world_size()),
        ),
    ],
    ..Set::PLAIN
};
