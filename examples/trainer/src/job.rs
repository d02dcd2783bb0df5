//! How a rank joins the others and exits with them, in both programs.

use std::fmt::Display;
use std::process::ExitCode;

use crate::backend::BackendError;
use crate::exit;
use mpienv::collective::{CollectiveError, Group};

/// The error of a program, as far as the other ranks and the exit code are concerned.
pub trait JobError: Display + From<BackendError> + From<CollectiveError> {
    /// The exit code, one of [`exit`]'s.
    fn exit_code(&self) -> u8;

    /// Whether the error must not be printed again.
    fn is_reported(&self) -> bool;

    /// Whether every rank exits by itself, for the same reason.
    fn is_of_all_ranks(&self) -> bool;
}

/// Does a rank's `work` and leaves the job. `print` gets the error while the ranks are still connected.
pub(crate) fn run<P, E: JobError>(
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
            // The others would wait for this rank until their timeout.
            group.abort(error.exit_code(), &mut || print(error));
            result
        }
        Err(error) => {
            // Before the group ends: meanwhile a launcher that received a stop signal may kill this rank.
            print(error);
            // The first error is the one that counts.
            let _ = group.close();
            result
        }
        Ok(()) => group.close().map_err(E::from),
    }
}

/// The exit code of a program. Prints its error unless that is done.
pub fn finish(program: &str, result: Result<(), impl JobError>) -> ExitCode {
    let Err(error) = result else { return exit::OK.into() };
    if !error.is_reported() {
        exit::say(program, &error);
    }
    error.exit_code().into()
}
