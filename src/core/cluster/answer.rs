//! What the launcher's server has said, and what it adds to the launcher's variables.

use crate::cluster::context::Server;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::Launcher;
use crate::launcher::placement::Placement;
use crate::value::host::Host;
use crate::value::sourced::{Given, Sourced, by};
use crate::value::token::Token;

/// The job's name in PMIx.
pub const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";
/// PMIx's rank, which `prterun` and `prun` set without a size.
pub const PMIX_RANK: &str = "PMIX_RANK";

/// What the launcher's server has said about this process and its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which server has answered.
    pub server: Server,
    /// This process's rank in its job, and the number of ranks.
    pub rank: Option<u32>,
    /// The number of ranks in the job.
    pub size: Option<u32>,
    /// Rank 0's host. `None` if all ranks are on one node.
    pub host: Option<Host>,
    /// Random text that only the ranks of this job know.
    pub secret: Option<Token>,
    /// The number of this process's node, from 0, in the order in which ranks first use the nodes.
    pub node_rank: Option<u32>,
    /// The number of nodes that hold ranks.
    pub node_count: Option<u32>,
    /// This process's rank among those on its node.
    pub local_rank: Option<u32>,
    /// The number of the job's ranks on this node.
    pub local_size: Option<u32>,
    /// The hosts of all nodes, in the order of their numbers.
    pub hosts: Option<Vec<String>>,
}

impl Answer {
    /// An answer of this server that says nothing.
    #[must_use]
    pub fn of(server: Server) -> Answer {
        Answer {
            server,
            rank: None,
            size: None,
            host: None,
            secret: None,
            node_rank: None,
            node_count: None,
            local_rank: None,
            local_size: None,
            hosts: None,
        }
    }

    /// Returns whether the server provides every value of a process that nothing else places.
    /// `prterun` alone sets no size, so that its variables do not place a process.
    pub(super) fn gives_all(&self, unplaced: &Environment) -> bool {
        self.server == Server::Pmix && unplaced.get(PMIX_RANK).is_some()
    }

    /// Returns the place that the server provides.
    pub(super) fn placement(&self, environment: &Environment) -> Result<Placement, Error> {
        // `prterun` belongs to PRRTE, which Open MPI's mpirun is based on.
        let launcher = Launcher::OpenMpi;
        let rank_and_size = self.rank.zip(self.size);
        let (rank, size) = rank_and_size
            .ok_or_else(|| refused(launcher, "it does not say how many ranks there are".into()))?;
        let placement = Placement::new(launcher, by(PMIX_RANK, rank), self.says(size))?
            .with_local(self.says(self.local_rank), self.says(self.local_size))?;
        let namespace = environment.get(PMIX_NAMESPACE);
        let namespace = namespace.map(|name| name.to_string_lossy().into_owned());
        Ok(self.replace(placement.with_job(PMIX_NAMESPACE, namespace)))
    }

    /// Replaces what PMIx knows better than the variables, unless it speaks of another process.
    pub(super) fn apply_pmix(&self, placement: Placement) -> Result<Placement, Error> {
        if self.server != Server::Pmix {
            return Ok(placement);
        }
        let (rank, size) = (placement.rank.value, placement.size.value);
        if self.rank != Some(rank) || self.size.is_some_and(|known| known != size) {
            let word = |known: Option<u32>| known.map_or("?".to_owned(), |known| known.to_string());
            let text = format!(
                "it says rank {} of {}, but the variables say rank {rank} of {size}",
                word(self.rank),
                word(self.size)
            );
            return Err(refused(placement.launcher(), text));
        }
        Ok(self.replace(placement))
    }

    fn replace(&self, mut placement: Placement) -> Placement {
        placement = self.with_master(placement);
        (placement.master_doubt, placement.master_unknown) = (None, None);
        placement.node_rank = self.says(self.node_rank).or(placement.node_rank);
        placement.node_count = self.says(self.node_count).or(placement.node_count);
        match &self.hosts {
            Some(hosts) => placement.with_hosts(self.server.source(), hosts.clone()),
            None => placement,
        }
    }

    /// Adds what PMI knows to what the variables do not say.
    pub(super) fn apply_pmi(&self, placement: Placement) -> Result<Placement, Error> {
        if self.server != Server::Pmi {
            return Ok(placement);
        }
        self.fill(self.with_master(placement))
    }

    /// Adds the server's numbers that the placement does not have.
    pub(super) fn fill(&self, placement: Placement) -> Result<Placement, Error> {
        let local_rank = placement.local_rank.clone().or_else(|| self.says(self.local_rank));
        let local_size = placement.local_size.clone().or_else(|| self.says(self.local_size));
        let node_rank = placement.node_rank.clone().or_else(|| self.says(self.node_rank));
        let node_count = placement.node_count.clone().or_else(|| self.says(self.node_count));
        Ok(placement.with_local(local_rank, local_size)?.with_nodes(node_rank, node_count))
    }

    fn with_master(&self, mut placement: Placement) -> Placement {
        if let Some(host) = &self.host {
            placement.master_addr = Some(Sourced::new(host.clone(), self.server.master()));
        }
        placement
    }

    fn says<T: Given>(&self, value: T) -> T::Sourced {
        by(self.server.source(), value)
    }
}

/// Returns the error of a PMIx server that does not say what it should.
pub fn refused(launcher: Launcher, text: String) -> Error {
    let give = launcher.spec().give_master;
    let remedy = format!("or do not ask PMIx, and give rank 0's host to all ranks: {give}");
    Error::new(Reason::Pmix(text), remedy).by(launcher)
}
