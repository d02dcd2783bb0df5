//! NVIDIA DGX Cloud Lepton: one process per worker of a batch job.
//!
//! Based on documentation.

use crate::launcher::prelude::*;
use crate::value::port::Port;

variables! {
    /// The variables of a batch job's worker.
    pub struct LeptonVars {
        "[DGX Cloud Lepton: predefined environment variables](https://docs.nvidia.com/dgx-cloud/lepton/features/batch-jobs/predefined-env-vars)" {
            INDEX = "LEPTON_JOB_WORKER_INDEX" => index: u32, "the worker's number";
            WORKERS = "LEPTON_JOB_TOTAL_WORKERS" => workers: u32, "workers of the job";
            PREFIX = "LEPTON_JOB_WORKER_PREFIX" => prefix: Option<String>, "`job-worker`: worker 0's name is `job-worker-0`";
            SUBDOMAIN = "LEPTON_SUBDOMAIN" => subdomain: Option<String>, "what follows in the workers' names";
            RESTARTS = "LEPTON_JOB_FAILURE_COUNT" => restarts: Option<u32>, "how often the job has failed before";
            GPUS = "LEPTON_RESOURCE_ACCELERATOR_NUM" => gpus: Option<String>, "this worker's GPUs";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[LeptonVars::VARIABLES],
    marker: |environment| environment.first_set(&[INDEX, WORKERS]),
    start: "start the process in a batch job's worker",
    // Endpoints and development pods also have these variables.
    outside: &[PREFIX, SUBDOMAIN, GPUS],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([INDEX, WORKERS], [process.node, process.nodes]);
        vars.set(PREFIX, format!("train-{}", process.job));
        vars.set(SUBDOMAIN, format!("train-{}-job-svc", process.job));
        vars.set(RESTARTS, 0);
        vars.set(GPUS, 8);
    })],
    ..LauncherSpec::plain(read)
};

/// The port that Lepton's own script for PyTorch uses.
const PORT: Option<Port> = Port::new(29400);

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: LeptonVars = marker.read()?;
    let placement = marker.node(by(INDEX, vars.index), by(WORKERS, vars.workers))?;
    let mut placement = placement.with_workers(GPUS, vars.gpus);
    // If a job has only one worker, its processes must not share a port.
    placement.master_port =
        PORT.filter(|_| vars.workers > 1).map(|port| Sourced::new(port, "Lepton's convention"));
    let Some((prefix, subdomain)) = vars.prefix.zip(vars.subdomain) else { return Ok(placement) };
    let host = |worker: u32| format!("{prefix}-{worker}.{subdomain}");
    let placement = placement.with_master(SUBDOMAIN, Some(&host(0)))?;
    Ok(placement.with_hosts(format!("{PREFIX}, {SUBDOMAIN}"), (0..vars.workers).map(host)))
}
