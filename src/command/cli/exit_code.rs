//! What the command's exit codes mean.

use std::fmt;
use std::process;

use mpienv_core::seam as codes;

use crate::ErrorKind;

/// An exit code of `mpienv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitCode(u8);

macro_rules! codes {
    ($($name:ident = $code:expr, $meaning:literal;)+) => {
        impl ExitCode {
            $(#[doc = $meaning] pub(crate) const $name: ExitCode = ExitCode($code);)+

            /// The man page's table.
            pub(crate) const MEANINGS: &[(ExitCode, &str)] = &[$((ExitCode::$name, $meaning),)+];
        }
    };
}

codes! {
    OK = 0, "Success.";
    WRONG_ENVIRONMENT = codes::ENVIRONMENT,
        "The environment is contradictory or incomplete, or output cannot be written.";
    USAGE = codes::USAGE, "Invalid command line.";
    CHECK_FAILED = codes::RANKS,
        "The ranks do not fit together, a rank was lost, check or doctor found a problem, or doctor \
         could not compare all ranks.";
    TIMED_OUT = codes::TIMED_OUT,
        "Not all ranks arrived in time, the name of the master did not resolve, or the job stalled.";
    NOT_EXECUTABLE = 126, "As in shells: the command exists but cannot be executed.";
    NOT_FOUND = 127, "As in shells: command not found.";
    READER_GONE = codes::READER_GONE, "As in shells: the program that read stdout has exited.";
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<ErrorKind> for ExitCode {
    fn from(kind: ErrorKind) -> ExitCode {
        ExitCode(kind.exit_code())
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> process::ExitCode {
        process::ExitCode::from(code.0)
    }
}
