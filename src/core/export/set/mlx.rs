//! What `mlx.core.distributed.init()` reads.
//!
//! Two backends meet at an address: NCCL, and JACCL, which also needs a file with its devices. The
//! ring backend needs a file with the addresses of all ranks. Without any of them, MLX starts as
//! rank 0 of 1 and says nothing.

use super::peers::ipv4_endpoints;
use super::{
    Set, Target, TargetFile, addition, decided, endpoint_of_master, master_addr, master_port, rank,
    size,
};
use crate::cluster::info::ClusterInfo;
use crate::error::Error;
use crate::launcher::mlx::{COORDINATOR, DEVICES, HOST, HOST_FILE, PORT, RANK, SIZE};

/// Variables that show which backend the user has set up.
const BACKENDS: [&str; 3] = [HOST_FILE, DEVICES, HOST];

const PAGE: &str =
    "[distributed.rst](https://github.com/ml-explore/mlx/blob/main/docs/src/usage/distributed.rst)";

pub(super) const SET: Set = Set {
    name: "mlx",
    title: "MLX",
    note: "; exec and launch write the ring's MLX_HOSTFILE, for which the hosts of all ranks must be known, from the launcher or by \
           exec --meet; set MLX_IBV_DEVICES for JACCL or NCCL_HOST_IP for NCCL, and none is written",
    page: PAGE,
    additions: &[
        rank(RANK),
        size(SIZE),
        addition(HOST, "the host of rank 0, for the NCCL backend", master_addr),
        addition(PORT, "the port at the host of rank 0, for the NCCL backend", master_port),
        addition(COORDINATOR, "`host:port` of rank 0, for the JACCL backend", endpoint_of_master),
        addition(
            HOST_FILE,
            "a temporary file for the ring backend: a JSON list of the `address:port` of each rank",
            decided,
        ),
    ],
    file: Some(host_file),
    ..Set::PLAIN
};

fn host_file(info: &ClusterInfo) -> Result<Option<TargetFile>, Error> {
    if info.world_size() == 1 || BACKENDS.iter().any(|name| info.inherited.is_set(name)) {
        return Ok(None);
    }
    // A rank may have several addresses. Neither hosts nor ports need escapes in JSON.
    let ranks = ipv4_endpoints(info, Target::Mlx).map_err(|error| error.of(HOST_FILE))?;
    let ranks: Vec<_> = ranks.iter().map(|(host, port)| format!("[\"{host}:{port}\"]")).collect();
    Ok(Some(TargetFile { variable: HOST_FILE, text: format!("[{}]\n", ranks.join(", ")) }))
}
