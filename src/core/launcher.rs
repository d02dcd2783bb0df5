//! The launchers, one file each, and the order in which they are detected.
//!
//! A launcher's module has structs of variables, which
//! [`Environment::read`](crate::Environment::read) fills:
//!
//! ```
//! use mpienv::Environment;
//! use mpienv::launcher::kubernetes::{IndexedJobVars, PetVars};
//!
//! let pod = Environment::from_vars([("PET_NODE_RANK", "1"), ("PET_NNODES", "2"), ("JOB_COMPLETION_INDEX", "1")]);
//! let vars: PetVars = pod.read()?;
//! assert_eq!((vars.node_rank, vars.nodes, vars.master_addr), (1, 2, None));
//! assert_eq!(pod.read::<IndexedJobVars>()?.size, None);
//! assert_eq!(Environment::default().read::<PetVars>().unwrap_err().to_string(), "PET_NODE_RANK is not set");
//! # Ok::<(), mpienv::ReadError>(())
//! ```

pub(crate) mod alone;
pub mod aws_batch;
pub(crate) mod batch;
pub(crate) mod context;
pub mod dstack;
pub mod flux;
pub mod horovod;
pub mod hydra;
pub mod jsm;
pub mod kubernetes;
pub mod leader_worker_set;
pub mod lepton;
pub mod mlp;
pub mod mvapich;
pub mod open_mpi;
pub mod pals;
pub(crate) mod pbs;
pub mod runpod;
pub mod sagemaker;
pub mod skypilot;
pub mod slurm;
pub mod submitit_local;
pub mod torchrun;
pub mod user;
pub mod vertex;
pub mod volcano;

pub(crate) mod sample;
pub(crate) mod spec;
pub(crate) mod starter;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Serialize, Serializer};

use crate::environment::{Environment, Variable};
use crate::launcher::context::Seen;
use crate::value::name::{self, UnknownName};

pub(crate) use spec::{
    Advice, LauncherSpec, MASTER, Marker, MpiFamily, Nested, Starts, display_variable, first_set,
};

macro_rules! launchers {
    ($($launcher:ident = $file:ident, $meaning:literal;)+) => {
        /// What started this process and gave it its rank.
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
            $(#[doc = $meaning] $launcher,)+
        }

        impl Launcher {
            /// Every launcher, innermost first.
            pub const ALL: &'static [Launcher] = &[$(Launcher::$launcher,)+];
        }

        /// The description of each launcher, in the order of [`Launcher::ALL`].
        pub(crate) static LAUNCHERS: &[LauncherSpec] = &[$($file::SPEC,)+];
    };
}

// To add a launcher, write a file with its variables, `SPEC` and `read`, its `mod` above (rustfmt
// does not see a `mod` in a macro) and a line here. `.ci/generate` then writes its row of the
// README.
//
// The order is innermost first: the first launcher that is detected started this process. For
// example, torchrun and mpirun run inside Slurm steps, and their processes inherit Slurm's
// variables.
launchers! {
    Torchrun = torchrun, "PyTorch's `torchrun` (torchelastic).";
    Horovod = horovod, "Horovod's `horovodrun` without MPI.";
    OpenMpi = open_mpi, "Open MPI's `mpirun`, versions 4 and 5; also what AzureML runs.";
    Mvapich = mvapich, "MVAPICH's `mpirun_rsh`, `mpiexec`.";
    Hydra = hydra, "Hydra, the `mpiexec` of MPICH, Intel MPI and their kin.";
    Pals = pals, "HPE Cray PALS: `mpiexec`, `aprun`.";
    Jsm = jsm, "IBM's `jsrun` under LSF.";
    Flux = flux, "Flux: `flux run`, `flux submit`.";
    SubmititLocal = submitit_local, "submitit's local executor: tasks on this machine.";
    Slurm = slurm, "Slurm's `srun`.";
    User = user, "A person, a script, `mpienv launch` or Kubeflow's PyTorchJob: RANK and WORLD_SIZE.";
    SageMaker = sagemaker, "Amazon SageMaker: one process a host.";
    LeaderWorkerSet = leader_worker_set, "Kubernetes' LeaderWorkerSet: one process a pod of a group.";
    SkyPilot = skypilot, "SkyPilot: one process a node.";
    Dstack = dstack, "dstack: one process a node.";
    Lepton = lepton, "NVIDIA DGX Cloud Lepton: one process a worker.";
    Mlp = mlp, "Volcengine's Machine Learning Platform: one process a worker.";
    RunPod = runpod, "RunPod's Instant Clusters: one process a pod.";
    Vertex = vertex, "Google Cloud's Vertex AI: one process a replica.";
    Volcano = volcano, "Volcano's jobs: one process a pod.";
    Kubernetes = kubernetes, "A Kubernetes indexed job or Kubeflow Trainer: one process a pod.";
    AwsBatch = aws_batch, "An AWS Batch multi-node job: one process a node.";
    Alone = alone, "No launcher: one process by itself.";
}

