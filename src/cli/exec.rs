//! `mpienv exec`: becomes a command that has the variables set.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use super::{Failure, Wishes};

pub(crate) fn run(wishes: Wishes, command: Vec<OsString>) -> Result<(), Failure> {
    let exports = wishes.read()?.exports()?;
    let mut words = command.into_iter();
    let name = words.next().unwrap_or_default();
    let mut command = Command::new(&name);
    command.args(words);
    exports.apply_to(&mut command);
    let error = mpienv::exec(&mut command);
    Err(start_failure(name, error))
}

/// Why a command could not be started.
pub(super) fn start_failure(command: OsString, error: io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "see whether it is installed on this host and on PATH",
        _ => "see its permissions and its first line",
    };
    Failure::Start { command, error, remedy }
}
