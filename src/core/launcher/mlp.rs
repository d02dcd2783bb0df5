//! Volcengine's Machine Learning Platform: one process per worker of a custom task.
//!
//! Based on documentation.

use crate::launcher::prelude::*;

variables! {
    /// The variables of a custom task's worker.
    pub struct MlpVars {
        "[Volcengine: environment variables of custom tasks](https://www.volcengine.com/docs/6459/75329)" {
            INDEX = "MLP_ROLE_INDEX" => index: u32, "the worker's number in its role";
            WORKERS = "MLP_WORKER_NUM" => workers: u32, "workers of the task";
            ROLE = "MLP_ROLE" => role: Option<String>, "`WORKER`, `PS`, `SCHEDULER`, ...";
            HOST = "MLP_WORKER_0_HOST" => host: Option<String>, "worker 0's address";
            PORT = "MLP_WORKER_0_PORT" => port: Option<String>, "a port at worker 0";
            GPUS = "MLP_WORKER_GPU" => gpus: Option<String>, "GPUs of each worker";
            TASK = "MLP_TASK_ID" => task: Option<String>, "the task's identity";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[MlpVars::VARIABLES],
    marker: |environment| environment.first_set(&[INDEX, WORKERS, HOST]),
    start: "start the process in a worker of a custom task",
    outside: &[ROLE, PORT, GPUS, TASK],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([INDEX, WORKERS], [process.node, process.nodes]);
        vars.set(ROLE, "WORKER");
        for worker in 0..process.nodes {
            vars.set(&format!("MLP_WORKER_{worker}_HOST"), process.address(worker));
        }
        vars.set(PORT, 9006);
        vars.set(GPUS, 8);
        vars.set(TASK, format!("t-20261122080000-{}", process.job));
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: MlpVars = marker.read()?;
    // The numbers of parameter servers and schedulers also start at 0.
    if let Some(role) = vars.role.as_deref().filter(|role| !role.eq_ignore_ascii_case("worker")) {
        return Err(marker.cannot_place("only workers are numbered among each other", ROLE, role));
    }
    let placement = marker.node(by(INDEX, vars.index), by(WORKERS, vars.workers))?;
    let placement = placement.with_master(HOST, vars.host.as_deref())?;
    let placement = placement.with_workers(GPUS, vars.gpus).with_job(TASK, vars.task);
    let placement = placement.with_port(PORT, vars.port.as_deref())?;
    let host = |worker: u32| marker.environment.text(&format!("MLP_WORKER_{worker}_HOST"));
    let hosts = (0..vars.workers).map_while(host);
    Ok(placement.with_hosts("MLP_WORKER_0_HOST, MLP_WORKER_1_HOST, ...", hosts))
}
