//! The shape of a job, checked before it is used.

use std::iter;

use super::{Job, JobError};
use crate::launcher::Starts;
use crate::launcher::sample::Place;
use crate::value::launcher::Launcher;

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
    pub(super) launcher: Launcher,
    pub(super) version: usize,
    pub(super) number: u8,
    pub(super) shape: Shape,
    pub(super) cyclic: bool,
    pub(super) rotation: u32,
}

/// The number of processes on each node. The total is checked before memory is reserved for it.
#[derive(Clone, Debug)]
pub(super) enum Shape {
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
                Shape::Even { nodes, per_node } => {
                    iter::repeat_n(per_node, nodes as usize).collect()
                }
                Shape::Counts(counts) => counts,
            }),
        }
    }
}

impl JobBuilder {
    /// Returns the human-readable name of the launcher with its version.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.launcher.spec().samples[self.version].title
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
        let per_node = match &self.shape {
            Shape::Even { per_node, .. } => *per_node,
            Shape::Counts(counts) => counts.first().copied().unwrap_or(1),
        };
        self.shape = Shape::Even { nodes, per_node };
        self
    }

    /// Sets the number of processes on every node.
    pub fn per_node(mut self, processes: u32) -> JobBuilder {
        match &mut self.shape {
            Shape::Even { per_node, .. } => *per_node = processes,
            Shape::Counts(counts) => counts.fill(processes),
        }
        self
    }

    /// Sets the number of processes on each node individually.
    pub fn counts(mut self, counts: impl IntoIterator<Item = u32>) -> JobBuilder {
        self.shape = Shape::Counts(counts.into_iter().collect());
        self
    }

    /// Assigns ranks to nodes one by one (`--map-by node`, `--distribution=cyclic`), not in blocks.
    pub fn by_node(mut self) -> JobBuilder {
        self.cyclic = true;
        self
    }

    /// Shifts the local ranks by this number, so that they do not follow the ranks. Open MPI 5 may
    /// assign them so.
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
        let counts = shape.counts()?;
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
        let places = places(&counts, cyclic, rotation);
        Ok(Job { launcher, version, number, counts, places, cyclic, master: None })
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
    let round =
        |index: u32| nodes().filter(move |on| index < *on.1).map(move |on| place(on, index));
    (0..rounds).flat_map(round).collect()
}
