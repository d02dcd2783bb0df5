//! What a launcher tells of one process: its place among the others.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::finding::Finding;
use crate::value::host::Host;
use crate::value::job::Job;
use crate::value::name::{self, UnknownName};
use crate::value::port::Port;
use crate::value::rank::{Local, Rank, RankError};

/// Who started this process and told it its rank.
///
/// ```
/// use mpienv::{ClusterInfo, Launcher};
///
/// let info = ClusterInfo::from_vars([("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "node0")])?;
/// assert_eq!(info.launcher(), Launcher::Hydra);
/// assert_eq!("hydra".parse(), Ok(Launcher::Hydra));
/// for launcher in Launcher::ALL {
///     println!("{}: {}", launcher.name(), launcher.title());
/// }
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// Open MPI's `mpirun`, versions 4 and 5; also what AzureML runs.
    OpenMpi,
    /// Hydra, the `mpiexec` of MPICH, Intel MPI and their kin.
    Hydra,
    /// MVAPICH's `mpirun_rsh`, `mpiexec`.
    Mvapich,
    /// Slurm's `srun`.
    Slurm,
    /// HPE Cray PALS: `mpiexec`, `aprun`.
    Pals,
    /// IBM's `jsrun` under LSF.
    Jsm,
    /// Flux: `flux run`, `flux submit`.
    Flux,
    /// PyTorch's `torchrun` (torchelastic).
    Torchrun,
    /// A person, a script, `mpienv launch` or Kubeflow's PyTorchJob: RANK and WORLD_SIZE.
    User,
    /// Amazon SageMaker: one process a host.
    SageMaker,
    /// A Kubernetes indexed job or Kubeflow Trainer: one process a pod.
    Kubernetes,
    /// An AWS Batch multi-node job: one process a node.
    AwsBatch,
    /// No launcher: one process by itself.
    Alone,
}

impl Launcher {
    /// Every launcher.
    pub const ALL: &'static [Launcher] = &[
        Launcher::OpenMpi,
        Launcher::Hydra,
        Launcher::Mvapich,
        Launcher::Slurm,
        Launcher::Pals,
        Launcher::Jsm,
        Launcher::Flux,
        Launcher::Torchrun,
        Launcher::User,
        Launcher::SageMaker,
        Launcher::Kubernetes,
        Launcher::AwsBatch,
        Launcher::Alone,
    ];

    /// The name for machines: in JSON, in `MPIENV_LAUNCHER`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Launcher::OpenMpi => "open-mpi",
            Launcher::Hydra => "hydra",
            Launcher::Mvapich => "mvapich",
            Launcher::Slurm => "slurm",
            Launcher::Pals => "pals",
            Launcher::Jsm => "jsm",
            Launcher::Flux => "flux",
            Launcher::Torchrun => "torchrun",
            Launcher::User => "user",
            Launcher::SageMaker => "sagemaker",
            Launcher::Kubernetes => "kubernetes",
            Launcher::AwsBatch => "aws-batch",
            Launcher::Alone => "alone",
        }
    }

    /// The name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Launcher::OpenMpi => "Open MPI",
            Launcher::Hydra => "Hydra",
            Launcher::Mvapich => "MVAPICH",
            Launcher::Slurm => "Slurm",
            Launcher::Pals => "PALS",
            Launcher::Jsm => "JSM",
            Launcher::Flux => "Flux",
            Launcher::Torchrun => "torchrun",
            Launcher::User => "RANK and WORLD_SIZE",
            Launcher::SageMaker => "SageMaker",
            Launcher::Kubernetes => "Kubernetes",
            Launcher::AwsBatch => "AWS Batch",
            Launcher::Alone => "no launcher",
        }
    }
}

/// By [`name`](Launcher::name).
impl FromStr for Launcher {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Launcher, UnknownName> {
        name::find("launcher", Launcher::ALL, Launcher::name, name)
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Launcher {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

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
    /// One process in all.
    Alone,
    /// Every process is on this node.
    SingleNode,
    /// One process on this node, more on others: a launcher of workers, by design.
    PerNode,
    /// Several processes on this node, more on others.
    PerProcess,
    /// The launcher does not tell the local size.
    Unknown,
}

impl LaunchStyle {
    /// The name as in JSON.
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

/// A value and the variable that tells it.
pub(crate) type Told<T> = (&'static str, T);

/// What one launcher tells, and nothing of any other.
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
    /// Why rank 0 may not be there; nothing to those who name another host.
    pub master_doubt: Option<Finding>,
    /// The port that the platform names.
    pub master_port: Option<Sourced<Port>>,
    /// The job as its scheduler or launcher knows it.
    pub job: Option<Sourced<Job>>,
    pub findings: Vec<Finding>,
}

/// The source of a value that the launcher keeps to itself.
pub(crate) const NOT_TOLD: &str = "not told by the launcher";

impl Placement {
    /// A rank and a world size, each with the variable that tells it.
    pub(crate) fn new(launcher: Launcher, rank: Told<u32>, size: Told<u32>) -> Result<Placement, Error> {
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
            local_rank_source: NOT_TOLD.into(),
            local_size_source: NOT_TOLD.into(),
            node_rank: None,
            node_count: None,
            master_addr: None,
            master_doubt: None,
            master_port: None,
            job: None,
            findings: Vec::new(),
        })
    }

    /// Adds the local rank and local size, as far as they are told.
    pub(crate) fn with_local(mut self, rank: Told<Option<u32>>, size: Told<Option<u32>>) -> Result<Placement, Error> {
        self.local = Local::new(rank.1, size.1, self.rank).map_err(|error| {
            let outside = matches!(error, RankError::Outside { .. });
            let (variable, value) = if outside { rank } else { size };
            Error::of_launcher(self.launcher, error, variable).found(value.unwrap_or_default().to_string())
        })?;
        if rank.1.is_some() {
            self.local_rank_source = rank.0.into();
        }
        if size.1.is_some() {
            self.local_size_source = size.0.into();
        }
        Ok(self)
    }

    /// Adds the job's identity, from which a master port follows.
    pub(crate) fn with_job(mut self, job: Job, source: &'static str) -> Placement {
        self.job = Some(Sourced::new(job, source));
        self
    }

    /// Whether all processes are known to be on this node.
    pub(crate) fn is_one_node(&self) -> bool {
        self.rank.size() == 1 || self.local.size() == Some(self.rank.size())
    }

    /// How the processes are spread, as far as this one can tell.
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
