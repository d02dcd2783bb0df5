//! The overrides of a [`ClusterInfoBuilder`].

use crate::cluster::nccl::NcclIfname;
use crate::cluster::overrides::{MasterPort, asked};
use crate::value::host::Host;
use crate::value::placement::Launcher;
use crate::value::port_range::PortRange;
use crate::value::rank::Rank;

use super::ClusterInfoBuilder;

impl ClusterInfoBuilder {
    /// Reads only this launcher's variables. Overrides the variable `MPIENV_LAUNCHER`.
    pub fn launcher(mut self, launcher: Launcher) -> ClusterInfoBuilder {
        self.overrides.launcher = Some(asked(launcher));
        self
    }

    /// Sets rank 0's host, like the variable `MPIENV_MASTER_ADDR`. It overrides all variables.
    pub fn master_addr(mut self, host: Host) -> ClusterInfoBuilder {
        self.overrides.master_addr = Some(asked(host));
        self
    }

    /// Sets the port on rank 0's host, like the variable `MPIENV_MASTER_PORT`. It overrides all
    /// variables.
    pub fn master_port(mut self, port: MasterPort) -> ClusterInfoBuilder {
        self.overrides.master_port = Some(asked(port));
        self
    }

    /// Sets the range of ports from which the job's port is derived. Overrides the variable
    /// `MPIENV_PORT_RANGE`. The range must be the same on all ranks. The default is 20000 to 29999.
    pub fn port_range(mut self, range: PortRange) -> ClusterInfoBuilder {
        self.overrides.port_range = Some(asked(range));
        self
    }

    /// Sets the number of this node and the number of nodes, for a platform that does not provide
    /// them. This process is then the only one of the job on its node. The platform's master and
    /// hosts are kept.
    ///
    /// ```
    /// use mpienv::{ClusterInfo, Rank};
    ///
    /// let builder = ClusterInfo::builder().node(Rank::new(1, 2)?).master_addr("node-0".parse()?);
    /// let info = builder.from_vars([("JOB_COMPLETION_INDEX", "1")])?;
    /// assert_eq!((info.node_rank(), info.node_count()), (Some(1), Some(2)));
    /// assert_eq!(info.workers(4)?[0].rank(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn node(mut self, node: Rank) -> ClusterInfoBuilder {
        self.overrides.node_rank = Some(node.index());
        self.overrides.nnodes = Some(node.size());
        self
    }

    /// Treats the rank as the number of the node, for launchers that start one process on each node
    /// and do not provide a local rank. Reading fails if a variable contradicts this.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node-0")];
    /// assert_eq!(ClusterInfo::from_vars(vars)?.node_rank(), None);
    /// assert_eq!(ClusterInfo::builder().one_per_node().from_vars(vars)?.node_rank(), Some(1));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    pub fn one_per_node(mut self) -> ClusterInfoBuilder {
        self.overrides.one_per_node = true;
        self
    }

    /// Sets how `NCCL_SOCKET_IFNAME` is treated. Overrides the variable `MPIENV_NCCL_IFNAME`.
    pub fn nccl_ifname(mut self, ifname: NcclIfname) -> ClusterInfoBuilder {
        self.overrides.nccl_ifname = Some(asked(ifname));
        self
    }

    /// Asks the launcher's PMIx server for rank 0's host and for the nodes. [`pmix`](crate::pmix)
    /// describes the cost.
    ///
    /// The answer takes precedence over values derived from the launcher's variables, but not over
    /// a setting that names the master.
    #[cfg(feature = "pmix")]
    pub fn ask_pmix(mut self) -> ClusterInfoBuilder {
        self.overrides.ask_pmix = true;
        self
    }
}
