//! Horovod: `horovodrun` without MPI.
//!
//! The rendezvous address that it sets belongs to the driver, not to rank 0. With MPI, `mpirun` is
//! detected instead. Based on documentation.

use crate::launcher::prelude::*;

variables! {
    /// The variables that `horovodrun` sets for every process.
    pub struct HorovodVars {
        "[Horovod: gloo_run.py](https://github.com/horovod/horovod/blob/master/horovod/runner/gloo_run.py)" {
            RANK = "HOROVOD_RANK" => rank: u32, "rank";
            SIZE = "HOROVOD_SIZE" => size: u32, "world size";
            LOCAL_RANK = "HOROVOD_LOCAL_RANK" => local_rank: Option<u32>, "rank on this node";
            LOCAL_SIZE = "HOROVOD_LOCAL_SIZE" => local_size: Option<u32>, "ranks on this node";
            NODE_RANK = "HOROVOD_CROSS_RANK" => node_rank: Option<u32>, "number of this node among those that have this local rank";
            NODES = "HOROVOD_CROSS_SIZE" => nodes: Option<u32>, "how many nodes have this local rank";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[HorovodVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK, SIZE]),
    starts: Starts::Processes,
    start: "start the process with horovodrun",
    programs: Some(Programs { names: "horovodrun", verbs: "", options: "-np 2" }),
    one_per_node: "`horovodrun -H node0:1,node1:1`",
    local: &[LOCAL_RANK, LOCAL_SIZE],
    samples: &[Sample::of(|process, vars| {
        let has_it = |count: &&u32| **count > process.local_rank;
        vars.set_all([RANK, SIZE, LOCAL_RANK, LOCAL_SIZE], process.place());
        vars.set(
            NODE_RANK,
            process.counts.iter().take(process.node as usize).filter(has_it).count(),
        );
        vars.set(NODES, process.counts.iter().filter(has_it).count());
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: HorovodVars = marker.read()?;
    let placement = marker
        .place(by(RANK, vars.rank), by(SIZE, vars.size))?
        .with_local(by(LOCAL_RANK, vars.local_rank), by(LOCAL_SIZE, vars.local_size))?;
    // Every node has a local rank 0, but smaller nodes lack the higher ones.
    let is_of_all = vars.local_rank == Some(0);
    let of_all = |value: Option<u32>| value.filter(|_| is_of_all);
    Ok(placement.with_nodes(by(NODE_RANK, of_all(vars.node_rank)), by(NODES, of_all(vars.nodes))))
}
