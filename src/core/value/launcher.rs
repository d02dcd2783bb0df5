//! The launchers by name. How each is detected and read is in `launcher.rs`.

use std::str::FromStr;

use crate::value::name::{self, UnknownName};

macro_rules! names {
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
        }
    };
}

/// Gives the launchers to another macro: the meaning and the name of the variant, the file in
/// `launcher/`, the machine-readable name and the human-readable one.
///
/// The order is innermost first: the first launcher that is detected started this process. For
/// example, torchrun and mpirun run inside Slurm steps, and their processes inherit Slurm's
/// variables.
macro_rules! launchers {
    ($with:ident) => {
        $with! {
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
    };
}
pub(crate) use launchers;

launchers!(names);

/// Parses a [`name`](Launcher::name).
impl FromStr for Launcher {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Launcher, UnknownName> {
        name::find("launcher", Launcher::ALL, Launcher::name, name)
    }
}

name::shown_by_name!(Launcher);