impl Launcher {
    pub(crate) const fn spec(self) -> &'static LauncherSpec {
        &LAUNCHERS[self as usize]
    }

    /// Returns the machine-readable name, as in JSON and in `MPIENV_LAUNCHER`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the human-readable name.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.spec().title
    }

    /// Returns the variables of this launcher that mpienv reads.
    ///
    /// ```
    /// use mpienv::Launcher;
    ///
    /// assert!(Launcher::Hydra.variables().any(|variable| variable.name == "PMI_RANK"));
    /// ```
    pub fn variables(self) -> impl Iterator<Item = &'static Variable> {
        self.spec().variables()
    }

    /// Returns whether an MPI program that this launcher started can join its job.
    ///
    /// ```
    /// use mpienv::{Environment, Launcher};
    ///
    /// let none = Environment::default();
    /// assert!(Launcher::OpenMpi.starts_mpi(&none) && !Launcher::User.starts_mpi(&none));
    /// // `srun --mpi=none` does not serve MPI, and Open MPI's initialization then exits.
    /// assert!(!Launcher::Slurm.starts_mpi(&none));
    /// assert!(Launcher::Slurm.starts_mpi(&Environment::from_vars([("PMIX_RANK", "0")])));
    /// ```
    #[must_use]
    pub fn starts_mpi(self, environment: &Environment) -> bool {
        match self.spec().mpi {
            MpiFamily::None => false,
            MpiFamily::Pmi | MpiFamily::PmiOrPmix => {
                ["PMIX_RANK", "PMI_RANK"].into_iter().any(|name| environment.get(name).is_some())
            }
            MpiFamily::OpenMpi | MpiFamily::Spectrum | MpiFamily::Mpich | MpiFamily::CrayMpich => {
                true
            }
        }
    }
}

/// Parses a [`name`](Launcher::name).
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

/// One way to detect that a launcher started this process.
pub(crate) struct Detector {
    pub launcher: Launcher,
    marker: fn(&Environment) -> Option<&'static str>,
}

/// All detectors, in the order of [`LAUNCHERS`].
///
/// Markers that several launchers set come directly before the user's own variables.
pub(crate) static DETECTORS: LazyLock<Vec<Detector>> = LazyLock::new(|| {
    let own = |launcher: Launcher| Detector { launcher, marker: launcher.spec().marker };
    let shared =
        |launcher: Launcher| Some(Detector { launcher, marker: launcher.spec().shared_marker? });
    let all = || Launcher::ALL.iter().copied();
    let is_inner = |launcher: &Launcher| *launcher != Launcher::User;
    let inner = all().take_while(is_inner).map(own);
    inner.chain(all().filter_map(shared)).chain(all().skip_while(is_inner).map(own)).collect()
});

/// What has changed in a launcher's variables since they were recorded, the more reliable sign
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// A variable that this launcher alone sets.
    Own,
    /// A variable that other launchers set too.
    Shared,
}

impl Detector {
    /// Returns the variable that identifies this launcher, if it is set.
    pub(crate) fn detect(&self, environment: &Environment) -> Option<Marker> {
        (self.marker)(environment).map(|variable| Marker { launcher: self.launcher, variable })
    }

    /// Returns how this launcher's variables have changed since they were recorded, which shows
    /// that it, or a launcher that sets the same variables, has started a process. `None` if they
    /// have not changed.
    pub(crate) fn change(&self, environment: &Environment, seen: &Seen) -> Option<Change> {
        self.detect(environment)?;
        let changed = self
            .launcher
            .variables()
            .filter(|variable| seen.is_changed(environment, variable.name));
        changed
            .map(
                |variable| {
                    if SHARED.contains(variable.name) { Change::Shared } else { Change::Own }
                },
            )
            .min()
    }
}

/// Every variable of a launcher that mpienv reads.
pub(crate) static VARIABLES: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    LAUNCHERS.iter().flat_map(LauncherSpec::variables).map(|variable| variable.name).collect()
});

