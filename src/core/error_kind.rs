//! What errors mean for a program's exit code.

use std::process::ExitStatus;

/// The kind of an error that involves several ranks. It determines a program's exit code.
///
/// The code of `mpienv` for it is in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The environment or the machine is not as it must be (1).
    Environment,
    /// The program asked for what cannot be done (2).
    Usage,
    /// A rank or a node was lost (3). Another attempt may succeed.
    Lost,
    /// The ranks, their settings or their calls are wrong (3). Another attempt will fail too.
    Refused,
    /// A rank did not come by the deadline, or no rank was active for too long (124). Another
    /// attempt may succeed.
    TimedOut,
    /// The program that reads the workers' output has exited (141).
    ReaderGone,
    /// A worker failed with this status (its own code, or 128 plus the number of its signal).
    Failed(ExitStatus),
    /// This signal ended the job (128 plus its number).
    Stopped(i32),
}
