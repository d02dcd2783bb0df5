//! Ranks set by a person, a script, `mpienv launch`, or an earlier `mpienv export`.
//!
//! The master's address and port, `MASTER_ADDR` and `MASTER_PORT`, are taken as they are under any launcher.

use crate::environment::{Environment, Variables, variables};
use crate::error::Error;
use crate::launcher::sample::{Process, Sample, Setter};
use crate::launcher::{Advice, LauncherSpec, MASTER, Marker, MpiFamily, Nested, Starts, first_set, kubernetes};
use crate::value::placement::Placement;

variables! {
    /// The variables of PyTorch's convention that tell a rank.
    pub struct UserVars {
        "[PyTorch: environment variable initialization](https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization)" {
            RANK = "RANK" => rank: u32, "rank";
            WORLD_SIZE = "WORLD_SIZE" => world_size: u32, "world size";
        }
        "[torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)" {
            LOCAL_RANK = "LOCAL_RANK" => local_rank: Option<u32>, "rank on this node";
            LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE" => local_world_size: Option<u32>, "ranks on this node";
        }
        "[Lightning: general purpose cluster](https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html)" {
            NODE_RANK = "NODE_RANK" => node_rank: Option<u32>, "the node's number";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    name: "user",
    title: "RANK and WORLD_SIZE",
    variables: &[UserVars::VARIABLES],
    marker: |environment| {
        // A pod of an indexed job has its rank elsewhere.
        let size = || first_set(environment, &[WORLD_SIZE]).filter(|_| !environment.is_set(kubernetes::INDEX));
        first_set(environment, &[RANK]).or_else(size)
    },
    shared_marker: None,
    read,
    starts: Starts::Processes,
    advice: Advice {
        start: "set RANK, WORLD_SIZE and the related variables together",
        one_per_node: "set RANK to the node's number and WORLD_SIZE to the number of nodes, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1",
        ..Advice::PLAIN
    },
    mpi: MpiFamily::None,
    // Who sets RANK and WORLD_SIZE sets the master with them, and not always the node's number.
    nested: Nested { may_inherit: &[NODE_RANK], ..Nested::PLAIN },
    samples: &[Sample { title: "RANK and WORLD_SIZE", set }],
};

/// A whole set, as torchrun gives it too.
pub(super) fn set(process: &Process<'_>, vars: &mut Setter) {
    vars.set(RANK, process.rank);
    vars.set(WORLD_SIZE, process.size);
    vars.set(LOCAL_RANK, process.local_rank);
    vars.set(LOCAL_WORLD_SIZE, process.local_size);
    vars.set(MASTER[0], process.name(0));
    vars.set(MASTER[1], 29500);
}

fn read(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let vars: UserVars = marker.read(environment)?;
    let placement = Placement::new(marker.launcher, (RANK, vars.rank), (WORLD_SIZE, vars.world_size))?
        .with_local((LOCAL_RANK, vars.local_rank), (LOCAL_WORLD_SIZE, vars.local_world_size))?;
    Ok(placement.with_nodes((NODE_RANK, vars.node_rank), (NODE_RANK, None)))
}
