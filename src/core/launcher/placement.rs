//! What a launcher provides about one process: its place among the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, quote};
use crate::finding::Finding;
use crate::launcher::Launcher;
use crate::value::host::Host;
use crate::value::job::Job;
use crate::value::name;
use crate::value::port::{Port, PortError};
use crate::value::rank::{Rank, RankError};
use crate::value::sourced::{Known, NOT_PROVIDED, Source, Sourced, by, value_of};

/// How many of a job's processes share this node.
///
/// ```
/// use mpienv::{ClusterInfo, LaunchStyle};
///
/// let job = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
/// let info = ClusterInfo::from_vars(job)?;
/// assert_eq!(info.launch_style(), LaunchStyle::PerNode);
/// assert_eq!(info.launch_style().name(), "per-node");
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LaunchStyle {
    /// One process in total.
    Alone,
    /// Every process is on this node.
    SingleNode,
    /// One process on this node, and more on others. Such a process usually starts the workers of
    /// its node.
    PerNode,
    /// Several processes on this node, and more on others.
    PerProcess,
    /// The launcher does not provide the local size.
    Unknown,
}

impl LaunchStyle {
    /// Returns the name that JSON uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LaunchStyle::Alone => "alone",
            LaunchStyle::SingleNode => "single-node",
            LaunchStyle::PerNode => "per-node",
            LaunchStyle::PerProcess => "per-process",
            LaunchStyle::Unknown => "unknown",
        }
    }
}

name::shown_by_name!(LaunchStyle);

/// What one launcher provides, without values from any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The launcher, and what shows that it started this process.
    pub launcher: Sourced<Launcher>,
    pub rank: Sourced<u32>,
    /// The number of ranks in the job, which is above the rank.
    pub size: Sourced<u32>,
    pub local_rank: Known<u32>,
    pub local_size: Known<u32>,
    pub node_rank: Known<u32>,
    pub node_count: Known<u32>,
    pub master_addr: Known<Host>,
    /// Why rank 0 may not be on `master_addr`. Ignored if another source names a different host.
    pub master_doubt: Option<Finding>,
    /// Why the launcher's variables, which name a host, do not name rank 0's.
    pub master_unknown: Option<String>,
    /// A host that a user may have taken for rank 0's and that is not, and what to say then.
    pub not_master: Option<(Host, Finding)>,
    /// The port that the platform names.
    pub master_port: Known<Port>,
    /// All hosts in the order of the nodes' numbers, if the launcher lists them, or else why there
    /// is no list.
    pub hosts: Sourced<Option<Arc<[Host]>>>,
    /// How many consecutive ranks each of `hosts` has, as groups: a number of ranks, and how many
    /// nodes in a row have it. `None` if the launcher does not say, or deals the ranks otherwise.
    pub ranks_per_host: Option<Vec<(u32, u32)>>,
    /// The number of workers that the platform requests on each node, as its variable contains it.
    pub workers: Known<String>,
    /// The job as its scheduler or launcher knows it.
    pub job: Known<Job>,
    pub findings: Vec<Finding>,
}

/// How many hosts of a list are read: as many as Slurm allows in a range.
pub(crate) const MOST_HOSTS: usize = 1 << 16;

impl Placement {
    pub(crate) fn new(
        launcher: Launcher,
        rank: Sourced<u32>,
        size: Sourced<u32>,
    ) -> Result<Placement, Error> {
        Rank::new(rank.value, size.value).map_err(|error| {
            let wrong = if error == RankError::NoMembers { &size } else { &rank };
            launcher.refuse(error, &wrong.source, wrong.value)
        })?;
        Ok(Placement {
            launcher: Sourced::new(launcher, rank.source.clone()),
            rank,
            size,
            local_rank: None,
            local_size: None,
            node_rank: None,
            node_count: None,
            master_addr: None,
            master_doubt: None,
            master_unknown: None,
            not_master: None,
            master_port: None,
            hosts: Sourced::new(None, NOT_PROVIDED),
            ranks_per_host: None,
            workers: None,
            job: None,
            findings: Vec::new(),
        })
    }

