//! The process that `mpienv launch` starts for a worker. It asks to be killed with its parent, then
//! becomes the worker.
//!
//! The watchdog of `mpienv launch` does not know a worker in the instant between its start and its
//! registration. Only the new process itself can ask Linux to kill it with its parent.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::command::open_files::restore;

use super::Failure;
use super::program::command;

/// The first word of such a process. It is not a subcommand, because users do not call it.
const WORD: &str = "__worker";

/// Returns the command of a process that becomes the command of these words. `files` is the soft
/// limit of open files that it restores first.
pub(super) fn worker(words: &[OsString], files: Option<u64>) -> Command {
    // Without a path to this program, the worker starts directly. The watchdog still covers it.
    if let Some(program) = mpienv_launch::seam::own_program() {
        let mut worker = Command::new(program);
        let files = files.map_or("-".to_owned(), |files| files.to_string());
        worker.arg(WORD).arg(std::process::id().to_string()).arg(files).args(words);
        return worker;
    }
    command(words)
}

/// Returns whether this process was started to become a worker.
pub(super) fn is_worker() -> bool {
    std::env::args_os().nth(1).as_deref() == Some(OsStr::new(WORD))
}

/// Becomes a worker if this process was started for that. Returns why it could not.
pub(super) fn serve() -> Option<Failure> {
    let mut words = std::env::args_os().skip(2);
    let parent = is_worker().then(|| words.next()?.to_str()?.parse().ok()).flatten()?;
    let files = words.next()?.to_str()?.parse().ok();
    if let Err(error) = crate::end_with_parent(parent) {
        return Some(Failure::Orphan(error));
    }
    files.into_iter().for_each(restore);
    let words: Vec<OsString> = words.collect();
    Some(mpienv_launch::seam::exec(&mut command(&words)).into())
}
