//! How a rank joins the others and exits with them, in both programs.

use std::fmt::Display;
use std::process::ExitCode;

use crate::program::backend::BackendError;
use crate::program::exit;
use mpienv::collective::{CollectiveError, Group};

/// What other ranks and the exit code need to know about a program's error.
pub trait JobError: Display + From<BackendError> + From<CollectiveError> {
    /// The exit code, one of [`exit`]'s.
    fn exit_code(&self) -> u8;

    /// Returns whether the error has been printed, or must not be.
    fn is_reported(&self) -> bool;

    /// Returns whether every rank fails for the same reason and exits on its own.
    fn is_of_all_ranks(&self) -> bool;
}

/// Runs a rank's `work`, then leaves the group. An error is passed to `print` while the ranks are
/// still connected.
pub fn run<P, E: JobError>(
    connected: Result<Group, BackendError>,
    prepared: Result<P, E>,
    print: impl Fn(&E),
    work: impl FnOnce(Result<P, E>, &mut Group) -> Result<(), E>,
) -> Result<(), E> {
    let mut group = match connected {
        Ok(group) => group,
        Err(error) => return Err(prepared.err().unwrap_or_else(|| error.into())),
    };
    let result = work(prepared, &mut group);
    match &result {
        Err(error) if !error.is_of_all_ranks() => {
            // Without the abort, the other ranks would wait for this one until they time out.
            let reason = if error.is_reported() { String::new() } else { error.to_string() };
            group.abort(error.exit_code(), &reason);
            result
        }
        Err(error) => {
            // Print first: a launcher that received a stop signal may kill this rank while the
            // group closes.
            print(error);
            // The first error is the one to return.
            let _ = group.close();
            result
        }
        Ok(()) => group.close().map_err(E::from),
    }
}

/// Returns a program's exit code. Prints its error unless it has been reported.
pub fn finish(program: &str, result: Result<(), impl JobError>) -> ExitCode {
    let Err(error) = result else { return exit::OK.into() };
    if !error.is_reported() {
        exit::say(program, &error);
    }
    error.exit_code().into()
}
