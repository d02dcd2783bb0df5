//! `mpienv exec`: becomes a command that has the variables set.

use std::ffi::OsString;
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
    info.exports_for(set, &environment)?.apply_to(&mut command);
    Err(mpienv::exec(&mut command).into())
}

/// The command of these words, the first of which is its name.
pub(super) fn command(words: &[OsString]) -> Command {
    // clap asks for at least one.
    let (name, arguments) = words.split_first().map_or((OsString::new(), words), |(name, rest)| (name.clone(), rest));
    let mut command = Command::new(name);
    command.args(arguments);
    command
}