    /// Creates the placement of the only process on its node, under a launcher that starts one on
    /// each.
    pub(crate) fn one_per_node(
        launcher: Launcher,
        rank: Sourced<u32>,
        size: Sourced<u32>,
    ) -> Result<Placement, Error> {
        let own = |number| Some(Sourced::new(number, rank.source.clone()));
        let placement = Placement::new(launcher, rank.clone(), size.clone())?;
        Ok(placement.with_local(own(0), own(1))?.with_nodes(Some(rank), Some(size)))
    }

    /// Adds the local rank and the local size, if they are known: the rank is below the size, and
    /// the size is at most the world size.
    pub(crate) fn with_local(
        mut self,
        rank: Known<u32>,
        size: Known<u32>,
    ) -> Result<Placement, Error> {
        let (launcher, world) = (self.launcher(), self.size.value);
        let refuse = |error: RankError, wrong: &Sourced<u32>| {
            launcher.refuse(error, &wrong.source, wrong.value)
        };
        if let Some(here) = &size {
            let fits = match here.value {
                size if size > world => Err(RankError::AboveWorld { size, world }),
                size => Rank::new(0, size),
            };
            fits.map_err(|error| refuse(error, here))?;
        }
        if let Some(local) = &rank {
            let here = value_of(&size).unwrap_or(world);
            Rank::new(local.value, here).map_err(|error| refuse(error, local))?;
        }
        (self.local_rank, self.local_size) = (rank, size);
        Ok(self)
    }

    /// Adds the node's number and the number of nodes, if they are known.
    pub(crate) fn with_nodes(mut self, rank: Known<u32>, count: Known<u32>) -> Placement {
        (self.node_rank, self.node_count) = (rank, count);
        self
    }

    /// Adds rank 0's host, if it is known.
    pub(crate) fn with_master(
        mut self,
        variable: impl Into<Source>,
        text: Option<&str>,
    ) -> Result<Placement, Error> {
        if let Some(text) = text.map(str::trim) {
            let source = variable.into();
            self.master_addr = Some(Sourced::new(self.launcher().host(&source, text)?, source));
        }
        Ok(self)
    }

    /// Adds rank 0's host and port, if they are known: `host:port`.
    pub(crate) fn with_endpoint(
        mut self,
        variable: &'static str,
        text: Option<&str>,
    ) -> Result<Placement, Error> {
        if let Some(text) = text {
            let parsed = Host::parse_with_port(text);
            let (host, port) =
                parsed.map_err(|error| self.launcher().refuse(error, variable, text))?;
            self.master_addr = Some(Sourced::new(host, variable));
            self.master_port = port.map(|port| Sourced::new(port, variable));
        }
        Ok(self)
    }

    /// Adds the port at rank 0's host, if it is known.
    pub(crate) fn with_port(
        mut self,
        variable: &'static str,
        text: Option<&str>,
    ) -> Result<Placement, Error> {
        let refused = |text, error: PortError| self.launcher().refuse(error, variable, text);
        let port = text.map(|text: &str| text.parse().map_err(|error| refused(text, error)));
        self.master_port = by(variable, port.transpose()?);
        Ok(self)
    }

    /// Adds the local rank and the local size if rank 0's host is the loopback interface, so that
    /// all ranks are on this node.
    pub(crate) fn on_loopback(self) -> Result<Placement, Error> {
        let master = self.master_addr.as_ref().filter(|host| host.value.is_loopback());
        let Some(source) = master.map(|host| format!("{} is this node", host.source)) else {
            return Ok(self);
        };
        let known = |number| Some(Sourced::new(number, source.clone()));
        let (rank, size) = (self.local_rank.clone(), self.local_size.clone());
        let (rank, size) = (rank.or(known(self.rank.value)), size.or(known(self.size.value)));
        self.with_local(rank, size)
    }

    /// Adds the hosts of all nodes, in the order of the nodes' numbers.
    pub(crate) fn with_hosts<T: AsRef<str>>(
        mut self,
        source: impl Into<Source>,
        texts: impl IntoIterator<Item = T>,
    ) -> Placement {
        let source = source.into();
        let mut hosts = Vec::new();
        for text in texts {
            let text = text.as_ref().trim();
            match text.parse() {
                Ok(host) => hosts.push(host),
                // The ranks can meet without this list, so an invalid host is not an error.
                Err(error) => {
                    return self.without_hosts(format!("{source} has {}: {error}", quote(text)));
                }
            }
            if hosts.len() > MOST_HOSTS {
                return self.without_hosts(format!("{source} has more than {MOST_HOSTS} hosts"));
            }
        }
        self.hosts = Sourced::new(Some(hosts.into()), source);
        self
    }

