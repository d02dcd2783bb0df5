//! What operator sharding and its quick start do, grouped by nouns.

#[path = "../support"]
mod support {
    #[path = "../../../../tests/support/clock.rs"]
    pub mod clock;
    pub mod counting;
    pub mod files;
    #[path = "../../../../tests/support/hosts.rs"]
    #[expect(dead_code, reason = "the trainer's tests have more layouts")]
    pub mod hosts;
    pub mod launcher;
    pub mod limited;
    #[path = "../../../../tests/support/port.rs"]
    pub mod port;
    pub mod published;
    #[path = "../../../../tests/support/python.rs"]
    pub mod python;
    pub mod rank;
    pub mod regular_files;
    #[path = "../../../../tests/support/root.rs"]
    pub mod root;
    pub mod running;
    pub mod shell;
    #[path = "../../../../tests/support/timeout.rs"]
    pub mod timeout;
    #[path = "../../../../tests/support/tool.rs"]
    pub mod tool;
    pub mod watched;
}

#[cfg(target_os = "linux")]
mod hosts;
#[cfg(target_os = "linux")]
mod limits;
mod merge;
mod quickstart;
mod quickstart_processes;
mod read_back;
mod sharding;
#[cfg(target_os = "linux")]
mod stdout;
mod written;
