//! What the command needs of this crate and programs do not. Any version may change it.

use std::process::Command;

use mpienv_core::ClusterInfo;

use crate::{Launch, LaunchError, StartError};

#[cfg(feature = "launch")]
pub use crate::cores::{count as count_cores, widen as widen_binding};

/// What the command knows of the process in which it launches.
pub trait LaunchSeam: Sized {
    /// Declares that this process exits once it has reported how the launch ended.
    #[must_use]
    fn whole_process(self) -> Launch;
    /// Returns the places of the workers in the first attempt.
    fn places(&mut self) -> &[ClusterInfo];
    /// Like [`Launch::run`], but `command` may fail. Its text is then the reason that all nodes
    /// show. Workers that have already started are killed.
    ///
    /// # Errors
    /// Those of [`Launch::run`], or [`LaunchError::OtherNode`] if `command` fails.
    fn try_run(
        self,
        command: impl FnMut(&ClusterInfo) -> Result<Command, String>,
    ) -> Result<(), LaunchError>;
}

impl LaunchSeam for Launch {
    fn whole_process(self) -> Launch {
        Launch::whole_process(self)
    }

    fn places(&mut self) -> &[ClusterInfo] {
        Launch::places(self)
    }

    fn try_run(
        self,
        command: impl FnMut(&ClusterInfo) -> Result<Command, String>,
    ) -> Result<(), LaunchError> {
        Launch::try_run(self, command)
    }
}

/// Returns the same error for a terminal on which the workers' output appears. `is_brief`: the user
/// asked for silence, and gets no report.
pub fn for_terminal(error: LaunchError, is_brief: bool) -> LaunchError {
    error.for_terminal(is_brief)
}

/// Returns whether the reader of the launch's output has exited.
pub fn is_by_reader(error: &LaunchError) -> bool {
    error.is_by_reader()
}

/// Returns the error for a command that the system would start in a way that the user does not
/// intend.
#[cfg(unix)]
pub fn before(command: &Command) -> Option<StartError> {
    StartError::before(command)
}

/// Returns the error that starting the command would give, as far as its file shows.
pub fn foreseen(command: &Command) -> Option<StartError> {
    StartError::foreseen(command)
}

/// Returns the words of the command that was probably meant.
pub fn meant(error: &StartError) -> Option<&[std::ffi::OsString]> {
    error.meant()
}
