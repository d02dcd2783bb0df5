//! JAX: the process numbers that Kubeflow Trainer or a script passes to `jax.distributed.initialize`.

use crate::launcher::kubernetes::SERVICE;
use crate::launcher::prelude::*;

variables! {
    /// The variables of Kubeflow Trainer's JAX runtime, based on its source.
    pub struct JaxVars {
        "[Kubeflow Trainer: JAX](https://github.com/kubeflow/trainer/blob/master/pkg/runtime/framework/plugins/jax/jax.go)" {
            RANK = "JAX_PROCESS_ID" => rank: u32, "rank";
            SIZE = "JAX_NUM_PROCESSES" => size: u32, "number of processes";
            COORDINATOR = "JAX_COORDINATOR_ADDRESS" => coordinator: Option<String>, "`host:port` of rank 0, which listens there";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[JaxVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK, SIZE]),
    starts: Starts::Slots,
    start: "set the three variables of JAX together",
    one_per_node: "one process on each node, in a pod; or set RANK, WORLD_SIZE, LOCAL_RANK=0 and LOCAL_WORLD_SIZE=1",
    give_master: "JAX_COORDINATOR_ADDRESS=HOST:PORT",
    // Under other launchers, users set the address alone.
    outside: &[COORDINATOR],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE], [process.rank, process.size]);
        vars.set(COORDINATOR, format!("{}:6666", process.name(0)));
        // Kubeflow starts one process in each pod.
        if process.counts.iter().all(|&count| count == 1) {
            vars.set(SERVICE, "10.96.0.1");
        }
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: JaxVars = marker.read()?;
    let (rank, size) = (by(RANK, vars.rank), by(SIZE, vars.size));
    // Outside Kubernetes, users also start several processes on one node.
    let placement = match marker.environment.is_set(SERVICE) {
        true => marker.node(rank, size)?,
        false => marker.place(rank, size)?,
    };
    placement.with_endpoint(COORDINATOR, vars.coordinator.as_deref())?.on_loopback()
}
