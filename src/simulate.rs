//! The environments that a launcher would give: for those who write trainers without a cluster.

mod variables;

use std::iter;
use std::process::Command;

use crate::cluster::azure;
use crate::cluster::master;
use crate::cluster::overrides;
use crate::launcher;
use crate::launcher::context::CONTEXT;
use crate::value::host::Host;
use crate::value::placement::Launcher;
use crate::value::port::Port;

/// What tells PyTorch where the ranks meet.
const MASTER: [&str; 2] = [master::MASTER_ADDR, master::MASTER_PORT];

/// The variables of one process.
pub type Vars = Vec<(String, String)>;

/// The variables by which a real launcher, a cloud or mpienv itself tells a process its place: what a simulated process
/// must not inherit.
///
/// ```
/// use std::process::Command;
/// use mpienv::simulate::{Job, real_variables};
///
/// let mut command = Command::new("true");
/// for name in real_variables() {
///     command.env_remove(name);
/// }
/// command.envs(Job::slurm().build()?.environment(0).unwrap_or_default());
/// # Ok::<(), mpienv::simulate::JobError>(())
/// ```
pub fn real_variables() -> impl Iterator<Item = &'static str> {
    let others = MASTER.into_iter().chain([CONTEXT]).chain(overrides::OF_WORKERS).chain(azure::VARIABLES);
    launcher::VARIABLES.iter().map(String::as_str).chain(others)
}

/// A job as a launcher would start it: which process is where, and what each finds in its environment.
///
/// Nodes are called `node0`, `node1`, ... and have the addresses 10.0.0.1, 10.0.0.2, ...
///
/// ```
/// use mpienv::ClusterInfo;
/// use mpienv::simulate::Job;
///
/// let job = Job::slurm().nodes(2).per_node(4).build()?;
/// for (rank, vars) in job.environments().enumerate() {
///     let info = ClusterInfo::from_vars(vars)?;
///     assert_eq!(info.rank() as usize, rank);
///     assert_eq!(info.world_size(), 8);
///     assert_eq!(info.master_addr()?.to_string(), "node0");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nodes may have different numbers of ranks, and a job tells where each rank is:
///
/// ```
/// use mpienv::Launcher;
/// use mpienv::simulate::{Job, JobError, Place, Vars};
///
/// let job = Job::of(Launcher::OpenMpi).counts([2, 1]).by_node().build()?;
/// assert_eq!((job.launcher(), job.world_size(), job.counts()), (Launcher::OpenMpi, 3, &[2, 1][..]));
/// // Rank 1 is on the other node.
/// assert_eq!(job.place(2), Some(Place { node: 0, local_rank: 1 }));
/// let vars: Option<Vars> = job.environment(2);
/// assert!(vars.unwrap().contains(&("OMPI_COMM_WORLD_RANK".into(), "2".into())));
/// assert_eq!(Job::of(Launcher::Alone).per_node(2).build(), Err(JobError::OneProcess(Launcher::Alone)));
/// assert_eq!(Job::slurm().nodes(Job::MOST_RANKS + 1).build(), Err(JobError::TooLarge));
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    launcher: Launcher,
    version: Version,
    /// How many ranks each node has.
    counts: Vec<u32>,
    /// For each rank its node and its local rank.
    places: Vec<Place>,
    cyclic: bool,
    /// Where the ranks meet, if not where the launcher says.
    master: Option<(Host, Port)>,
}

/// Where one rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node's number.
    pub node: u32,
    /// The rank among those of its node.
    pub local_rank: u32,
}

/// Versions of one launcher that set other variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Usual,
    OpenMpi5,
    IntelMpi,
}

impl Job {
    /// How many ranks a job has at most: each takes memory, and every rank's variables may name all nodes.
    pub const MOST_RANKS: u32 = 1 << 20;

    /// A job of any launcher; of Open MPI version 4, of Hydra MPICH's.
    pub fn of(launcher: Launcher) -> JobBuilder {
        JobBuilder {
            launcher,
            version: Version::Usual,
            shape: Shape::Even { nodes: 1, per_node: 1 },
            cyclic: false,
            rotation: 0,
        }
    }

    /// A job of Open MPI 4.
    pub fn open_mpi() -> JobBuilder {
        Job::of(Launcher::OpenMpi)
    }

