//! What the trainer and the quick start do, grouped by nouns.

#[path = "../support"]
mod support {
    #[path = "../../../../tests/support/clock.rs"]
    pub mod clock;
    pub mod counting;
    pub mod curve;
    pub mod data;
    pub mod few_digits;
    pub mod files;
    #[path = "../../../../tests/support/hosts.rs"]
    pub mod hosts;
    pub mod launcher;
    pub mod living;
    pub mod mnist;
    pub mod parity;
    #[path = "../../../../tests/support/port.rs"]
    pub mod port;
    pub mod published;
    #[path = "../../../../tests/support/python.rs"]
    pub mod python;
    pub mod rank;
    #[path = "../../../../tests/support/root.rs"]
    pub mod root;
    pub mod running;
    pub mod server;
    pub mod start;
    #[path = "../../../../tests/support/timeout.rs"]
    pub mod timeout;
    #[path = "../../../../tests/support/tool.rs"]
    pub mod tool;
    pub mod welcomed;
}

mod errors;
#[cfg(unix)]
mod failures;
mod fetch;
#[cfg(unix)]
mod folders;
#[cfg(target_os = "linux")]
mod hosts;
mod invariance;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(unix)]
mod mpi;
#[cfg(target_os = "linux")]
mod orphans;
#[cfg(unix)]
mod outputs;
mod parity;
mod program;
mod quickstart;
mod quickstart_processes;
mod ranks;
#[cfg(unix)]
mod read_back;
mod readiness;
mod resume;
mod sharded_training;
mod sharding;
mod sharding_digits;
#[cfg(target_os = "linux")]
mod start;
#[cfg(target_os = "linux")]
mod stdout;
#[cfg(target_os = "linux")]
mod strangers;
mod strategy;
mod written;
