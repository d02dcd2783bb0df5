//! What the manual page says of files.

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
