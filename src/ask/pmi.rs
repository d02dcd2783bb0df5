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

use std::io;

pub use link::{Link, inherited};
pub use question::Question;

/// The first word of what rank 0 stores, which changes with its form.
const FORM: &str = "mpienv1";

/// The number of the descriptor that the launcher has left open.
pub(crate) const FD: &str = "PMI_FD";
/// Where the server listens, as `host:port`, and the number by which it knows this process.
pub(crate) const PORT: &str = "PMI_PORT";
pub(crate) const ID: &str = "PMI_ID";

mpienv_core::debug_is_text!(PmiError);

/// Why the launcher's PMI server gave no answer.
#[derive(thiserror::Error)]
#[doc(hidden)]
pub enum PmiError {
    /// The number is not that of a socket.
    #[error(
        "it is not a connection to the launcher ({0}): something between the launcher and mpienv has closed it"
    )]
    NotASocket(io::Error),
    /// No connection to the port.
    #[error("cannot connect to the launcher: {0}")]
    NoConnection(io::Error),
    /// The system cannot send or receive.
    #[error("the connection to the launcher has failed during `{request}`: {reason}")]
    Broken { request: &'static str, reason: io::Error },
    /// The server has closed the connection.
    #[error(
        "the launcher has closed the connection at `{0}`: an MPI program or another mpienv may have ended it"
    )]
    Closed(&'static str),
    /// The server does not answer.
    #[error("the launcher has not answered `{request}` for {seconds} s")]
    Silent { request: &'static str, seconds: u64 },
    /// Not all ranks ask.
    #[error(
        "rank {rank} of {size} has asked for rank 0's host, and not all other ranks have within {seconds} s: \
         all ranks must run the same mpienv command"
    )]
    NotAll { rank: u32, size: u32, seconds: u64 },
    /// The answer is not one to this request.
    #[error("the launcher has answered `{request}` with {answer}: {why}")]
    Malformed { request: &'static str, answer: String, why: &'static str },
    /// The answer does not end.
    #[error("the launcher's answer to `{request}` is longer than {most} bytes")]
    TooLong { request: &'static str, most: usize },
    /// The server's limits are too low.
    #[error("the launcher stores at most {most} bytes, and {what} has {length}")]
    NoRoom { what: &'static str, length: usize, most: usize },
    /// Rank 0 does not know its own name.
    #[error("rank 0's host has no name by which other hosts know it")]
    NoName,
    /// Nothing would say goodbye for this process.
    #[error(
        "the launcher would take this process's exit for a failure, and no process can prevent that: {0}"
    )]
    NotKept(io::Error),
}
