//! What the trainer does, grouped by nouns.

#[path = "../support"]
mod support {
    #[path = "../../../../tests/support/clock.rs"]
    pub mod clock;
    pub mod curve;
    pub mod data;
    pub mod endless;
    pub mod few_digits;
    #[path = "../../../sharding/tests/support/files.rs"]
    pub mod files;
    #[path = "../../../../tests/support/gpu.rs"]
    pub mod gpu;
    #[path = "../../../../tests/support/hosts.rs"]
    pub mod hosts;
    #[path = "../../../sharding/tests/support/launcher.rs"]
    pub mod launcher;
    #[path = "../../../sharding/tests/support/limited.rs"]
    pub mod limited;
    pub mod living;
    pub mod mnist;
    pub mod parity;
    #[path = "../../../../tests/support/port.rs"]
    pub mod port;
    #[path = "../../../../tests/support/python.rs"]
    pub mod python;
    #[path = "../../../sharding/tests/support/rank.rs"]
    pub mod rank;
    #[path = "../../../sharding/tests/support/regular_files.rs"]
    pub mod regular_files;
    #[path = "../../../../tests/support/root.rs"]
    pub mod root;
    #[path = "../../../sharding/tests/support/running.rs"]
    pub mod running;
    pub mod server;
    #[path = "../../../sharding/tests/support/shell.rs"]
    pub mod shell;
    pub mod start;
    #[path = "../../../../tests/support/timeout.rs"]
    pub mod timeout;
    #[path = "../../../../tests/support/tool.rs"]
    pub mod tool;
    #[path = "../../../sharding/tests/support/watched.rs"]
    pub mod watched;
    pub mod welcomed;
}

mod failures;
mod fetch;
mod folders;
mod gpus;
mod help;
mod hosts;
mod invariance;
mod limits;
mod mpi;
mod orphans;
mod outputs;
mod parity;
mod program;
mod ranks;
mod read_back;
mod readiness;
mod resume;
mod sharded_training;
mod sharding_digits;
mod signals;
mod start;
mod stdout;
mod strangers;
mod strategy;
