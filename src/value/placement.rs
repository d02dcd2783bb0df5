//! What a launcher provides about one process: its place among the others.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, Reason, quote};
use crate::finding::Finding;
use crate::launcher::Marker;
use crate::value::host::Host;
use crate::value::job::Job;
use crate::value::port::Port;
use crate::value::rank::{Local, Rank, RankError};

pub(crate) use crate::launcher::Launcher;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
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

impl fmt::Display for LaunchStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a value comes from: a variable's name, or a rule in words.
pub(crate) type Source = Cow<'static, str>;

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sourced<T> {
    pub value: T,
    pub source: Source,
}

impl<T> Sourced<T> {
    pub(crate) fn new(value: T, source: impl Into<Source>) -> Sourced<T> {
        Sourced { value, source: source.into() }
    }
}

/// A value and the variable that holds it.
pub(crate) type Told<T> = (&'static str, T);

/// What one launcher provides, without values from any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub launcher: Launcher,
    pub rank: Rank,
    pub rank_source: Source,
    pub world_size_source: Source,
    pub local: Local,
    pub local_rank_source: Source,
    pub local_size_source: Source,
    pub node_rank: Option<Sourced<u32>>,
    pub node_count: Option<Sourced<u32>>,
    pub master_addr: Option<Sourced<Host>>,
    /// Why rank 0 may not be on `master_addr`. Ignored if another source names a different host.
    pub master_doubt: Option<Finding>,
    /// The port that the platform names.
    pub master_port: Option<Sourced<Port>>,
    /// All hosts in the order of the nodes' numbers, if the launcher lists them, or else why there
    /// is no list.
    pub hosts: Sourced<Option<Arc<[Host]>>>,
    /// The number of workers that the platform requests on each node, as its variable contains it.
    pub workers: Option<Sourced<String>>,
    /// The job as its scheduler or launcher knows it.
    pub job: Option<Sourced<Job>>,
    pub findings: Vec<Finding>,
}

/// How many hosts of a list are read: as many as Slurm allows in a range.
pub(crate) const MOST_HOSTS: usize = 1 << 16;

/// The source of a value that the launcher does not provide.
pub(crate) const NOT_PROVIDED: &str = "not provided by the launcher";

impl Placement {
    /// Creates a placement from a rank and a world size, each with the variable that holds it.
    pub(crate) fn new(
        launcher: Launcher,
        rank: Told<u32>,
        size: Told<u32>,
    ) -> Result<Placement, Error> {
        let world = Rank::new(rank.1, size.1).map_err(|error| {
            let (variable, value) = if error == RankError::NoMembers { size } else { rank };
            Error::of_launcher(launcher, error, variable).found(value.to_string())
        })?;
        Ok(Placement {
            launcher,
            rank: world,
            rank_source: rank.0.into(),
            world_size_source: size.0.into(),
            local: Local::UNKNOWN,
            local_rank_source: NOT_PROVIDED.into(),
            local_size_source: NOT_PROVIDED.into(),
            node_rank: None,
            node_count: None,
            master_addr: None,
            master_doubt: None,
            master_port: None,
            hosts: Sourced::new(None, NOT_PROVIDED),
            workers: None,
            job: None,
            findings: Vec::new(),
        })
    }

    /// Adds the local rank and the local size, if they are known.
    pub(crate) fn with_local(
        mut self,
        rank: Told<Option<u32>>,
        size: Told<Option<u32>>,
    ) -> Result<Placement, Error> {
        self.local = Local::new(rank.1, size.1, self.rank).map_err(|error| {
            let outside = matches!(error, RankError::Outside { .. });
            let (variable, value) = if outside { rank } else { size };
            Error::of_launcher(self.launcher, error, variable)
                .found(value.unwrap_or_default().to_string())
        })?;
        if rank.1.is_some() {
            self.local_rank_source = rank.0.into();
        }
        if size.1.is_some() {
            self.local_size_source = size.0.into();
        }
        Ok(self)
    }

    /// Creates the placement of the only process on its node, under a launcher that starts one on
    /// each.
    pub(crate) fn one_per_node(
        launcher: Launcher,
        rank: Told<u32>,
        size: Told<u32>,
    ) -> Result<Placement, Error> {
        let placement = Placement::new(launcher, rank, size)?
            .with_local((rank.0, Some(0)), (rank.0, Some(1)))?;
        Ok(placement.with_nodes((rank.0, Some(rank.1)), (size.0, Some(size.1))))
    }

    /// Adds the node's number and the number of nodes, if they are known.
    pub(crate) fn with_nodes(
        mut self,
        rank: Told<Option<u32>>,
        count: Told<Option<u32>>,
    ) -> Placement {
        self.node_rank = rank.1.map(|node| Sourced::new(node, rank.0));
        self.node_count = count.1.map(|nodes| Sourced::new(nodes, count.0));
        self
    }

    /// Adds rank 0's host, if it is known.
    pub(crate) fn with_master(
        mut self,
        marker: Marker,
        variable: impl Into<Source>,
        text: Option<&str>,
    ) -> Result<Placement, Error> {
        if let Some(text) = text.map(str::trim) {
            let source = variable.into();
            self.master_addr = Some(Sourced::new(marker.host(&source, text)?, source));
        }
        Ok(self)
    }

    /// Adds the port on rank 0's host, if it is known.
    pub(crate) fn with_port(
        mut self,
        marker: Marker,
        variable: &'static str,
        text: Option<&str>,
    ) -> Result<Placement, Error> {
        if let Some(text) = text {
            let port = text.parse().map_err(|_| marker.refuse(Reason::NotAPort, variable, text))?;
            self.master_port = Some(Sourced::new(port, variable));
        }
        Ok(self)
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
                Ok(host) if hosts.len() < MOST_HOSTS => hosts.push(host),
                Ok(_) => {
                    return self
                        .without_hosts(format!("{source} has more than {MOST_HOSTS} hosts"));
                }
                // The ranks can meet without this list, so an invalid host is not an error.
                Err(error) => {
                    return self.without_hosts(format!("{source} has {}: {error}", quote(text)));
                }
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

    /// Adds the job's identity, if it is known. A master port is derived from it.
    pub(crate) fn with_job(mut self, variable: &str, id: Option<String>) -> Placement {
        let job = id.map(|id| Job { id, step: String::new(), restarts: 0 });
        self.job = job.map(|job| Sourced::new(job, format!("hash of {variable}")));
        self
    }

    /// Returns whether all processes are known to be on this node.
    pub(crate) fn is_one_node(&self) -> bool {
        self.rank.size() == 1 || self.local.size() == Some(self.rank.size())
    }

    /// Returns how the processes are distributed over nodes, as far as this one knows.
    pub(crate) fn style(&self) -> LaunchStyle {
        let nodes = self.node_count.as_ref().map(|nodes| nodes.value);
        match self.local.size() {
            _ if self.rank.size() == 1 => LaunchStyle::Alone,
            None => LaunchStyle::Unknown,
            Some(_) if self.is_one_node() => LaunchStyle::SingleNode,
            Some(1) if nodes.is_none_or(|nodes| nodes == self.rank.size()) => LaunchStyle::PerNode,
            Some(_) => LaunchStyle::PerProcess,
        }
    }
}
