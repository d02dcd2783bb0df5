//! What the command's exit codes mean.

use std::{fmt, process};

/// An exit code of `mpienv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitCode(u8);

impl ExitCode {
    /// Done.
    pub(crate) const OK: ExitCode = ExitCode(0);
    /// The environment contradicts itself, or does not say what is needed.
    pub(crate) const WRONG_ENVIRONMENT: ExitCode = ExitCode(1);
    /// As shells: the command is there and cannot be executed.
    pub(crate) const NOT_EXECUTABLE: ExitCode = ExitCode(126);
    /// As shells: there is no such command.
    pub(crate) const NOT_FOUND: ExitCode = ExitCode(127);

    /// The man page's table. Wrong words are clap's to report, with its own 2.
    pub(crate) const MEANINGS: &[(ExitCode, &str)] = &[
        (ExitCode::OK, "Done."),
        (ExitCode::WRONG_ENVIRONMENT, "The environment contradicts itself, or does not say what is needed."),
        (ExitCode(2), "The words of the command line are wrong."),
        (ExitCode::NOT_EXECUTABLE, "As shells: the command is there and cannot be executed."),
        (ExitCode::NOT_FOUND, "As shells: there is no such command."),
    ];
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> process::ExitCode {
        process::ExitCode::from(code.0)
    }
}
