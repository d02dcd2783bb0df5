//! What the manual page says of variables and files.

/// The variables that users set.
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("MPIENV_LAUNCHER", "The launcher whose variables count, as with --launcher."),
    (
        "MPIENV_MASTER_ADDR, MPIENV_MASTER_PORT",
        "Where rank 0 listens. They precede MASTER_ADDR and MASTER_PORT, also on Azure.",
    ),
    (
        "MPIENV_PORT_RANGE",
        "The range of the ports that mpienv derives, such as 1400-1999; the same for all ranks.",
    ),
    ("MPIENV_NCCL_IFNAME", "The value of NCCL_SOCKET_IFNAME, or keep, or unset."),
    (
        "MPIENV_INTERFACE",
        "The network interface for gloo, NCCL, TensorPipe, UCX and vLLM, as with --interface.",
    ),
    ("MPIENV_TOKEN", "A secret of the job. Only processes that have it can meet."),
    ("MPIENV_TOKEN_FILE", "A file with that secret, which only its owner may read."),
    (
        "MPIENV_AUTH",
        "munge or munge:SOCKET: only processes of one user can meet. auto: if MUNGE works here.",
    ),
    (
        "MPIENV_ASK",
        "0 never asks the launcher for the master. Another number is how long ranks wait, in seconds.",
    ),
    (
        "MPIENV_THREADS",
        "The threads of each rank, as with --threads of exec and launch: share, keep, or a number.",
    ),
    ("MPIENV_QUIET", "1 silences warnings."),
    ("MPIENV_MPI_LIB, MPIENV_PMIX_LIB", "The libraries of MPI and PMIx to load."),
    ("MPIENV_RESTART_COUNT", "Set by launch: the number of the attempt, from 0."),
    ("MPIENV_HEARTBEAT_FILE", "Set by launch --stall-timeout: the file that heartbeats change."),
    (
        "MPIENV_BIND, MPIENV_CONTEXT, MPIENV_SIMULATED",
        "Set by mpienv for an mpienv that runs inside.",
    ),
    (
        "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT",
        "Set by export, exec and launch. The variables of each launcher are in the guide.",
    ),
];

/// The files that mpienv reads or writes.
pub(super) const FILES: &[(&str, &str)] = &[
    (
        "DIR/rank.R/stdout, DIR/rank.R/stderr",
        "The output of rank R with launch --log-dir DIR; DIR/attempt_K/rank.R with --max-restarts.",
    ),
    ("$MPIENV_TOKEN_FILE", "The secret of the job."),
    ("$PBS_NODEFILE", "Read to see whether a PBS job has several processes."),
    ("/proc, /sys", "Read to find the parent processes, the cores and the devices."),
];
