//! `mpienv exec`: becomes a command that has the variables set.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use mpienv::{Environment, Launch, VariableSet};

use super::worker::worker;
use super::{Failure, Wishes, launch};

pub(crate) fn run(wishes: Wishes, set: VariableSet, words: Vec<OsString>) -> Result<(), Failure> {
    let environment = Environment::of_this_process();
    let info = wishes.read_from(&environment)?;
    if set == VariableSet::MindSpore && info.world().is_first() {
        // Two commands to start and one process: this one waits for both.
        let launch = Launch::in_place(&info).variables(set, &environment).adopt_orphans();
        return launch.run(|_| worker(&words)).map_err(|error| launch::failure(&words, error));
    }
    let mut command = command(&words);
    info.marked().exports_for(set, &environment)?.apply_to(&mut command);
    let error = mpienv::exec(&mut command);
    Err(start_failure(command.get_program().to_owned(), error))
}

/// The command of these words, the first of which is its name.
pub(super) fn command(words: &[OsString]) -> Command {
    // clap asks for at least one.
    let (name, arguments) = words.split_first().map_or((OsString::new(), words), |(name, rest)| (name.clone(), rest));
    let mut command = Command::new(name);
    command.args(arguments);
    command
}

/// Why a command could not be started.
pub(super) fn start_failure(command: OsString, error: io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "see whether it is installed on this host and on PATH",
        _ => "see its permissions and its first line",
    };
    Failure::Start { command, error, remedy }
}