    /// A job of Open MPI 5, which names neither nodes nor addresses.
    pub fn open_mpi_5() -> JobBuilder {
        JobBuilder { version: Version::OpenMpi5, ..Job::of(Launcher::OpenMpi) }
    }

    /// A job of MPICH's Hydra.
    pub fn hydra() -> JobBuilder {
        Job::of(Launcher::Hydra)
    }

    /// A job of Intel MPI's Hydra, which numbers nodes.
    pub fn intel_mpi() -> JobBuilder {
        JobBuilder { version: Version::IntelMpi, ..Job::of(Launcher::Hydra) }
    }

    /// A step of a Slurm job.
    pub fn slurm() -> JobBuilder {
        Job::of(Launcher::Slurm)
    }

    /// A job of torchrun.
    pub fn torchrun() -> JobBuilder {
        Job::of(Launcher::Torchrun)
    }

    /// Who starts the job.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// How many ranks each node has.
    #[must_use]
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Where a rank is; `None` when the job has no such rank.
    #[must_use]
    pub fn place(&self, rank: u32) -> Option<Place> {
        self.places.get(rank as usize).copied()
    }

    /// What a rank finds in its environment; `None` when the job has no such rank.
    #[must_use]
    pub fn environment(&self, rank: u32) -> Option<Vars> {
        let mut vars = variables::of(self, rank, self.place(rank)?);
        if let Some((host, port)) = &self.master {
            vars.retain(|(name, _)| !MASTER.contains(&name.as_str()));
            let [addr_name, port_name] = MASTER.map(str::to_owned);
            vars.extend([(addr_name, host.to_string()), (port_name, port.to_string())]);
        }
        Some(vars)
    }

    /// The same job, whose ranks find this `MASTER_ADDR` and `MASTER_PORT`: nodes of a simulated job cannot be reached.
    ///
    /// ```
    /// use mpienv::simulate::Job;
    /// use mpienv::{ClusterInfo, Host, Port};
    ///
    /// let job = Job::slurm().nodes(2).build()?.with_master(Host::LOOPBACK, Port::new(29500).unwrap());
    /// let info = ClusterInfo::from_vars(job.environment(1).unwrap())?;
    /// assert_eq!(info.master_addr()?.with_port(info.master_port()), "127.0.0.1:29500");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_master(mut self, host: Host, port: Port) -> Job {
        self.master = Some((host, port));
        self
    }

    /// Gives a command what a rank finds in its environment, and takes away what real launchers have left here.
    ///
    /// ```
    /// use std::process::Command;
    /// use mpienv::simulate::Job;
    ///
    /// let job = Job::slurm().nodes(2).build()?;
    /// let mut command = Command::new("sh");
    /// command.args(["-c", "test $SLURM_PROCID = 1"]);
    /// job.apply_to(1, &mut command);
    /// assert!(command.status()?.success());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply_to(&self, rank: u32, command: &mut Command) {
        for name in real_variables() {
            command.env_remove(name);
        }
        command.envs(self.environment(rank).unwrap_or_default());
    }

    /// What each rank finds in its environment, in rank order.
    pub fn environments(&self) -> impl Iterator<Item = Vars> {
        (0..self.world_size()).filter_map(|rank| self.environment(rank))
    }
}

/// The shape of a [`Job`]: one node with one process, until more is asked for.
///
/// ```
/// use mpienv::simulate::{Job, JobBuilder};
///
/// let builders: [JobBuilder; 5] =
///     [Job::open_mpi(), Job::open_mpi_5(), Job::hydra(), Job::intel_mpi(), Job::torchrun()];
/// for builder in builders {
///     let job = builder.nodes(2).per_node(4).rotate_local_ranks(1).build()?;
///     assert_eq!(job.place(0).map(|place| place.local_rank), Some(1));
/// }
/// # Ok::<(), mpienv::simulate::JobError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct JobBuilder {
    launcher: Launcher,
    version: Version,
    shape: Shape,
    cyclic: bool,
    rotation: u32,
}

/// How many processes are where. Numbers are only believed once the job is known not to be too large.
#[derive(Clone, Debug)]
enum Shape {
    Even { nodes: u32, per_node: u32 },
    Counts(Vec<u32>),
}

