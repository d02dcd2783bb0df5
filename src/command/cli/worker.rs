//! The process that `mpienv launch` starts for a worker. It asks to be killed with its parent, then
//! becomes the worker.
//!
//! The watchdog of `mpienv launch` does not know a worker in the instant between its start and its
//! registration. Only the new process itself can ask Linux to kill it with its parent.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use super::Failure;
use super::exec::command;

/// The first word of such a process. It is not a subcommand, because users do not call it.
const WORD: &str = "__worker";

/// Returns the command of a process that becomes the command of these words.
pub(super) fn worker(words: &[OsString]) -> Command {
    // Without a path to this program, or outside Linux, the worker starts directly. The watchdog
    // still covers it.
    #[cfg(target_os = "linux")]
    if let Some(program) = mpienv_launch::seam::own_program() {
        let mut worker = Command::new(program);
        worker.arg(WORD).arg(std::process::id().to_string()).args(words);
        return worker;
    }
    command(words)
}

/// Returns the parent's process ID and the words of the worker that this process is to become.
pub(super) fn request() -> Option<(u32, Vec<OsString>)> {
    let mut words = std::env::args_os().skip(1);
    if words.next().as_deref() != Some(OsStr::new(WORD)) {
        return None;
    }
    let parent = words.next()?.to_str()?.parse().ok()?;
    Some((parent, words.collect()))
}

pub(super) fn run(parent: u32, words: &[OsString]) -> Result<(), Failure> {
    crate::end_with_parent(parent).map_err(Failure::Orphan)?;
    Err(mpienv_launch::seam::exec(&mut command(words)).into())
}
