//! The `mpienv` command, which is not part of the library's interface.

pub(crate) mod check;
mod cli;
pub mod doctor;
mod open_files;
pub(crate) mod protection;

pub use cli::{before_main, main};
