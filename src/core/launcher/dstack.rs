//! dstack: a task's commands run once on each node.
//!
//! Based on documentation.

use crate::launcher::prelude::*;

variables! {
    /// The variables of a task.
    pub struct DstackVars {
        "[dstack: system environment variables](https://dstack.ai/docs/reference/environment-variables/)" {
            NODE_RANK = "DSTACK_NODE_RANK" => node_rank: u32, "the node's number";
            NODES = "DSTACK_NODES_NUM" => nodes: u32, "nodes of the task";
            MASTER = "DSTACK_MASTER_NODE_IP" => master: Option<String>, "node 0's address";
            IPS = "DSTACK_NODES_IPS" => ips: Option<String>, "the nodes' addresses, a line each";
            GPUS = "DSTACK_GPUS_PER_NODE" => gpus: Option<String>, "this node's GPUs";
            RUN = "DSTACK_RUN_ID" => run: Option<String>, "the run's identity";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[DstackVars::VARIABLES],
    marker: |environment| environment.first_set(&[NODE_RANK, NODES, MASTER, IPS]),
    start: "start the process in a task's commands",
    outside: &[GPUS, RUN],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([NODE_RANK, NODES], [process.node, process.nodes]);
        vars.set(MASTER, process.address(0));
        vars.set(IPS, process.addresses());
        vars.set(GPUS, 1);
        vars.set(RUN, format!("7c1f1fa5-c8f1-4c7c-a22f-12345678900{}", process.job % 10));
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: DstackVars = marker.read()?;
    let placement = marker.node(by(NODE_RANK, vars.node_rank), by(NODES, vars.nodes))?;
    let placement = placement.with_workers(GPUS, vars.gpus).with_job(RUN, vars.run);
    let placement = placement.with_master(MASTER, vars.master.as_deref())?;
    let Some(ips) = &vars.ips else { return Ok(placement) };
    let first = ips.lines().next().filter(|_| vars.master.is_none());
    Ok(placement.with_master(IPS, first)?.with_hosts(IPS, ips.lines()))
}
