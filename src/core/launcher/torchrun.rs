//! PyTorch's `torchrun` (torchelastic).
//!
//! The master is in `MASTER_ADDR` and `MASTER_PORT`, which mpienv takes unchanged.

use crate::launcher::prelude::*;
use crate::launcher::user;

/// Whether torchrun serves the workers' store on the master's port. If another program inherits the
/// value, every rank waits for a store that no process serves.
pub(crate) const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

variables! {
    /// The variables that torchrun sets for every worker.
    pub struct TorchrunVars {
        "[torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)" {
            RUN_ID = "TORCHELASTIC_RUN_ID" => run_id: Option<String>, "what `--rdzv-id` says; by default a random one on one node, else `none`";
            RANK = "RANK" => rank: u32, "rank";
            SIZE = "WORLD_SIZE" => size: u32, "world size";
            LOCAL_RANK = "LOCAL_RANK" => local_rank: u32, "rank on this node";
            LOCAL_SIZE = "LOCAL_WORLD_SIZE" => local_size: u32, "ranks on this node";
            NODE_RANK = "GROUP_RANK" => node_rank: Option<u32>, "the node's number";
            NODES = "GROUP_WORLD_SIZE" => nodes: Option<u32>, "nodes of the job";
            RESTARTS = "TORCHELASTIC_RESTART_COUNT" => restarts: Option<u32>, "how often the node's workers were restarted; not the same on all nodes";
        }
        "recorded from torchrun 2.15.0" {
            ERROR_FILE = "TORCHELASTIC_ERROR_FILE" => error_file: Option<String>, "where the worker writes its error: another file for every worker";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[TorchrunVars::VARIABLES],
    marker: |environment| environment.first_set(&[RUN_ID]),
    starts: Starts::Processes,
    start: "start the process with torchrun",
    one_per_node: "`torchrun --nproc-per-node 1`, or omit torchrun",
    // Every worker has its own error file. If it is the outer worker's, something else has set
    // RANK.
    may_inherit: &[],
    is_always_seen: true,
    outside: &[ERROR_FILE],
    samples: &[Sample::of(|process, vars| {
        let folder = format!("/tmp/torchelastic/none/attempt_{}", process.job);
        vars.set(RUN_ID, "none");
        vars.set(AGENT_STORE, "True");
        vars.set(RESTARTS, 0);
        vars.set(ERROR_FILE, format!("{folder}/{}/error.json", process.local_rank));
        user::set(process, vars);
        vars.set_all([NODE_RANK, NODES], [process.node, process.nodes]);
    })],
    ..LauncherSpec::plain(read)
};

/// Returns the ID of the run whose store torchrun's agent serves on the master's port. `None` if
/// rank 0 serves it.
pub(crate) fn run_with_agent_store(environment: &Environment) -> Option<&str> {
    // PyTorch compares the text.
    environment.text(RUN_ID).filter(|_| environment.text(AGENT_STORE) == Some("True"))
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: TorchrunVars = marker.read()?;
    let placement = marker
        .place(by(RANK, vars.rank), by(SIZE, vars.size))?
        .with_local(Some(by(LOCAL_RANK, vars.local_rank)), Some(by(LOCAL_SIZE, vars.local_size)))?;
    Ok(placement.with_nodes(by(NODE_RANK, vars.node_rank), by(NODES, vars.nodes)))
}
