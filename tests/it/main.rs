//! What mpienv does, grouped by nouns: values, launchers, commands, meetings.

#[path = "../support"]
mod support {
    pub mod address;
    #[cfg(target_os = "linux")]
    pub mod attacker;
    pub mod clock;
    pub mod copy;
    pub mod dotenv;
    pub mod gpu;
    pub mod hosts;
    pub mod launched;
    pub mod machine;
    pub mod measured;
    #[cfg(target_os = "linux")]
    pub mod mesh;
    #[cfg(target_os = "linux")]
    pub mod munged;
    #[cfg(target_os = "linux")]
    pub mod namespace;
    #[cfg(target_os = "linux")]
    pub mod pmi;
    pub mod port;
    pub mod processes;
    pub mod python;
    pub mod root;
    pub mod script;
    pub mod slurm;
    pub mod timeout;
    pub mod tool;
    pub mod wire;
}

#[cfg(target_os = "linux")]
mod asking;
#[cfg(target_os = "linux")]
mod asking_hosts;
#[cfg(feature = "rendezvous")]
mod attacks;
#[cfg(all(unix, feature = "rendezvous"))]
mod attacks_on_launches;
mod azure;
mod batch_systems;
#[cfg(target_os = "linux")]
mod binding;
mod by_hand;
mod check;
mod choice;
#[cfg(target_os = "linux")]
mod collective;
mod command;
#[cfg(unix)]
mod command_lines;
#[cfg(target_os = "linux")]
mod containers;
mod core_shares;
#[cfg(target_os = "linux")]
mod descendants;
#[cfg(target_os = "linux")]
mod devices;
mod dialect_words;
mod dialects;
mod doctor;
mod doctor_command;
mod documentation;
mod errors;
#[cfg(feature = "rendezvous")]
mod floods;
mod foreign_names;
#[cfg(target_os = "linux")]
mod foreign_processes;
#[cfg(target_os = "linux")]
mod full_disk;
mod generated;
#[cfg(target_os = "linux")]
mod gpus;
#[cfg(target_os = "linux")]
mod halo;
mod host_lists;
mod hostlist;
mod hosts;
#[cfg(unix)]
mod inner_launchers;
mod interface;
mod jax;
#[cfg(target_os = "linux")]
mod kills;
mod later_signs;
mod launch_command;
#[cfg(unix)]
mod launch_options;
mod launch_output;
mod launchers;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod listening;
#[cfg(target_os = "linux")]
mod lost_variables;
mod mpi;
mod mpirun;
#[cfg(target_os = "linux")]
mod munge;
mod nesting;
#[cfg(target_os = "linux")]
mod node_facts;
mod node_ranks;
mod platforms;
mod ports;
mod printed_errors;
mod programs;
mod properties;
mod recordings;
#[cfg(feature = "rendezvous")]
mod rendezvous;
#[cfg(target_os = "linux")]
mod restarts;
mod round_trips;
mod schedulers;
mod sets;
#[cfg(unix)]
mod simulate;
#[cfg(target_os = "linux")]
mod stalls;
#[cfg(target_os = "linux")]
mod start_errors;
mod stops;
#[cfg(target_os = "linux")]
mod strangers;
mod table;
#[cfg(target_os = "linux")]
mod target_files;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod threads;
mod token;
#[cfg(target_os = "linux")]
mod typed;
#[cfg(unix)]
mod vocabularies;
mod waiting;
mod warnings;
mod watchdog;
