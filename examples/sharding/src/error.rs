//! Why a program of ranks fails: a text, an exit code, and which ranks know it.

use std::fmt::Display;
use std::io;
use std::path::Path;

use mpienv::ErrorKind;
use mpienv::collective::CollectiveError;

/// The environment, a file or the data is wrong.
pub const WRONG_INPUT: u8 = 1;

/// Invalid command line.
pub const USAGE: u8 = 2;

/// The training failed: the loss is not finite, a rank was lost, or ranks hold different
/// parameters.
pub const TRAINING_FAILED: u8 = 3;

/// A rank did not arrive within the timeout.
pub const TIMED_OUT: u8 = 124;

/// A signal stopped all ranks. As in shells, add the signal's number: 130 for SIGINT, 143 for
/// SIGTERM.
pub const SIGNALLED: u8 = 128;

/// The program reading stdout, such as `head`, has exited. Shells use this code for SIGPIPE.
pub const READER_GONE: u8 = 141;

/// Why a rank fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// Empty if it has been printed, or must not be.
    pub text: String,
    /// The exit code, one of this module's.
    pub code: u8,
    pub reach: Reach,
}

/// Which ranks fail with this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only this rank: the others must learn why.
    Own,
    /// This rank, because it lost another one.
    Lost,
    /// All ranks, because one that is not this one cannot start.
    Other,
    /// All ranks, for the same reason.
    All,
    /// All ranks, but only rank 0 knows the details and prints them.
    First,
}

impl Error {
    /// An error of this rank alone.
    pub fn new(code: u8, text: impl ToString) -> Error {
        Error { text: text.to_string(), code, reach: Reach::Own }
    }

    /// An error in this rank's environment, files or data.
    pub fn input(text: impl ToString) -> Error {
        Error::new(WRONG_INPUT, text)
    }

    /// An error of reading a file, or in what it holds.
    pub fn in_file(path: &Path, text: impl Display) -> Error {
        Error::input(format!("{}: {text}", path.display()))
    }

    /// An error of writing to stdout.
    pub fn output(what: &str, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Error::reader_gone(),
            _ => Error::input(format!("cannot write the {what}: {error}")),
        }
    }

    /// The reader of stdout has exited, which is not a failure.
    pub fn reader_gone() -> Error {
        Error::new(READER_GONE, "").reaching(Reach::All)
    }

    pub fn reaching(self, reach: Reach) -> Error {
        Error { reach, ..self }
    }

    /// Returns whether every rank fails and exits on its own.
    pub fn is_of_all_ranks(&self) -> bool {
        matches!(self.reach, Reach::Other | Reach::All | Reach::First)
    }
}

impl From<CollectiveError> for Error {
    fn from(error: CollectiveError) -> Error {
        use CollectiveError::{Environment, NoMpi, Rendezvous, Socket};
        match error {
            // The ranks are not connected.
            Environment(_) | Rendezvous(_) | Socket(_) | NoMpi => {
                Error::new(exit_code(error.kind(), WRONG_INPUT), error)
            }
            _ => Error::new(exit_code(error.kind(), TRAINING_FAILED), error).reaching(Reach::Lost),
        }
    }
}

impl From<mpienv::Error> for Error {
    fn from(error: mpienv::Error) -> Error {
        Error::input(error)
    }
}

/// The exit code of an error of the ranks together, or `other` for any other kind of error.
pub fn exit_code(kind: ErrorKind, other: u8) -> u8 {
    match kind {
        ErrorKind::TimedOut => TIMED_OUT,
        ErrorKind::Lost => TRAINING_FAILED,
        _ => other,
    }
}
