//! What mpienv does, by noun: values, launchers, commands, meetings.

#[path = "../support"]
mod support {
    pub mod dotenv;
    pub mod hosts;
    pub mod port;
    pub mod processes;
    pub mod python;
    pub mod root;
    pub mod slurm;
    pub mod tool;
    pub mod wire;
}

mod azure;
mod check;
mod choice;
mod command;
#[cfg(target_os = "linux")]
mod descendants;
mod dialects;
mod doctor;
mod documentation;
mod errors;
mod floors;
mod generated;
mod hostlist;
mod hosts;
mod launch_command;
#[cfg(unix)]
mod launch_options;
mod launchers;
mod mpi;
mod mpirun;
mod programs;
mod properties;
mod recordings;
#[cfg(feature = "rendezvous")]
mod rendezvous;
#[cfg(unix)]
mod simulate;
#[cfg(target_os = "linux")]
mod strangers;
mod table;
mod token;
