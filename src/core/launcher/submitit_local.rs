//! submitit's local executor: the tasks of a job on this machine, without Slurm.
//!
//! Based on its source.

use crate::launcher::prelude::*;

variables! {
    /// The variables that the local executor sets for every task.
    pub struct SubmititLocalVars {
        "[submitit: local executor](https://github.com/facebookincubator/submitit/blob/main/submitit/local/local.py)" {
            RANK = "SUBMITIT_LOCAL_GLOBALID" => rank: u32, "rank";
            SIZE = "SUBMITIT_LOCAL_NTASKS" => size: u32, "world size";
            LOCAL_RANK = "SUBMITIT_LOCAL_LOCALID" => local_rank: Option<u32>, "rank on this machine";
            JOB = "SUBMITIT_LOCAL_JOB_ID" => job: Option<String>, "the job's identity";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[SubmititLocalVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK, SIZE]),
    starts: Starts::OneNode,
    start: "start the process with submitit's local executor",
    local: &[LOCAL_RANK],
    samples: &[Sample::of(|process, vars| {
        let Process { rank, size, local_rank, .. } = *process;
        vars.set_all([RANK, SIZE, LOCAL_RANK], [rank, size, local_rank]);
        vars.set(JOB, 4711 + process.job);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: SubmititLocalVars = marker.read()?;
    // The executor starts tasks on this machine only.
    let local_rank = by(LOCAL_RANK, vars.local_rank.unwrap_or(vars.rank));
    let local_size = by("all tasks are on this machine", vars.size);
    let placement = marker.place(by(RANK, vars.rank), by(SIZE, vars.size))?;
    Ok(placement.with_local(Some(local_rank), Some(local_size))?.with_job(JOB, vars.job))
}
