//! The `mpienv` command, which is not part of the library's interface.

pub(crate) mod check;
mod cli;
pub mod doctor;
mod open_files;
pub(crate) mod protection;

#[cfg(target_os = "linux")]
pub use cli::before_main;
pub use cli::main;
