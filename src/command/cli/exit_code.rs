//! What the command's exit codes mean.

use std::fmt;
use std::process::{self, ExitStatus};

/// An exit code of `mpienv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitCode(u8);

impl ExitCode {
    /// Success.
    pub(crate) const OK: ExitCode = ExitCode(0);
    /// The environment is contradictory or incomplete, or output cannot be written.
    pub(crate) const WRONG_ENVIRONMENT: ExitCode = ExitCode(1);
    /// Invalid command line.
    pub(crate) const USAGE: ExitCode = ExitCode(2);
    /// The ranks do not fit together, a rank was lost, or check or doctor found a problem.
    pub(crate) const CHECK_FAILED: ExitCode = ExitCode(3);
    /// Not all ranks arrived in time, or the name of the master did not resolve.
    pub(crate) const TIMED_OUT: ExitCode = ExitCode(124);
    /// As in shells: the command exists but cannot be executed.
    pub(crate) const NOT_EXECUTABLE: ExitCode = ExitCode(126);
    /// As in shells: command not found.
    pub(crate) const NOT_FOUND: ExitCode = ExitCode(127);
    /// As in shells: the program that read stdout has exited.
    pub(crate) const READER_GONE: ExitCode = ExitCode(141);

    /// The man page's table.
    pub(crate) const MEANINGS: &[(ExitCode, &str)] = &[
        (ExitCode::OK, "Success."),
        (
            ExitCode::WRONG_ENVIRONMENT,
            "The environment is contradictory or incomplete, or output cannot be written.",
        ),
        (ExitCode::USAGE, "Invalid command line."),
        (
            ExitCode::CHECK_FAILED,
            "The ranks do not fit together, a rank was lost, or check or doctor found a problem.",
        ),
        (
            ExitCode::TIMED_OUT,
            "Not all ranks arrived in time, or the name of the master did not resolve.",
        ),
        (ExitCode::NOT_EXECUTABLE, "As in shells: the command exists but cannot be executed."),
        (ExitCode::NOT_FOUND, "As in shells: command not found."),
        (ExitCode::READER_GONE, "As in shells: the program that read stdout has exited."),
    ];
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
        #[cfg(unix)]
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        #[cfg(not(unix))]
        let signal: Option<i32> = None;
        let code = status.code().and_then(|code| u8::try_from(code).ok()).map(ExitCode);
        code.or(signal.map(ExitCode::of_signal)).unwrap_or(ExitCode::WRONG_ENVIRONMENT)
    }

    /// Returns 128 plus a signal's number.
    pub(crate) fn of_signal(number: i32) -> ExitCode {
        u8::try_from(number.saturating_add(128)).map_or(ExitCode::WRONG_ENVIRONMENT, ExitCode)
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> process::ExitCode {
        process::ExitCode::from(code.0)
    }
}
