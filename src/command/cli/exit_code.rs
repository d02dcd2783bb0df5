//! What the command's exit codes mean.

use std::fmt;
use std::process::{self, ExitStatus};

use mpienv_launch::seam::signal_of;

use crate::ErrorKind;

/// An exit code of `mpienv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitCode(u8);

macro_rules! codes {
    ($($name:ident = $code:literal, $meaning:literal;)+) => {
        impl ExitCode {
            $(#[doc = $meaning] pub(crate) const $name: ExitCode = ExitCode($code);)+

            /// The man page's table.
            pub(crate) const MEANINGS: &[(ExitCode, &str)] = &[$((ExitCode::$name, $meaning),)+];
        }
    };
}

codes! {
    OK = 0, "Success.";
    WRONG_ENVIRONMENT = 1,
        "The environment is contradictory or incomplete, or output cannot be written.";
    USAGE = 2, "Invalid command line.";
    CHECK_FAILED = 3,
        "The ranks do not fit together, a rank was lost, or check or doctor found a problem.";
    TIMED_OUT = 124,
        "Not all ranks arrived in time, the name of the master did not resolve, or the job stalled.";
    NOT_EXECUTABLE = 126, "As in shells: the command exists but cannot be executed.";
    NOT_FOUND = 127, "As in shells: command not found.";
    READER_GONE = 141, "As in shells: the program that read stdout has exited.";
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ExitCode {
    /// Returns a child's own exit code, or 128 plus the signal's number if a signal killed it, as
    /// in shells.
    pub(crate) fn of_child(status: ExitStatus) -> ExitCode {
        let code = status.code().and_then(|code| u8::try_from(code).ok()).map(ExitCode);
        code.or(signal_of(status).map(ExitCode::of_signal)).unwrap_or(ExitCode::WRONG_ENVIRONMENT)
    }

    /// Returns 128 plus a signal's number.
    pub(crate) fn of_signal(number: i32) -> ExitCode {
        u8::try_from(number.saturating_add(128)).map_or(ExitCode::WRONG_ENVIRONMENT, ExitCode)
    }
}

impl From<ErrorKind> for ExitCode {
    fn from(kind: ErrorKind) -> ExitCode {
        match kind {
            ErrorKind::Usage => ExitCode::USAGE,
            ErrorKind::Lost | ErrorKind::Refused => ExitCode::CHECK_FAILED,
            ErrorKind::TimedOut => ExitCode::TIMED_OUT,
            ErrorKind::ReaderGone => ExitCode::READER_GONE,
            ErrorKind::Failed(status) => ExitCode::of_child(status),
            ErrorKind::Stopped(signal) => ExitCode::of_signal(signal),
            _ => ExitCode::WRONG_ENVIRONMENT,
        }
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> process::ExitCode {
        process::ExitCode::from(code.0)
    }
}
