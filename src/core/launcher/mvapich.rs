//! MVAPICH's `mpirun_rsh` and `mpiexec`: MVAPICH2 (`MV2_`), MVAPICH 3 and later (`MVP_`).
//!
//! Nothing names rank 0's host.

use crate::launcher::prelude::*;

variables! {
    /// The variables that MVAPICH2 sets for every process.
    pub struct MvapichVars {
        "[MVAPICH2 user guide](https://mvapich.cse.ohio-state.edu/userguide/)" {
            RANK = "MV2_COMM_WORLD_RANK" => rank: u32, "rank";
            SIZE = "MV2_COMM_WORLD_SIZE" => size: u32, "world size";
            LOCAL_RANK = "MV2_COMM_WORLD_LOCAL_RANK" => local_rank: Option<u32>, "rank on this node";
            LOCAL_SIZE = "MV2_COMM_WORLD_LOCAL_SIZE" => local_size: Option<u32>, "ranks on this node";
        }
    }
}

variables! {
    /// The variables that MVAPICH sets from version 3 on.
    pub struct MvpVars {
        "[MVAPICH user guide](https://mvapich.cse.ohio-state.edu/userguide/)" {
            MVP_LOCAL_RANK = "MVP_COMM_WORLD_LOCAL_RANK" => local_rank: u32, "rank on this node, from version 3 on";
            PMI_ID = "PMI_ID" => pmi_id: Option<u32>, "rank, set by `mpirun_rsh`";
            PMI_RANK = "PMI_RANK" => pmi_rank: Option<u32>, "rank, set by `mpiexec`";
            PMI_SIZE = "PMI_SIZE" => pmi_size: u32, "world size";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[MvapichVars::VARIABLES, MvpVars::VARIABLES],
    marker: |environment| {
        // Version 3 and later provide the rank through PMI.
        let has_rank = || environment.first_set(&[PMI_ID, PMI_RANK]).is_some();
        let mvp = || environment.first_set(&[MVP_LOCAL_RANK]).filter(|_| has_rank());
        environment.first_set(&[RANK, SIZE]).or_else(mvp)
    },
    starts: Starts::Processes,
    start: "start the process with mpirun_rsh or mpiexec",
    programs: Some(Programs { names: "mpirun_rsh", verbs: "", options: "-np 2" }),
    one_per_node: "`mpirun_rsh` with each host once, or `mpiexec -ppn 1`",
    unbind: Some("MV2_ENABLE_AFFINITY=0"),
    mpi: MpiFamily::Mpich,
    local: &[LOCAL_RANK, LOCAL_SIZE, MVP_LOCAL_RANK],
    starters: &["hydra_pmi_proxy", "mpispawn"],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE, LOCAL_RANK, LOCAL_SIZE], process.place());
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    if marker.variable != MVP_LOCAL_RANK {
        let vars: MvapichVars = marker.read()?;
        return marker
            .place(by(RANK, vars.rank), by(SIZE, vars.size))?
            .with_local(by(LOCAL_RANK, vars.local_rank), by(LOCAL_SIZE, vars.local_size));
    }
    let vars: MvpVars = marker.read()?;
    let id = by(PMI_ID, vars.pmi_id.unwrap_or_default());
    let rank = by(PMI_RANK, vars.pmi_rank).unwrap_or(id);
    let placement = marker.place(rank, by(PMI_SIZE, vars.pmi_size))?;
    placement.with_local(Some(by(MVP_LOCAL_RANK, vars.local_rank)), None)
}
