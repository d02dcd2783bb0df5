//! HPE Cray PALS: `mpiexec` and `aprun` on Cray EX systems.
//!
//! Nothing names rank 0's host.

use crate::launcher::prelude::*;

variables! {
    /// The variables that PALS sets for every process.
    pub struct PalsVars {
        "[HPE: mpiexec(1)](https://cpe.ext.hpe.com/docs/latest/pals/mpiexec.1.html)" {
            RANK = "PALS_RANKID" => rank: u32, "rank";
            SIZE = "PMI_SIZE" => size: u32, "world size; PALS has no variable for it";
            LOCAL_RANK = "PALS_LOCAL_RANKID" => local_rank: Option<u32>, "rank on this node";
            LOCAL_SIZE = "PALS_LOCAL_SIZE" => local_size: Option<u32>, "ranks on this node";
            NODE_ID = "PALS_NODEID" => node_id: Option<u32>, "the node's number";
            APPLICATION = "PALS_APID" => application: Option<String>, "the application's identity";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[PalsVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK]),
    starts: Starts::Processes,
    start: "start the process with mpiexec or aprun",
    programs: Some(Programs { names: "mpiexec aprun", verbs: "", options: "-n 2" }),
    one_per_node: "`mpiexec --ppn 1`",
    unbind: Some("mpiexec --cpu-bind none"),
    mpi: MpiFamily::CrayMpich,
    local: &[LOCAL_RANK, LOCAL_SIZE],
    samples: &[Sample::of(|process, vars| {
        let Process { rank, size, local_rank, local_size, node, .. } = *process;
        let numbers = [rank, local_rank, local_size, node];
        vars.set_all([RANK, LOCAL_RANK, LOCAL_SIZE, NODE_ID], numbers);
        vars.set(APPLICATION, format!("6fe1d3a{}-1c1f-4a3c-9d5e-0f8e2f6f4a11", process.job + 2));
        vars.set_all(["PMI_RANK", SIZE], [rank, size]);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: PalsVars = marker.read()?;
    let placement = marker
        .place(by(RANK, vars.rank), by(SIZE, vars.size))?
        .with_local(by(LOCAL_RANK, vars.local_rank), by(LOCAL_SIZE, vars.local_size))?
        .with_nodes(by(NODE_ID, vars.node_id), None);
    Ok(placement.with_job(APPLICATION, vars.application))
}
