//! Flux: `flux run`, `flux submit`.
//!
//! Flux does not provide the local size. It is known only if all ranks are on one node, or one on
//! each. No variable names rank 0's host, but Flux serves PMI, which knows the nodes.

use crate::finding::Finding;
use crate::launcher::prelude::*;

variables! {
    /// The variables that Flux sets for every process.
    pub struct FluxVars {
        "[flux-environment(7)](https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7/flux-environment.html)" {
            RANK = "FLUX_TASK_RANK" => rank: u32, "rank";
            SIZE = "FLUX_JOB_SIZE" => size: u32, "world size";
            LOCAL_RANK = "FLUX_TASK_LOCAL_ID" => local_rank: Option<u32>, "rank on this node";
            NODES = "FLUX_JOB_NNODES" => nodes: Option<u32>, "nodes of the job";
            JOB_ID = "FLUX_JOB_ID" => job: Option<String>, "the job's identity in its instance, as text";
            JOB_PATH = "FLUX_JOB_ID_PATH" => path: Option<String>, "the same with the instances around it, which may have equal jobs";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[FluxVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK]),
    starts: Starts::Processes,
    start: "start the process with flux run",
    programs: Some(Programs { names: "flux", verbs: "run submit bulksubmit", options: "-n 2" }),
    one_per_node: "`flux run --tasks-per-node=1`",
    give_master: "`MASTER_ADDR=$(flux job taskmap --hostname=0 $FLUX_JOB_ID)` in each task",
    unbind: Some("flux run -o cpu-affinity=off"),
    devices: Some("flux run -g 1"),
    mpi: MpiFamily::Pmi,
    local: &[LOCAL_RANK],
    samples: &[Sample::of(|process, vars| {
        let Process { rank, size, local_rank, nodes, .. } = *process;
        vars.set_all([RANK, SIZE, LOCAL_RANK, NODES], [rank, size, local_rank, nodes]);
        let job = ["ƒ2WdHmxq", "ƒ2WdHmxr"][process.job as usize % 2];
        vars.set(JOB_ID, job);
        vars.set(JOB_PATH, format!("/{job}"));
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: FluxVars = marker.read()?;
    let local_size = match vars.nodes {
        Some(1) => Some(vars.size),
        Some(nodes) if nodes == vars.size => Some(1),
        _ => None,
    };
    let placement = marker
        .place(by(RANK, vars.rank), by(SIZE, vars.size))?
        .with_local(by(LOCAL_RANK, vars.local_rank), by(NODES, local_size))?
        .with_nodes(None, by(NODES, vars.nodes));
    let job = if vars.path.is_some() { JOB_PATH } else { JOB_ID };
    Ok(placement.with_job(job, vars.path.or(vars.job)))
}

/// The variable that names the Flux instance of this process.
pub(crate) const ENCLOSING: &str = "FLUX_ENCLOSING_ID";

/// Reports a batch script, which runs only once.
pub(crate) fn outside_of_jobs(environment: &Environment) -> Option<Finding> {
    environment.first_set(&[ENCLOSING]).filter(|_| !environment.is_set(JOB_ID))?;
    Some(Finding::warning(
        "flux-not-a-task",
        format!("{} is set, and this is not a task of a job", environment.shown(ENCLOSING)),
        "Flux runs a batch script once, however many tasks it requests: this process is treated as a single process",
        "start the program with `flux run`, which starts every task",
    ))
}
