//! Tests that inspect or change their own process: its memory, open files, signals.

#[path = "../support"]
mod support {
    pub mod clock;
    pub mod copy;
    pub mod mutation;
    #[cfg(target_os = "linux")]
    #[expect(dead_code, reason = "no launcher is played to its end here")]
    pub mod pmi;
    pub mod port;
    pub mod tool;
    #[expect(dead_code, reason = "no rank is played to its end here")]
    pub mod wire;
}

#[cfg(unix)]
mod fuzz;
mod launch;
#[cfg(target_os = "linux")]
mod load;
