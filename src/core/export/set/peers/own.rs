//! Where this rank itself listens.

use std::net::SocketAddr;

use super::port;
use crate::cluster::info::ClusterInfo;
use crate::error::{Error, Reason};

const OTHERWISE: &str = "start all ranks on one node";

impl ClusterInfo {
    /// Returns where this rank listens, for programs that need a list of all ranks: `host:port`
    /// with its host's own address.
    pub(crate) fn own_endpoint(&self) -> Result<String, Error> {
        let program = "the list of all ranks";
        let local_rank = self
            .local_rank()
            .ok_or_else(|| Error::new(Reason::NoLocalRank { program }, OTHERWISE))?;
        let port = port(self, local_rank, program)?;
        Ok(SocketAddr::new(self.own_addr()?.address, port.get()).to_string())
    }

    /// Returns the same place with the [`own_endpoint`](ClusterInfo::own_endpoint) of each rank.
    pub(crate) fn with_endpoints(&self, endpoints: Vec<String>) -> ClusterInfo {
        ClusterInfo { endpoints: Some(endpoints.into()), ..self.clone() }
    }
}
