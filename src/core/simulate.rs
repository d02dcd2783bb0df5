//! The environments that a launcher would create, for developing trainers without a cluster.

use std::iter;
use std::process::Command;

use crate::cluster::context::CONTEXT;
use crate::cluster::{azure, overrides};
use crate::launcher;
use crate::launcher::sample::{Process, Setter};
use crate::launcher::torchrun::AGENT_STORE;
use crate::launcher::{Launcher, MASTER, Starts};
use crate::value::host::Host;
use crate::value::port::Port;

pub use crate::launcher::sample::Place;

/// The variables of one process.
pub type Vars = Vec<(String, String)>;

/// Returns the variables in which a real launcher, a cloud or mpienv itself passes a process its
/// place. A simulated process must not inherit them.
fn real_variables() -> impl Iterator<Item = &'static str> {
    let others =
        MASTER.into_iter().chain([CONTEXT]).chain(overrides::OF_WORKERS).chain(azure::VARIABLES);
    launcher::VARIABLES.iter().copied().chain(others)
}

/// A job as a launcher would start it: where each process is, and what it finds in its environment.
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
///     assert_eq!(info.rank().index() as usize, rank);
///     assert_eq!(info.world_size(), 8);
///     assert_eq!(info.master_addr()?.to_string(), "node0");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nodes may have different numbers of ranks, and a job shows where each rank is:
///
/// ```
/// use mpienv::Launcher;
/// use mpienv::simulate::{Job, JobError, Place, Vars};
///
/// let job = Job::of(Launcher::OpenMpi).counts([2, 1]).by_node().build()?;
/// assert_eq!((job.launcher(), job.world_size()), (Launcher::OpenMpi, 3));
/// assert_eq!(job.counts(), [2, 1]);
/// // Rank 1 is on the other node.
/// assert_eq!(job.place(2), Some(Place { node: 0, local_rank: 1 }));
/// let vars: Option<Vars> = job.environment(2);
/// assert!(vars.unwrap().contains(&("OMPI_COMM_WORLD_RANK".into(), "2".into())));
/// let alone = Job::of(Launcher::Alone).per_node(2).build();
/// assert_eq!(alone, Err(JobError::OneProcess(Launcher::Alone)));
/// assert_eq!(Job::slurm().nodes(Job::MOST_RANKS + 1).build(), Err(JobError::TooLarge));
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    launcher: Launcher,
    /// The index of the launcher's sample job.
    version: usize,
    number: u8,
    /// The number of ranks on each node.
    counts: Vec<u32>,
    /// The node and the local rank of each rank.
    places: Vec<Place>,
    cyclic: bool,
    /// Where the ranks meet, if not at the launcher's master.
    master: Option<(Host, Port)>,
}

impl Job {
    /// The maximum number of ranks in a job. Each rank takes memory, and its variables may name all
    /// nodes.
    pub const MOST_RANKS: u32 = 1 << 20;

    /// Returns a builder for a job of this launcher. For Open MPI it is version 4, and for Hydra it
    /// is MPICH's.
    pub fn of(launcher: Launcher) -> JobBuilder {
        JobBuilder {
            launcher,
            version: 0,
            number: 0,
            shape: vec![(1, 1)],
            cyclic: false,
            rotation: 0,
        }
    }

    /// Returns builders for a job of every launcher, and of every version of it that sets different
    /// variables.
    ///
    /// ```
    /// use mpienv::simulate::Job;
    ///
    /// let titles: Vec<_> = Job::of_each().map(|builder| builder.title()).collect();
    /// assert!(["Open MPI 4", "Open MPI 5", "Slurm"].iter().all(|title| titles.contains(title)));
    /// ```
    pub fn of_each() -> impl Iterator<Item = JobBuilder> {
        Launcher::ALL.iter().flat_map(|&launcher| {
            let versions = 0..launcher.spec().samples.len();
            versions.map(move |version| JobBuilder { version, ..Job::of(launcher) })
        })
    }

    /// Returns a builder for a job of Open MPI 4.
    pub fn open_mpi() -> JobBuilder {
        Job::of(Launcher::OpenMpi)
    }

    /// Returns a builder for a job of Open MPI 5, which names neither nodes nor addresses.
    pub fn open_mpi_5() -> JobBuilder {
        JobBuilder { version: 1, ..Job::of(Launcher::OpenMpi) }
    }

    /// Returns a builder for a job of MPICH's Hydra.
    pub fn hydra() -> JobBuilder {
        Job::of(Launcher::Hydra)
    }

    /// Returns a builder for a job of Intel MPI's Hydra, which numbers nodes.
    pub fn intel_mpi() -> JobBuilder {
        JobBuilder { version: 1, ..Job::of(Launcher::Hydra) }
    }

    /// Returns a builder for a step of a Slurm job.
    pub fn slurm() -> JobBuilder {
        Job::of(Launcher::Slurm)
    }

