//! What the command's exit codes mean.

use std::process;

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
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> process::ExitCode {
        process::ExitCode::from(code.0)
    }
}
