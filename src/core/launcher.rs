//! The launchers, one file each, and the order in which they are detected.

pub(crate) mod alone;
mod ascend;
mod aws_batch;
pub(crate) mod batch;
mod dstack;
pub(crate) mod flux;
pub(crate) mod google_batch;
mod horovod;
mod htcondor;
mod hydra;
pub(crate) mod jax;
mod jsm;
pub(crate) mod kubernetes;
pub(crate) mod lamellar;
mod leader_worker_set;
mod lepton;
pub(crate) mod mistralrs;
mod mlp;
pub(crate) mod mlx;
pub(crate) mod msrun;
mod mvapich;
pub(crate) mod named_file;
pub(crate) mod oneccl;
pub(crate) mod open_mpi;
pub(crate) mod paddle;
mod pals;
pub(crate) mod pbs;
pub(crate) mod placement;
mod runpod;
mod sagemaker;
mod skypilot;
pub(crate) mod slurm;
mod submitit_local;
pub(crate) mod tf_config;
pub(crate) mod torchcomms;
pub(crate) mod torchrun;
pub(crate) mod user;
mod vertex;
mod volcano;

pub(crate) mod sample;
pub(crate) mod spec;
pub(crate) mod starter;

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::cluster::answer::PMIX_RANK;
use crate::cluster::context::Seen;
use crate::environment::{Environment, Variable};
use crate::value::name::{self, UnknownName};

pub(crate) use spec::{LauncherSpec, MASTER, Marker, MarkerOf, MpiFamily, Starts};

/// What the file of each launcher uses.
mod prelude {
    pub(super) use crate::environment::{Environment, Variables, variables};
    pub(super) use crate::error::Error;
    pub(super) use crate::launcher::placement::Placement;
    pub(super) use crate::launcher::sample::{Process, Sample, Setter};
    pub(super) use crate::launcher::spec::{LauncherSpec, Marker, MpiFamily, Programs, Starts};
    pub(super) use crate::value::sourced::{Sourced, by};
}

macro_rules! launchers {
    ($($(#[$meaning:meta])+ $launcher:ident = $file:ident, $name:literal, $title:literal;)+) => {
        /// What started this process and gave it its rank.
        ///
        /// ```
        /// use mpienv::{ClusterInfo, Launcher};
        ///
        /// let vars = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "node0")];
        /// assert_eq!(ClusterInfo::from_vars(vars)?.launcher(), Launcher::Hydra);
        /// assert_eq!("hydra".parse(), Ok(Launcher::Hydra));
        /// for launcher in Launcher::ALL {
        ///     println!("{}: {}", launcher.name(), launcher.title());
        /// }
        /// # Ok::<(), mpienv::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Launcher {
            $($(#[$meaning])+ $launcher,)+
        }

        impl Launcher {
            /// Every launcher, innermost first.
            pub const ALL: &'static [Launcher] = &[$(Launcher::$launcher,)+];

            /// Returns the machine-readable name, as in JSON and in `MPIENV_LAUNCHER`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Launcher::$launcher => $name,)+
                }
            }

            /// Returns the human-readable name.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self {
                    $(Launcher::$launcher => $title,)+
                }
            }

            /// Returns what the launcher is and needs.
            #[doc(hidden)]
            #[must_use]
            pub const fn spec(self) -> &'static LauncherSpec {
                match self {
                    $(Launcher::$launcher => &$file::SPEC,)+
                }
            }
        }
    };
}

