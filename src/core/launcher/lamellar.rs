//! Lamellar: the processes of its `shmem` backend, which share the memory of one node.

use crate::launcher::prelude::*;

variables! {
    /// The variables of a process of the `shmem` backend.
    pub struct LamellarVars {
        "[lamellae/shmem/shmem_comm.rs](https://github.com/pnnl/lamellar-runtime/blob/master/src/lamellae/shmem/shmem_comm.rs)" {
            RANK = "LAMELLAR_PE_ID" => rank: u32, "rank";
            SIZE = "LAMELLAR_NUM_PES" => size: u32, "world size";
            JOB = "LAMELLAR_JOB_ID" => job: Option<String>, "the job's number on this node";
        }
        "[env_var.rs](https://github.com/pnnl/lamellar-runtime/blob/master/src/env_var.rs)" {
            BACKEND = "LAMELLAR_BACKEND" => backend: Option<String>, "`shmem`, if all ranks are on this node";
        }
    }
}

/// The backend of ranks on one node.
pub(crate) const SHMEM: &str = "shmem";

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[LamellarVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK, SIZE]),
    starts: Starts::OneNode,
    start: "set Lamellar's variables together",
    // Users select the backend for every program.
    outside: &[BACKEND, JOB],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE], [process.rank, process.size]);
        vars.set(JOB, 7000 + process.job);
        vars.set(BACKEND, SHMEM);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: LamellarVars = marker.read()?;
    let placement = marker.place(by(RANK, vars.rank), by(SIZE, vars.size))?;
    let placement = placement.with_job(JOB, vars.job);
    // All ranks are on this node. Lamellar numbers them only by their rank.
    let is_one_node = vars.backend.as_deref() == Some(SHMEM);
    let size = is_one_node.then(|| Sourced::new(vars.size, format!("{BACKEND}={SHMEM}")));
    placement.with_local(None, size)
}
