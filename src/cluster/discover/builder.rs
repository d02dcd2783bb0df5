//! What can be asked of a [`ClusterInfoBuilder`].

use crate::cluster::nccl::NcclIfname;
use crate::cluster::overrides::MasterPort;
use crate::value::host::Host;
use crate::value::placement::Launcher;
use crate::value::port_range::PortRange;
use crate::value::rank::Rank;

use super::ClusterInfoBuilder;

impl ClusterInfoBuilder {
    /// Believes this launcher alone; as the variable `MPIENV_LAUNCHER`, and before it.
    pub fn launcher(mut self, launcher: Launcher) -> ClusterInfoBuilder {
        self.overrides.launcher = Some(launcher);
        self
    }

    /// Rank 0's host; as the variable `MPIENV_MASTER_ADDR`, and before it and all else.
    pub fn master_addr(mut self, host: Host) -> ClusterInfoBuilder {
        self.overrides.master_addr = Some(host);
        self
    }

    /// The port at rank 0's host; as the variable `MPIENV_MASTER_PORT`, and before it and all else.
    pub fn master_port(mut self, port: MasterPort) -> ClusterInfoBuilder {
        self.overrides.master_port = Some(port);
        self
    }

    /// The ports from which the job's own is chosen, the same on all ranks; as the variable `MPIENV_PORT_RANGE`, and
    /// before it. 20000 to 29999 by default.
    pub fn port_range(mut self, range: PortRange) -> ClusterInfoBuilder {
        self.overrides.port_range = Some(range);
        self
    }

    /// The number of this node and how many there are, for a platform that does not set them: this process is the only
    /// one on its node. The platform's master stays, if it sets one.
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
        self.overrides.node = Some(node);
        self
    }

    /// This process is the only one on its node, and its rank is the number of the node: for launchers that do not give
    /// a local rank. Reading fails if a variable contradicts that.
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

    /// What becomes of `NCCL_SOCKET_IFNAME`; as the variable `MPIENV_NCCL_IFNAME`, and before it.
    pub fn nccl_ifname(mut self, ifname: NcclIfname) -> ClusterInfoBuilder {
        self.overrides.nccl_ifname = Some(ifname);
        self
    }
}
