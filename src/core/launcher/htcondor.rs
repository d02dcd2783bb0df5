//! HTCondor's parallel universe: one process per slot that a job gets.
//!
//! Several slots may be on one machine, and no variable tells which, nor where node 0 is. Jobs of
//! other universes, and each of those that one `queue` creates, are independent: they have none of
//! these variables. Based on its source.

use crate::launcher::prelude::*;

variables! {
    /// The variables of a process in the parallel universe.
    pub struct HtCondorVars {
        "[HTCondor: parallel_proc.cpp](https://github.com/htcondor/htcondor/blob/main/src/condor_starter.V6.1/parallel_proc.cpp)" {
            RANK = "_CONDOR_PROCNO" => rank: u32, "the process's number";
            SIZE = "_CONDOR_NPROCS" => size: u32, "processes of the job: its `machine_count`";
            SPOOL = "_CONDOR_REMOTE_SPOOL_DIR" => spool: Option<String>, "the job's own directory where it was submitted, which identifies it";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[HtCondorVars::VARIABLES],
    // Some scripts set the size as a number of cores.
    marker: |environment| environment.first_set(&[RANK]),
    starts: Starts::Slots,
    start: "start the process in a job of the parallel universe",
    one_per_node: "slots of whole machines",
    give_master: "MASTER_ADDR=HOST, which process 0 can pass on with `condor_chirp set_job_attr`",
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE], [process.rank, process.size]);
        let cluster = 7 + process.job;
        let folder = format!("/var/lib/condor/spool/{cluster}/0");
        vars.set(SPOOL, format!("{folder}/cluster{cluster}.proc0.subproc0"));
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: HtCondorVars = marker.read()?;
    let placement = marker.place(by(RANK, vars.rank), by(SIZE, vars.size))?;
    Ok(placement.with_job(SPOOL, vars.spool))
}