// To add a launcher, write a file with its variables, `SPEC` and `read`, its `mod` above and a line
// here: the meaning and the name of the variant, the file, the machine-readable name and the
// human-readable one. `.ci/generate` then writes its rows of the README and the guide, and adds its
// name to the manual page and the completions.
//
// The order is innermost first: the first launcher that is detected started this process. For
// example, torchrun and mpirun run inside Slurm steps, and their processes inherit Slurm's
// variables.
launchers! {
    /// PyTorch's `torchrun` (torchelastic).
    Torchrun = torchrun, "torchrun", "torchrun";
    /// Horovod's `horovodrun` without MPI.
    Horovod = horovod, "horovod", "Horovod";
    /// MindSpore's `msrun`.
    Msrun = msrun, "msrun", "msrun";
    /// Huawei's Ascend: RANK_ID, with a rank table or without.
    Ascend = ascend, "ascend", "Ascend";
    /// PaddlePaddle's launcher.
    Paddle = paddle, "paddle", "PaddlePaddle";
    /// Apple's `mlx.launch`.
    Mlx = mlx, "mlx", "MLX";
    /// Open MPI's `mpirun`, versions 4 and 5; also what AzureML runs.
    OpenMpi = open_mpi, "open-mpi", "Open MPI";
    /// MVAPICH's `mpirun_rsh`, `mpiexec`.
    Mvapich = mvapich, "mvapich", "MVAPICH";
    /// Hydra, the `mpiexec` of MPICH, Intel MPI and MPIs derived from them.
    Hydra = hydra, "hydra", "Hydra";
    /// HPE Cray PALS: `mpiexec`, `aprun`.
    Pals = pals, "pals", "PALS";
    /// IBM's `jsrun` under LSF.
    Jsm = jsm, "jsm", "JSM";
    /// Flux: `flux run`, `flux submit`.
    Flux = flux, "flux", "Flux";
    /// submitit's local executor: tasks on this machine.
    SubmititLocal = submitit_local, "submitit-local", "submitit (local)";
    /// Slurm's `srun`.
    Slurm = slurm, "slurm", "Slurm";
    /// A person, a script, `mpienv launch` or Kubeflow's PyTorchJob: RANK and WORLD_SIZE.
    User = user, "user", "RANK and WORLD_SIZE";
    /// JAX's process numbers, set by Kubeflow Trainer or a script.
    Jax = jax, "jax", "JAX";
    /// torchcomms' rank and size, set by a script.
    TorchComms = torchcomms, "torchcomms", "torchcomms";
    /// Lamellar's processes on one node.
    Lamellar = lamellar, "lamellar", "Lamellar";
    /// HTCondor's parallel universe: one process per slot.
    HtCondor = htcondor, "htcondor", "HTCondor";
    /// Google Cloud's Batch: the tasks of a job with a file of hosts.
    GoogleBatch = google_batch, "google-batch", "Google Batch";
    /// Amazon SageMaker: one process per host.
    SageMaker = sagemaker, "sagemaker", "SageMaker";
    /// Kubernetes' LeaderWorkerSet: one process per pod of a group.
    LeaderWorkerSet = leader_worker_set, "leader-worker-set", "LeaderWorkerSet";
    /// SkyPilot: one process per node.
    SkyPilot = skypilot, "skypilot", "SkyPilot";
    /// dstack: one process per node.
    Dstack = dstack, "dstack", "dstack";
    /// NVIDIA DGX Cloud Lepton: one process per worker.
    Lepton = lepton, "lepton", "DGX Cloud Lepton";
    /// Volcengine's Machine Learning Platform: one process per worker.
    Mlp = mlp, "mlp", "Volcengine MLP";
    /// RunPod's Instant Clusters: one process per pod.
    RunPod = runpod, "runpod", "RunPod";
    /// Google Cloud's Vertex AI: one process a replica.
    Vertex = vertex, "vertex", "Vertex AI";
    /// Volcano's jobs: one process per pod.
    Volcano = volcano, "volcano", "Volcano";
    /// A Kubernetes indexed job or Kubeflow Trainer: one process per pod.
    Kubernetes = kubernetes, "kubernetes", "Kubernetes";
    /// An AWS Batch multi-node job: one process per node.
    AwsBatch = aws_batch, "aws-batch", "AWS Batch";
    /// mistral.rs: one process per node, or one per rank of its ring.
    MistralRs = mistralrs, "mistralrs", "mistral.rs";
    /// TensorFlow's `TF_CONFIG`: the chief and the workers of a cluster.
    TfConfig = tf_config, "tf-config", "TF_CONFIG";
    /// No launcher: one process by itself.
    Alone = alone, "alone", "no launcher";
}

/// Parses a [`name`](Launcher::name).
impl FromStr for Launcher {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Launcher, UnknownName> {
        name::find("launcher", Launcher::ALL, Launcher::name, name)
    }
}

name::shown_by_name!(Launcher);

impl Launcher {
    /// Returns the variables of this launcher that mpienv reads.
    #[doc(hidden)]
    pub fn variables(self) -> impl Iterator<Item = &'static Variable> {
        self.spec().variables.iter().copied().flatten()
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
                [PMIX_RANK, "PMI_RANK"].into_iter().any(|name| environment.get(name).is_some())
            }
            MpiFamily::OpenMpi | MpiFamily::Spectrum | MpiFamily::Mpich | MpiFamily::CrayMpich => {
                true
            }
        }
    }

    /// Returns how this launcher's variables have changed since they were recorded, which shows
    /// that it, or a launcher that sets the same variables, has started a process. `None` if they
    /// have not changed.
    pub(crate) fn change(self, environment: &Environment, seen: &Seen) -> Option<Change> {
        let variables = self.variables().map(|variable| variable.name);
        let changed = variables.filter(|name| seen.is_changed(environment, name));
        changed.map(|name| if is_shared(name) { Change::Shared } else { Change::Own }).min()
    }
}

/// Returns the description of each launcher, in the order of [`Launcher::ALL`].
pub(crate) fn specs() -> impl Iterator<Item = &'static LauncherSpec> {
    Launcher::ALL.iter().map(|launcher| launcher.spec())
}

/// Returns the marker of each launcher that may have started this process, innermost first.
pub(crate) fn markers(environment: &Environment) -> impl Iterator<Item = Marker<'_>> {
    detectors().filter_map(|(launcher, marker)| {
        Some(Marker { environment, launcher, variable: marker(environment)? })
    })
}

