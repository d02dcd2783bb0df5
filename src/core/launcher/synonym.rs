//! What people call launchers, and which launcher is meant.

/// What users call launchers, with blanks between them, and the names to use.
const LAUNCHERS: &[(&str, &str)] = &[
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
    ("torch pytorch torchelastic", "its name is torchrun"),
    ("k8s", "its name is kubernetes"),
    ("none", "its name is alone"),
];

/// Returns which launcher is meant by the name of a batch system or of a launcher's program.
pub fn meant_launcher(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace(['_', ' '], "-");
    LAUNCHERS
        .iter()
        .find(|(names, _)| names.split(' ').any(|known| known == name))
        .map(|(_, meant)| *meant)
}
