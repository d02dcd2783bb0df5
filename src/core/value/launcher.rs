//! The launchers by name. How each is detected and read is in `launcher.rs`.

use std::str::FromStr;

use crate::value::name::{self, UnknownName};

macro_rules! launchers {
    ($($(#[$meaning:meta])+ $launcher:ident = $name:literal, $title:literal;)+) => {
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
        }
    };
}

// The order is innermost first: the first launcher that is detected started this process. For
// example, torchrun and mpirun run inside Slurm steps, and their processes inherit Slurm's
// variables.
launchers! {
    /// PyTorch's `torchrun` (torchelastic).
    Torchrun = "torchrun", "torchrun";
    /// Horovod's `horovodrun` without MPI.
    Horovod = "horovod", "Horovod";
    /// Open MPI's `mpirun`, versions 4 and 5; also what AzureML runs.
    OpenMpi = "open-mpi", "Open MPI";
    /// MVAPICH's `mpirun_rsh`, `mpiexec`.
    Mvapich = "mvapich", "MVAPICH";
    /// Hydra, the `mpiexec` of MPICH, Intel MPI and their kin.
    Hydra = "hydra", "Hydra";
    /// HPE Cray PALS: `mpiexec`, `aprun`.
    Pals = "pals", "PALS";
    /// IBM's `jsrun` under LSF.
    Jsm = "jsm", "JSM";
    /// Flux: `flux run`, `flux submit`.
    Flux = "flux", "Flux";
    /// submitit's local executor: tasks on this machine.
    SubmititLocal = "submitit-local", "submitit (local)";
    /// Slurm's `srun`.
    Slurm = "slurm", "Slurm";
    /// A person, a script, `mpienv launch` or Kubeflow's PyTorchJob: RANK and WORLD_SIZE.
    User = "user", "RANK and WORLD_SIZE";
    /// Amazon SageMaker: one process a host.
    SageMaker = "sagemaker", "SageMaker";
    /// Kubernetes' LeaderWorkerSet: one process a pod of a group.
    LeaderWorkerSet = "leader-worker-set", "LeaderWorkerSet";
    /// SkyPilot: one process a node.
    SkyPilot = "skypilot", "SkyPilot";
    /// dstack: one process a node.
    Dstack = "dstack", "dstack";
    /// NVIDIA DGX Cloud Lepton: one process a worker.
    Lepton = "lepton", "DGX Cloud Lepton";
    /// Volcengine's Machine Learning Platform: one process a worker.
    Mlp = "mlp", "Volcengine MLP";
    /// RunPod's Instant Clusters: one process a pod.
    RunPod = "runpod", "RunPod";
    /// Google Cloud's Vertex AI: one process a replica.
    Vertex = "vertex", "Vertex AI";
    /// Volcano's jobs: one process a pod.
    Volcano = "volcano", "Volcano";
    /// A Kubernetes indexed job or Kubeflow Trainer: one process a pod.
    Kubernetes = "kubernetes", "Kubernetes";
    /// An AWS Batch multi-node job: one process a node.
    AwsBatch = "aws-batch", "AWS Batch";
    /// No launcher: one process by itself.
    Alone = "alone", "no launcher";
}

/// Parses a [`name`](Launcher::name).
impl FromStr for Launcher {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Launcher, UnknownName> {
        name::find("launcher", Launcher::ALL, Launcher::name, name)
    }
}

name::shown_by_name!(Launcher);