    /// Returns a builder for a job of torchrun.
    pub fn torchrun() -> JobBuilder {
        Job::of(Launcher::Torchrun)
    }

    /// Returns the launcher that starts the job.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Returns the number of ranks in the job.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// Returns the number of ranks on each node.
    #[must_use]
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Returns where a rank is, or `None` if the rank is not below the world size.
    #[must_use]
    pub fn place(&self, rank: u32) -> Option<Place> {
        self.places.get(rank as usize).copied()
    }

    /// Returns what a rank finds in its environment, or `None` if the rank is not below the world
    /// size.
    #[must_use]
    pub fn environment(&self, rank: u32) -> Option<Vars> {
        let place = self.place(rank)?;
        let process = Process {
            rank,
            size: self.world_size(),
            node: place.node,
            local_rank: place.local_rank,
            local_size: self.counts[place.node as usize],
            nodes: u32::try_from(self.counts.len()).unwrap_or(u32::MAX),
            counts: &self.counts,
            places: &self.places,
            is_cyclic: self.cyclic,
            job: self.number.into(),
        };
        let mut setter = Setter::default();
        (self.launcher.spec().samples[self.version].set)(&process, &mut setter);
        let Setter(mut vars) = setter;
        if let Some((host, port)) = &self.master {
            vars.retain(|(name, _)| !MASTER.contains(&name.as_str()));
            let [addr_name, port_name] = MASTER.map(str::to_owned);
            vars.extend([(addr_name, host.to_string()), (port_name, port.to_string())]);
        }
        Some(vars)
    }

    /// Returns the same job with this `MASTER_ADDR` and `MASTER_PORT`. Nodes of a simulated job
    /// cannot be reached.
    ///
    /// ```
    /// use mpienv::simulate::Job;
    /// use mpienv::{ClusterInfo, Host, Port};
    ///
    /// let port = Port::new(29500).unwrap();
    /// let job = Job::slurm().nodes(2).build()?.with_master(Host::LOOPBACK, port);
    /// let info = ClusterInfo::from_vars(job.environment(1).unwrap())?;
    /// assert_eq!(info.master_addr()?.with_port(info.master_port()), "127.0.0.1:29500");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_master(mut self, host: Host, port: Port) -> Job {
        self.master = Some((host, port));
        self
    }

    /// Sets the variables of a rank for a command, and removes those that real launchers have left
    /// here.
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
        if self.launcher() == Launcher::Torchrun {
            // Without torchrun, no process serves its store, for which PyTorch would wait.
            command.env(AGENT_STORE, "False");
        }
    }

    /// Returns what each rank finds in its environment, in rank order.
    pub fn environments(&self) -> impl Iterator<Item = Vars> {
        (0..self.world_size()).filter_map(|rank| self.environment(rank))
    }
}

/// Why a [`Job`] cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The job has no node, or a node has no process.
    #[error("a job has at least one node, and every node at least one process; ask for more")]
    Empty,
    /// The job has more ranks than [`Job::MOST_RANKS`].
    #[error("a simulated job has at most {} ranks; ask for fewer", Job::MOST_RANKS)]
    TooLarge,
    /// The launcher starts only one process in total.
    #[error("\"{}\" means a single process; simulate one node with one process", .0.title())]
    OneProcess(Launcher),
    /// The launcher starts processes on one node only.
    #[error("{} runs on one node only; simulate one node", .0.title())]
    OneNode(Launcher),
    /// The launcher starts only one process on each node.
    #[error("{} starts one process on each node; simulate one process on each, and start the workers with `mpienv launch --nproc-per-node N`", .0.title())]
    OneProcessANode(Launcher),
}

/// The shape of a [`Job`]. The default is one node with one process.
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
/// let job = Job::slurm().counts([2, 1]).by_node().build()?;
/// assert_eq!(job.place(1).map(|place| place.node), Some(1));
/// assert_eq!(Job::open_mpi_5().title(), "Open MPI 5");
/// # Ok::<(), mpienv::simulate::JobError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct JobBuilder {
    launcher: Launcher,
    version: usize,
    number: u8,
    /// How many nodes in a row have how many processes each. The total is checked before memory is
    /// reserved for it.
    shape: Vec<(u32, u32)>,
    cyclic: bool,
    rotation: u32,
}

