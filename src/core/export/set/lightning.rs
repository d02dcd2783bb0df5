//! What Lightning's `Fabric` and `Trainer` read.
//!
//! Without a launcher that Lightning knows, it computes the number of the process from `NODE_RANK`,
//! `LOCAL_RANK` and the number of devices that the program requests, and ignores `RANK`.
//! `TORCHELASTIC_RUN_ID` makes it read torchrun's variables in preference to Slurm's and MPI's.

use super::{Set, Target, Variables, addition, decided, local_rank, node_count};
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::kubernetes::COUNT;
use crate::launcher::torchrun::{NODE_RANK as GROUP_RANK, RUN_ID};

const PAGE: &str = "[torchelastic.py](https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/\
                    plugins/environments/torchelastic.py)";

pub(super) const SET: Set = Set {
    name: "lightning",
    title: "Lightning",
    note: "; the program still passes devices and num_nodes: LOCAL_WORLD_SIZE and NNODES",
    page: PAGE,
    additions: &[
        addition(RUN_ID, "any value: it makes Lightning read RANK and WORLD_SIZE", decided),
        addition(GROUP_RANK, "the number of this node, from 0; unset if it is not known", decided),
        addition(COUNT, "the number of nodes; unset if it is not known", node_count),
    ],
    place: Some(place),
    ..Set::PLAIN
};

/// Returns torchrun's variables. A run ID that is already set is kept.
fn place(info: &ClusterInfo, environment: &Environment) -> Result<Variables, Error> {
    local_rank(info, Target::Lightning)?;
    let mut variables = Vec::new();
    variables.extend((!environment.is_set(RUN_ID)).then(|| (RUN_ID, "mpienv".to_owned())));
    variables.extend(info.node_rank().map(|node| (GROUP_RANK, node.to_string())));
    Ok(variables)
}
