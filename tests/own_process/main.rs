//! Tests that run alone: they inspect or change their own process (its memory, open files,
//! signals), or judge speeds, which other tests would change.

#[path = "../support"]
mod support {
    pub mod clock;
    pub mod copy;
    #[cfg(target_os = "linux")]
    #[expect(dead_code, reason = "no mpirun and no Slurm runs on the hosts here")]
    pub mod hosts;
    #[cfg(target_os = "linux")]
    pub mod mesh;
    pub mod mutation;
    #[cfg(target_os = "linux")]
    #[expect(dead_code, reason = "no launcher is played to its end here")]
    pub mod pmi;
    pub mod port;
    #[cfg(target_os = "linux")]
    pub mod python;
    #[cfg(target_os = "linux")]
    pub mod root;
    #[cfg(target_os = "linux")]
    pub mod timeout;
    pub mod tool;
    #[expect(dead_code, reason = "no rank is played to its end here")]
    pub mod wire;
}

#[cfg(unix)]
mod fuzz;
mod launch;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod mesh;