    /// Records why the hosts are not known.
    pub(crate) fn without_hosts(mut self, why: impl Into<Source>) -> Placement {
        self.hosts = Sourced::new(None, why);
        self
    }

    /// Adds the number of workers of each node, if it is known.
    pub(crate) fn with_workers(
        mut self,
        variable: &'static str,
        number: Option<String>,
    ) -> Placement {
        self.workers = number.map(|number| Sourced::new(number.trim().to_owned(), variable));
        self
    }

    /// Like [`Placement::with_workers`], with the number of all workers. Some set the number of
    /// nodes in this variable, which says nothing about workers.
    pub(crate) fn with_all_workers(self, variable: &'static str, all: Option<u32>) -> Placement {
        let nodes = self.size.value;
        let each =
            all.filter(|&all| all > nodes && all.is_multiple_of(nodes)).map(|all| all / nodes);
        self.with_workers(variable, each.map(|each| each.to_string()))
    }

    /// Adds the job's identity, if it is known. A master port is derived from it.
    pub(crate) fn with_job(mut self, variable: &str, id: Option<String>) -> Placement {
        self.job = id.map(|id| Sourced::new(Job::new(id), format!("hash of {variable}")));
        self
    }

    pub(crate) fn launcher(&self) -> Launcher {
        self.launcher.value
    }

    /// Returns the rank together with the world size.
    #[expect(clippy::expect_used, reason = "`new` has checked the two numbers")]
    pub(crate) fn world(&self) -> Rank {
        Rank::new(self.rank.value, self.size.value).expect("the rank is below the world size")
    }

    /// Returns whether all processes are known to be on this node.
    pub(crate) fn is_one_node(&self) -> bool {
        let size = self.size.value;
        size == 1 || value_of(&self.local_size) == Some(size)
    }

    /// Returns how the processes are distributed over nodes, as far as this one knows.
    pub(crate) fn style(&self) -> LaunchStyle {
        let size = self.size.value;
        let is_per_node = match (value_of(&self.node_count), value_of(&self.node_rank)) {
            (Some(nodes), _) => nodes == size,
            // A node with two ranks comes before this one.
            (None, Some(node)) => node == self.rank.value,
            (None, None) => true,
        };
        match value_of(&self.local_size) {
            _ if size == 1 => LaunchStyle::Alone,
            None => LaunchStyle::Unknown,
            Some(_) if self.is_one_node() => LaunchStyle::SingleNode,
            Some(1) if is_per_node => LaunchStyle::PerNode,
            Some(_) => LaunchStyle::PerProcess,
        }
    }

    /// Adds the place on the node, and the nodes, as a list of all ranks in rank order shows them.
    /// Each has its host, and what numbers the ranks of a host: a port, or the number of a device.
    pub(super) fn with_roster<T: AsRef<str> + Ord>(
        self,
        source: &str,
        ranks: &[(T, u32)],
    ) -> Result<Placement, Error> {
        let rank = self.rank.value as usize;
        let Some((own_host, own_order)) = ranks.get(rank) else { return Ok(self) };
        let mut seen = BTreeSet::new();
        let mut nodes: Vec<_> = ranks.iter().map(|(host, _)| host).collect();
        nodes.retain(|host| seen.insert(*host));
        let here = ranks.iter().enumerate().filter(|(_, (host, _))| host == own_host);
        let before = here.clone().filter(|(at, (_, order))| (order, *at) < (own_order, rank));
        let known = |number: usize| by(source.to_owned(), u32::try_from(number).ok());
        let placement = self.with_local(known(before.count()), known(here.count()))?;
        let node = nodes.iter().position(|host| *host == own_host).and_then(known);
        let placement = placement.with_nodes(node, known(nodes.len()));
        Ok(placement.with_hosts(source.to_owned(), nodes))
    }
}