impl JobBuilder {
    /// Returns the human-readable name of the launcher with its version.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.launcher.spec().samples[self.version].title.unwrap_or(self.launcher.title())
    }

    /// Returns whether a command that any process can run starts such a job, on any number of
    /// nodes. A platform does not: it starts its processes before anything else runs on the nodes.
    ///
    /// ```
    /// use mpienv::Launcher;
    /// use mpienv::simulate::Job;
    ///
    /// assert!(Job::slurm().is_command() && !Job::of(Launcher::Kubernetes).is_command());
    /// ```
    #[must_use]
    pub fn is_command(&self) -> bool {
        self.launcher.spec().starts == Starts::Processes
    }

    /// Sets the number of the job. Jobs with different numbers have different identities, if their
    /// launcher provides any.
    ///
    /// ```
    /// use mpienv::simulate::Job;
    ///
    /// let jobs = [0, 1].map(|number| Job::slurm().number(number).build());
    /// assert_ne!(jobs[0], jobs[1]);
    /// ```
    pub fn number(mut self, number: u8) -> JobBuilder {
        self.number = number;
        self
    }

    /// Sets the number of nodes, each with as many processes as the first one has.
    pub fn nodes(mut self, nodes: u32) -> JobBuilder {
        let per_node = self.shape.first().map_or(1, |&(_, per_node)| per_node);
        self.shape = vec![(nodes, per_node)];
        self
    }

    /// Sets the number of processes on every node.
    pub fn per_node(mut self, processes: u32) -> JobBuilder {
        self.shape.iter_mut().for_each(|(_, per_node)| *per_node = processes);
        self
    }

    /// Sets the number of processes on each node individually.
    pub fn counts(mut self, counts: impl IntoIterator<Item = u32>) -> JobBuilder {
        self.shape = counts.into_iter().map(|count| (1, count)).collect();
        self
    }

    /// Assigns ranks to nodes one by one (`--map-by node`, `--distribution=cyclic`), not in blocks.
    pub fn by_node(mut self) -> JobBuilder {
        self.cyclic = true;
        self
    }

    /// Shifts the local ranks by this number, so that they do not follow the ranks. Open MPI 5 may
    /// assign them so. It has no effect under Slurm, whose local ranks always follow the ranks.
    pub fn rotate_local_ranks(mut self, by: u32) -> JobBuilder {
        self.rotation = by;
        self
    }

    /// Builds the job.
    ///
    /// # Errors
    /// Returns an error if the job has no node, a node without processes, more than
    /// [`Job::MOST_RANKS`] ranks, or a shape that its launcher cannot start.
    pub fn build(self) -> Result<Job, JobError> {
        let JobBuilder { launcher, version, number, shape, cyclic, rotation } = self;
        let sizes = shape.iter().map(|&(nodes, per_node)| u64::from(nodes) * u64::from(per_node));
        if shape.is_empty() || sizes.clone().any(|size| size == 0) {
            return Err(JobError::Empty);
        }
        if sizes.sum::<u64>() > Job::MOST_RANKS.into() {
            return Err(JobError::TooLarge);
        }
        let counts = shape.iter().flat_map(|&(nodes, each)| iter::repeat_n(each, nodes as usize));
        let counts: Vec<u32> = counts.collect();
        match launcher.spec().starts {
            Starts::One if counts != [1] => return Err(JobError::OneProcess(launcher)),
            Starts::OnePerNode if counts.iter().any(|&count| count > 1) => {
                return Err(JobError::OneProcessANode(launcher));
            }
            Starts::OneNode if counts.len() > 1 => return Err(JobError::OneNode(launcher)),
            Starts::One
            | Starts::OneNode
            | Starts::OnePerNode
            | Starts::Processes
            | Starts::Slots => {}
        }
        let rotation = if launcher == Launcher::Slurm { 0 } else { rotation };
        let places = places(&counts, cyclic, rotation);
        Ok(Job { launcher, version, number, counts, places, cyclic, master: None })
    }
}

fn places(counts: &[u32], cyclic: bool, rotation: u32) -> Vec<Place> {
    let of_node = |(node, &count): (u32, &u32)| (0..count).map(move |index| (index, node, count));
    let mut indexes: Vec<_> = (0..).zip(counts).flat_map(of_node).collect();
    if cyclic {
        // The sort is stable: the nodes stay in order.
        indexes.sort_by_key(|&(index, ..)| index);
    }
    let place = |(index, node, count): (u32, u32, u32)| Place {
        node,
        local_rank: index.wrapping_add(rotation % count) % count,
    };
    indexes.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use crate::environment::Environment;
    use crate::launcher::markers;

    use super::*;

    #[test]
    fn a_launchers_workers_do_not_inherit_the_variables_of_its_places_on_a_node() {
        for builder in Job::of_each() {
            let several = builder.clone().nodes(2).per_node(2).build();
            let job = several
                .or_else(|_| builder.clone().nodes(2).build())
                .or_else(|_| builder.build())
                .unwrap();
            let spec = job.launcher().spec();
            let environment = Environment::from_vars(job.environment(0).unwrap());
            let marker = markers(&environment).next().unwrap();
            assert_eq!(marker.launcher, job.launcher());
            let placement = marker.placement().unwrap();
            for local in [&placement.local_rank, &placement.local_size].into_iter().flatten() {
                let source = &*local.source;
                let is_read = job.launcher().variables().any(|variable| variable.name == source);
                // A worker gets these anew.
                let is_set = ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&source);
                if is_read && !is_set && source != placement.rank.source {
                    assert!(spec.local.contains(&source), "{}: {source}", job.launcher());
                }
            }
        }
    }
}
