//! The options that take precedence over the environment.

use crate::{
    ClusterInfo, ClusterInfoBuilder, Environment, Error, Host, Launcher, MasterPort, NcclIfname,
    PortRange, Rank,
};
use clap::Args;
use mpienv_core::seam;

use super::{Quiet, named, pmix};

#[derive(Args, Debug)]
pub(crate) struct Overrides {
    /// Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]
    #[arg(long, value_name = "NAME", value_parser = named(Launcher::ALL, Launcher::name))]
    launcher: Option<Launcher>,
    /// The host of rank 0 [env: MPIENV_MASTER_ADDR]
    #[arg(long, value_name = "HOST")]
    master_addr: Option<Host>,
    /// The port at the host of rank 0, or `auto` to derive one from the job [env:
    /// MPIENV_MASTER_PORT]
    #[arg(long, value_name = "PORT")]
    master_port: Option<MasterPort>,
    /// Derive ports from this range, 20000-29999 by default; the same on all ranks [env:
    /// MPIENV_PORT_RANGE]
    #[arg(long, value_name = "LOW-HIGH")]
    port_range: Option<PortRange>,
    /// NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]
    #[arg(long, value_name = "VALUE")]
    nccl_ifname: Option<NcclIfname>,
    /// This is the only process on its node, and its rank is the number of the node
    #[arg(long, conflicts_with_all = ["node_rank", "nnodes"])]
    one_per_node: bool,
    /// The number of this node, from 0, if the platform does not set it; needs --nnodes
    #[arg(
        long,
        value_name = "R",
        alias = "node_rank",
        requires = "nnodes",
        conflicts_with = "launcher"
    )]
    node_rank: Option<u32>,
    /// The number of nodes, each with one process; needs --node-rank and, if above 1, a master such
    /// as --master-addr
    #[arg(long, value_name = "N", requires = "node_rank")]
    nnodes: Option<u32>,
    /// Ask the launcher's PMIx server for the host of rank 0; `mpienv export --help` has its limits
    #[arg(long)]
    ask_pmix: bool,
}

impl Overrides {
    pub(crate) fn read_from(
        self,
        environment: &Environment,
        quiet: Quiet,
    ) -> Result<ClusterInfo, Error> {
        let node = self.node_rank.zip(self.nnodes).map(|(rank, nodes)| {
            let outside = |error| {
                let remedy = "give a number below --nnodes".to_owned();
                seam::error(error, remedy, "--node-rank".to_owned(), rank.to_string())
            };
            Rank::new(rank, nodes).map_err(outside)
        });
        let overrides = seam::Overrides {
            launcher: self.launcher,
            master_addr: self.master_addr,
            master_port: self.master_port,
            port_range: self.port_range,
            nccl_ifname: self.nccl_ifname,
            node: node.transpose()?,
            one_per_node: self.one_per_node,
        };
        let mut builder = ClusterInfoBuilder::from(overrides);
        if self.ask_pmix {
            if !quiet.is_asked(environment) {
                pmix::warn_of_asking(environment);
            }
            builder = builder.ask_pmix();
        }
        builder.from_environment(environment)
    }
}
