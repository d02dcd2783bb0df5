//! The process that `mpienv launch` starts for a worker. It asks to be killed with its parent, then
//! becomes the worker.
//!
//! The watchdog of `mpienv launch` does not know a worker in the instant between its start and its
//! registration. Only the new process itself can ask Linux to kill it with its parent.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::ClusterInfo;
use crate::command::open_files::{OpenFiles, restore};

use super::Failure;
use super::program::command;

/// The first word of such a process. It is not a subcommand, because users do not call it.
const WORD: &str = "__worker";

/// Raises this process's soft limit of open files for its connections to the other nodes, if a
/// worker can restore it for itself.
pub(super) fn raised_files(info: &ClusterInfo) -> Option<OpenFiles> {
    let can_restore = mpienv_launch::seam::own_program().is_some();
    can_restore.then(|| OpenFiles::for_meeting(info))
}

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

/// What this process is asked to become.
pub(super) struct Request {
    /// The process ID of its parent.
    parent: u32,
    /// The soft limit of open files to restore.
    files: Option<u64>,
    words: Vec<OsString>,
}

/// Returns what this process is asked to become, if it is to become a worker.
pub(super) fn request() -> Option<Request> {
    let mut words = std::env::args_os().skip(1);
    if words.next().as_deref() != Some(OsStr::new(WORD)) {
        return None;
    }
    let parent = words.next()?.to_str()?.parse().ok()?;
    let files = words.next()?.to_str()?.parse().ok();
    Some(Request { parent, files, words: words.collect() })
}

pub(super) fn run(request: Request) -> Result<(), Failure> {
    let Request { parent, files, words } = request;
    crate::end_with_parent(parent).map_err(Failure::Orphan)?;
    files.into_iter().for_each(restore);
    Err(mpienv_launch::seam::exec(&mut command(&words)).into())
}
