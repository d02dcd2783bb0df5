//! What the command's exit codes mean.

use std::fmt;
use std::process::{self, ExitStatus};

/// An exit code of `mpienv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitCode(u8);

impl ExitCode {
    /// Done.
    pub(crate) const OK: ExitCode = ExitCode(0);
    /// The environment contradicts itself, or does not say what is needed.
    pub(crate) const WRONG_ENVIRONMENT: ExitCode = ExitCode(1);
    /// The words on the command line are wrong.
    pub(crate) const USAGE: ExitCode = ExitCode(2);
    /// The ranks do not fit together, one was lost, or doctor found something to mend.
    pub(crate) const CHECK_FAILED: ExitCode = ExitCode(3);
    /// Not all ranks came in time.
    pub(crate) const TIMED_OUT: ExitCode = ExitCode(124);
    /// As shells: the command is there and cannot be executed.
    pub(crate) const NOT_EXECUTABLE: ExitCode = ExitCode(126);
    /// As shells: there is no such command.
    pub(crate) const NOT_FOUND: ExitCode = ExitCode(127);
    /// As shells: whoever read stdout has gone.
    pub(crate) const READER_GONE: ExitCode = ExitCode(141);

    /// The man page's table.
    pub(crate) const MEANINGS: &[(ExitCode, &str)] = &[
        (ExitCode::OK, "Done."),
        (
            ExitCode::WRONG_ENVIRONMENT,
            "The environment contradicts itself, or does not say what is needed; or the output cannot be written.",
        ),
        (ExitCode::USAGE, "The words of the command line are wrong."),
        (ExitCode::CHECK_FAILED, "The ranks do not fit together, one was lost, or doctor found something to mend."),
        (ExitCode::TIMED_OUT, "Not all ranks came in time."),
        (ExitCode::NOT_EXECUTABLE, "As shells: the command is there and cannot be executed."),
        (ExitCode::NOT_FOUND, "As shells: there is no such command."),
        (ExitCode::READER_GONE, "As shells: the program that read stdout has ended."),
    ];
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ExitCode {
    /// A child's own code; 128 and the signal's number, as shells, for one that a signal ended.
    pub(crate) fn of_child(status: ExitStatus) -> ExitCode {
        #[cfg(unix)]
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        #[cfg(not(unix))]
        let signal: Option<i32> = None;
        let code = status.code().or(signal.map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::WRONG_ENVIRONMENT, ExitCode)
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> process::ExitCode {
        process::ExitCode::from(code.0)
    }
}