impl Shape {
    fn counts(self) -> Result<Vec<u32>, JobError> {
        let size = match &self {
            Shape::Even { nodes, per_node } => u64::from(*nodes) * u64::from(*per_node),
            Shape::Counts(counts) if counts.contains(&0) => 0,
            Shape::Counts(counts) => counts.iter().map(|&count| u64::from(count)).sum(),
        };
        match size {
            0 => Err(JobError::Empty),
            size if size > Job::MOST_RANKS.into() => Err(JobError::TooLarge),
            _ => Ok(match self {
                Shape::Even { nodes, per_node } => iter::repeat_n(per_node, nodes as usize).collect(),
                Shape::Counts(counts) => counts,
            }),
        }
    }
}

impl JobBuilder {
    /// That many nodes, each with as many processes as the first has.
    pub fn nodes(mut self, nodes: u32) -> JobBuilder {
        let per_node = match &self.shape {
            Shape::Even { per_node, .. } => *per_node,
            Shape::Counts(counts) => counts.first().copied().unwrap_or(1),
        };
        self.shape = Shape::Even { nodes, per_node };
        self
    }

    /// That many processes on every node.
    pub fn per_node(mut self, processes: u32) -> JobBuilder {
        match &mut self.shape {
            Shape::Even { per_node, .. } => *per_node = processes,
            Shape::Counts(counts) => counts.fill(processes),
        }
        self
    }

    /// Nodes with these numbers of processes.
    pub fn counts(mut self, counts: impl IntoIterator<Item = u32>) -> JobBuilder {
        self.shape = Shape::Counts(counts.into_iter().collect());
        self
    }

    /// Ranks are dealt to nodes one by one (`--map-by node`, `--distribution=cyclic`), not in blocks.
    pub fn by_node(mut self) -> JobBuilder {
        self.cyclic = true;
        self
    }

    /// Local ranks do not follow the ranks but begin this much later, as under Open MPI 5 they may.
    pub fn rotate_local_ranks(mut self, by: u32) -> JobBuilder {
        self.rotation = by;
        self
    }

    /// The job.
    ///
    /// # Errors
    /// When it has no node or a node without processes, more than [`Job::MOST_RANKS`] ranks, or a shape that its launcher
    /// cannot start.
    pub fn build(self) -> Result<Job, JobError> {
        let JobBuilder { launcher, version, shape, cyclic, rotation } = self;
        let counts = shape.counts()?;
        match launcher {
            Launcher::Alone if counts != [1] => return Err(JobError::OneProcess(launcher)),
            Launcher::SageMaker | Launcher::Kubernetes | Launcher::AwsBatch if counts.iter().any(|&c| c > 1) => {
                return Err(JobError::OneProcessANode(launcher));
            }
            _ => {}
        }
        let places = places(&counts, cyclic, rotation);
        Ok(Job { launcher, version, counts, places, cyclic, master: None })
    }
}

fn places(counts: &[u32], cyclic: bool, rotation: u32) -> Vec<Place> {
    let nodes = || (0u32..).zip(counts);
    let place = |(node, &count): (u32, &u32), index: u32| Place {
        node,
        local_rank: index.wrapping_add(rotation % count) % count,
    };
    if !cyclic {
        return nodes().flat_map(|on| (0..*on.1).map(move |index| place(on, index))).collect();
    }
    let rounds = counts.iter().copied().max().unwrap_or_default();
    let round = |index: u32| nodes().filter(move |on| index < *on.1).map(move |on| place(on, index));
    (0..rounds).flat_map(round).collect()
}

/// Why there is no such [`Job`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// No node, or a node with nothing on it.
    #[error("a job has at least one node, and every node at least one process; ask for more")]
    Empty,
    /// More ranks than [`Job::MOST_RANKS`].
    #[error("a simulated job has at most {} ranks; ask for fewer", Job::MOST_RANKS)]
    TooLarge,
    /// A launcher that starts one process in all.
    #[error("{} means one process; ask for one node with one", .0.title())]
    OneProcess(Launcher),
    /// A launcher that starts one process on each node.
    #[error("{} starts one process on each node; ask for one, and start workers from it", .0.title())]
    OneProcessANode(Launcher),
}

debug_is_text!(JobError);
