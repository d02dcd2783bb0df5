//! What PyTorch's torchcomms reads.
//!
//! Without these variables, it takes the place of Open MPI's or PMI's variables if there are any,
//! and PyTorch's only then: a worker would get the place of the process that started it.

use super::{Set, rank, size};
use crate::launcher::torchcomms::{RANK, SIZE};

const PAGE: &str = "[comms/torchcomms/utils/Utils.cpp](https://github.com/meta-pytorch/torchcomms/blob/main/comms/torchcomms/\
                    utils/Utils.cpp)";

pub(super) const SET: Set = Set {
    name: "torchcomms",
    title: "torchcomms",
    page: PAGE,
    additions: &[rank(RANK), size(SIZE)],
    ..Set::PLAIN
};
