//! A node's variables, for a launcher that runs once on each node: torchrun.

use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::LAUNCHER;
use crate::error::Error;
use crate::export::Exports;
use crate::launcher::context::CONTEXT;

/// Variables of this process that its workers must not take for their own.
const OF_THIS_PROCESS: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", LAUNCHER, CONTEXT];

/// torchrun's own name for the number of workers.
const WORKERS: &str = "PET_NPROC_PER_NODE";

impl ClusterInfo {
    /// Returns the node's variables, for a `torchrun` that one process on each node starts.
    ///
    /// They are `NODE_RANK`, `NNODES`, `MASTER_ADDR`, `MASTER_PORT`, torchrun's own
    /// `PET_NODE_RANK`, `PET_NNODES`, `PET_MASTER_ADDR`, `PET_MASTER_PORT`, and
    /// `NCCL_SOCKET_IFNAME`. This process's rank and sizes are unset. `PET_NPROC_PER_NODE` is also
    /// set if the platform provides the number of workers ([`ClusterInfo::workers_per_node`]) and
    /// the user has not set it. `torchrun train.py` then needs no argument. Elsewhere,
    /// `torchrun --nproc-per-node 8 train.py` needs no other argument.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::from_vars([
    ///     ("OMPI_COMM_WORLD_RANK", "1"),
    ///     ("OMPI_COMM_WORLD_SIZE", "2"),
    ///     ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ///     ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ///     ("MASTER_ADDR", "node-0"),
    /// ])?;
    /// let exports = info.per_node_exports()?;
    /// assert_eq!(exports.get("PET_NODE_RANK"), Some("1"));
    /// assert_eq!(exports.get("RANK"), None);
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if this process is not known to be the only one on its node, or if the
    /// master is unknown.
    pub fn per_node_exports(&self) -> Result<Exports, Error> {
        self.check_per_node()?;
        let (node, nodes) = (self.rank().to_string(), self.world_size().to_string());
        let (host, port) = (self.master_addr()?.to_string(), self.master_port().to_string());
        let mut exports = Exports { variables: Vec::new() };
        for (plain, pet, value) in [
            ("NODE_RANK", "PET_NODE_RANK", node),
            ("NNODES", "PET_NNODES", nodes),
            ("MASTER_ADDR", "PET_MASTER_ADDR", host),
            ("MASTER_PORT", "PET_MASTER_PORT", port),
        ] {
            exports.set(plain, value.clone());
            exports.set(pet, value);
        }
        // A user's own value takes precedence over the platform's.
        let workers = self.workers_per_node().filter(|_| !self.inherited.is_set(WORKERS));
        if let Some(workers) = workers {
            exports.set(WORKERS, workers.to_string());
        }
        if let Some(value) = self.nccl_socket_ifname() {
            exports.set("NCCL_SOCKET_IFNAME", value.to_owned());
        }
        self.set_interface(&mut exports);
        OF_THIS_PROCESS
            .iter()
            .chain(&self.passed_on.to_unset)
            .for_each(|name| exports.remove(*name));
        // The launcher divides the node's cores among its workers.
        self.passed_on.threads.ours().for_each(|(name, _)| exports.remove(name));
        Ok(exports)
    }
}
