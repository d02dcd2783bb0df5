//! SkyPilot: a task's commands run once on each node.
//!
//! Its Slurm backend starts the commands as a Slurm step, which is detected first. Based on
//! documentation.

use crate::launcher::prelude::*;

variables! {
    /// The variables of a task's `run` commands.
    pub struct SkyPilotVars {
        "[SkyPilot: environment variables](https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html)" {
            NODE_RANK = "SKYPILOT_NODE_RANK" => node_rank: u32, "the node's number";
            NODES = "SKYPILOT_NUM_NODES" => nodes: u32, "nodes of the task";
            IPS = "SKYPILOT_NODE_IPS" => ips: Option<String>, "the nodes' addresses, a line each, in the order of their numbers";
            GPUS = "SKYPILOT_NUM_GPUS_PER_NODE" => gpus: Option<String>, "GPUs of each node, 0 without any";
            TASK = "SKYPILOT_TASK_ID" => task: Option<String>, "the task's identity, which it keeps when it is recovered";
        }
    }
}

variables! {
    /// The variables of a task's `setup` commands.
    pub struct SetupVars {
        "[SkyPilot: environment variables for setup](https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html#environment-variables-for-setup)" {
            SETUP_RANK = "SKYPILOT_SETUP_NODE_RANK" => rank: u32, "the node's number";
            SETUP_IPS = "SKYPILOT_SETUP_NODE_IPS" => ips: String, "the nodes' addresses, a line each";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[SkyPilotVars::VARIABLES, SetupVars::VARIABLES],
    marker: |environment| environment.first_set(&[NODE_RANK, NODES, IPS, SETUP_RANK, SETUP_IPS]),
    start: "start the process in a task's run commands",
    outside: &[GPUS, TASK],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([NODE_RANK, NODES], [process.node, process.nodes]);
        vars.set(IPS, process.addresses());
        vars.set(GPUS, 0);
        vars.set(TASK, format!("sky-2026-11-22-08-00-00-000000_train_{}", process.job + 1));
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    if [SETUP_RANK, SETUP_IPS].contains(&marker.variable) {
        let vars: SetupVars = marker.read()?;
        let nodes = u32::try_from(vars.ips.lines().count()).unwrap_or(u32::MAX);
        let placement = marker.node(by(SETUP_RANK, vars.rank), by(SETUP_IPS, nodes))?;
        let placement = placement.with_master(SETUP_IPS, vars.ips.lines().next())?;
        return Ok(placement.with_hosts(SETUP_IPS, vars.ips.lines()));
    }
    let vars: SkyPilotVars = marker.read()?;
    let placement = marker.node(by(NODE_RANK, vars.node_rank), by(NODES, vars.nodes))?;
    let placement = placement.with_workers(GPUS, vars.gpus).with_job(TASK, vars.task);
    let Some(ips) = vars.ips else { return Ok(placement) };
    Ok(placement.with_master(IPS, ips.lines().next())?.with_hosts(IPS, ips.lines()))
}