/// Returns how each launcher is detected, in the order of [`Launcher::ALL`].
///
/// Hydra's marker without a local rank, which several launchers set, comes directly before the
/// user's own variables. The number of a node, which scripts set from a platform's variables, comes
/// after the platforms.
fn detectors() -> impl Iterator<Item = (Launcher, MarkerOf)> {
    Launcher::ALL.iter().flat_map(|&launcher| {
        let before: Option<(Launcher, MarkerOf)> = match launcher {
            Launcher::User => Some((Launcher::Hydra, hydra::shared_marker)),
            Launcher::Alone => Some((Launcher::User, user::of_node)),
            _ => None,
        };
        before.into_iter().chain([(launcher, launcher.spec().marker)])
    })
}

/// What has changed in a launcher's variables since they were recorded, the more reliable sign
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// A variable that this launcher alone sets.
    Own,
    /// A variable that other launchers set too.
    Shared,
}

/// Every variable of a launcher that mpienv reads.
pub(crate) static VARIABLES: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let variables = Launcher::ALL.iter().flat_map(|launcher| launcher.variables());
    variables.map(|variable| variable.name).collect()
});

/// Variables that more than one launcher sets: a change in one of them does not show which launcher
/// made it.
static SHARED: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let (mut all, mut shared) = (BTreeSet::new(), BTreeSet::new());
    for launcher in Launcher::ALL {
        let read = launcher.variables().map(|variable| variable.name);
        let set: BTreeSet<_> = read.chain(launcher.spec().also_sets.iter().copied()).collect();
        shared.extend(set.into_iter().filter(|name| !all.insert(*name)));
    }
    shared
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
    specs().flat_map(|spec| spec.local).copied().collect()
}

/// What users call launchers, with blanks between them, and the names to use.
const SYNONYMS: &[(&str, &str)] = &[
    (
        "pbs torque openpbs pbs-pro pbspro qsub",
        "PBS starts the ranks with an MPI: choose open-mpi, hydra (MPICH, Intel MPI) or pals (Cray)",
    ),
    (
        "sge uge grid-engine gridengine",
        "Grid Engine starts the ranks with an MPI: choose open-mpi or hydra (MPICH, Intel MPI)",
    ),
    ("lsf bsub", "LSF starts the ranks with jsrun or an MPI: choose jsm, open-mpi or hydra"),
    (
        "mpi mpirun mpiexec",
        "choose the MPI: open-mpi, hydra (MPICH, Intel MPI), mvapich or pals (Cray)",
    ),
    ("openmpi ompi", "its name is open-mpi"),
    (
        "azureml azure",
        "AzureML starts the ranks with mpirun (`type: mpi`): choose open-mpi; or sets RANK and WORLD_SIZE (`type: pytorch`): \
         choose user",
    ),
    ("mpich intel-mpi intelmpi impi", "its name is hydra"),
    ("srun sbatch", "its name is slurm"),
    ("jsrun", "its name is jsm"),
    ("aprun cray", "its name is pals"),
    (
        "torch pytorch torchelastic",
        "its name is torchrun; where a platform sets RANK and WORLD_SIZE, choose user",
    ),
    (
        "k8s pytorchjob trainjob jobset",
        "its name is kubernetes; where pods have RANK and no PET_NODE_RANK, choose user",
    ),
    ("none", "its name is alone"),
];

/// Returns which launcher is meant by the name of a batch system or of a launcher's program.
pub fn meant_launcher(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace(['_', ' '], "-");
    SYNONYMS
        .iter()
        .find(|(names, _)| names.split(' ').any(|known| known == name))
        .map(|(_, meant)| *meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launcher_has_a_sample_and_a_command_if_it_starts_processes() {
        for &launcher in Launcher::ALL {
            let LauncherSpec { samples, starts, one_per_node, .. } = launcher.spec();
            assert!(!samples.is_empty(), "{launcher} has a sample job");
            let has_command = *one_per_node != Launcher::Alone.spec().one_per_node;
            let are_several = matches!(starts, Starts::Processes | Starts::Slots);
            assert_eq!(has_command, are_several, "{launcher}");
        }
        assert_eq!(Launcher::ALL.last(), Some(&Launcher::Alone), "it takes every environment");
    }

    #[test]
    fn a_bare_rank_and_size_count_after_the_launchers_that_set_them_too() {
        let order: Vec<_> = detectors().map(|(launcher, _)| launcher).collect();
        let at = |launcher| order.iter().position(|&other| other == launcher).unwrap();
        assert_eq!(order[at(Launcher::User) - 1], Launcher::Hydra);
        assert!(
            at(Launcher::Hydra) < at(Launcher::Slurm)
                && at(Launcher::Slurm) < at(Launcher::User) - 1
        );
    }

    #[test]
    fn variables_that_several_launchers_set_are_shared() {
        let shared = "LOCAL_RANK LOCAL_WORLD_SIZE PMIX_NAMESPACE PMI_ID PMI_RANK PMI_SIZE RANK";
        for name in shared.split(' ') {
            assert!(SHARED.contains(name), "{name}");
        }
        assert!(!SHARED.contains("SLURM_PROCID") && !SHARED.contains("OMPI_COMM_WORLD_RANK"));
        for launcher in Launcher::ALL {
            for name in launcher.spec().local {
                assert!(launcher.variables().any(|variable| variable.name == *name), "{name}");
            }
        }
    }
}
