//! Asks the launcher's PMI-1 server for rank 0's host and the nodes, as `MPI_Init` asks it for the
//! other ranks.
//!
//! MPICH's and Intel MPI's Hydra, gforker, MVAPICH and Flux give a process its rank, but not rank
//! 0's host. They serve a store of keys and values, in lines of text over a socket: the descriptor
//! in `PMI_FD`, or the port in `PMI_PORT`. Rank 0 stores its host there, and all ranks read it.
//!
//! Limits: all ranks have to ask, because they wait for each other. Launchers other than Flux take
//! the exit of a process that has asked for the failure of an MPI program, and kill the others on
//! the node, unless the process says goodbye: [`Link::finalize`]. After that, the process has no
//! server anymore, so the goodbye must be the last that the launcher hears of it. Only the command
//! can arrange that, with a process that outlasts the program (`keep`).

mod link;
mod nodes;
mod question;

pub use link::{Link, inherited};
pub use question::Question;

/// The first word of what rank 0 stores, which changes with its form.
const FORM: &str = "mpienv1";

/// The number of the descriptor that the launcher has left open.
pub(crate) const FD: &str = "PMI_FD";
/// Where the server listens, as `host:port`, and the number by which it knows this process.
pub(crate) const PORT: &str = "PMI_PORT";
pub(crate) const ID: &str = "PMI_ID";

/// Returns the error for a limit of the server that is too low.
fn no_room(what: &str, length: usize, most: usize) -> String {
    format!("the launcher stores at most {most} bytes, and {what} has {length}")
}