/// Variables that more than one launcher sets: a change in one of them does not show which launcher
/// made it.
static SHARED: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let mut setters: BTreeMap<&str, u32> = BTreeMap::new();
    for spec in LAUNCHERS {
        let read = spec.variables().map(|variable| variable.name);
        let set: BTreeSet<_> = read.chain(spec.nested.also_sets.iter().copied()).collect();
        set.into_iter().for_each(|name| *setters.entry(name).or_default() += 1);
    }
    setters.into_iter().filter(|&(_, setters)| setters > 1).map(|(name, _)| name).collect()
});

/// Returns whether more than one launcher sets a variable.
pub(crate) fn is_shared(variable: &str) -> bool {
    SHARED.contains(variable)
}

/// Returns the variable that counts how often a launcher has restarted the job. Its field is called
/// `restarts`.
pub(crate) fn restarts(launcher: Launcher) -> Option<&'static str> {
    launcher.variables().find(|variable| variable.field == "restarts").map(|variable| variable.name)
}

/// Returns the variables that hold a process's place on its node. In a node's workers, they
/// describe the process that started the workers, unless a launcher in between has set its own.
pub(crate) fn local_variables() -> BTreeSet<&'static str> {
    LAUNCHERS.iter().flat_map(|spec| spec.nested.local).copied().collect()
}

/// Records every launcher's variables as they are now.
pub(crate) fn seen(environment: &Environment) -> Seen {
    Seen::of(environment, VARIABLES.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launcher_has_the_description_that_is_in_its_place() {
        let names: BTreeSet<_> = Launcher::ALL.iter().map(|launcher| launcher.name()).collect();
        assert_eq!((names.len(), LAUNCHERS.len()), (Launcher::ALL.len(), Launcher::ALL.len()));
        for &launcher in Launcher::ALL {
            let variant = format!("{launcher:?}").to_lowercase();
            assert_eq!(launcher.name().replace('-', ""), variant);
            assert_eq!(launcher.name().parse(), Ok(launcher));
            let LauncherSpec { samples, starts, advice, .. } = launcher.spec();
            assert!(!samples.is_empty(), "{launcher} has a sample job");
            let has_command = advice.one_per_node != Advice::PLAIN.one_per_node;
            assert_eq!(
                has_command,
                *starts == Starts::Processes,
                "{launcher}: how does it start one process a node?"
            );
        }
        assert_eq!(Launcher::ALL.last(), Some(&Launcher::Alone), "it takes every environment");
    }

    #[test]
    fn a_bare_rank_and_size_count_after_the_launchers_that_set_them_too() {
        let order: Vec<_> = DETECTORS.iter().map(|detector| detector.launcher).collect();
        let at = |launcher| order.iter().position(|&other| other == launcher).unwrap();
        assert_eq!(order[at(Launcher::User) - 1], Launcher::Hydra);
        assert!(
            at(Launcher::Hydra) < at(Launcher::Slurm)
                && at(Launcher::Slurm) < at(Launcher::User) - 1
        );
    }

    #[test]
    fn slurm_starts_mpi_programs_where_it_gives_them_a_pmi() {
        let of = |names: &[&str]| Environment::from_vars(names.iter().map(|&name| (name, "0")));
        assert!(!Launcher::Slurm.starts_mpi(&of(&["SLURM_PROCID"])));
        assert!(Launcher::Slurm.starts_mpi(&of(&["SLURM_PROCID", "PMI_RANK"])));
        assert!(Launcher::Slurm.starts_mpi(&of(&["SLURM_PROCID", "PMIX_RANK"])));
        assert!(Launcher::OpenMpi.starts_mpi(&of(&[])));
        assert!(!Launcher::User.starts_mpi(&of(&["PMI_RANK"])));
    }

    #[test]
    fn variables_that_several_launchers_set_are_shared() {
        for name in [
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "PMIX_NAMESPACE",
            "PMI_ID",
            "PMI_RANK",
            "PMI_SIZE",
            "RANK",
            "WORLD_SIZE",
        ] {
            assert!(SHARED.contains(name), "{name}");
        }
        assert!(!SHARED.contains("SLURM_PROCID") && !SHARED.contains("OMPI_COMM_WORLD_RANK"));
        for spec in LAUNCHERS {
            for name in spec.nested.local {
                assert!(
                    spec.variables().any(|variable| variable.name == *name),
                    "{}: {name}",
                    spec.name
                );
            }
        }
    }
}
