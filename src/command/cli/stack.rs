//! The stack of the command's work.

use std::io;
use std::process::ExitCode;
use std::thread::Builder;

/// The stack that the work always has room on, in bytes: what the standard library gives threads.
const ENOUGH: usize = 2 << 20;

/// Does the work of the command: in a thread of its own if the stack of the first one may not grow
/// to what the work needs (`ulimit -s`).
///
/// # Errors
/// That thread cannot start.
pub(super) fn with_room(work: fn() -> ExitCode) -> io::Result<ExitCode> {
    if !is_short() {
        return Ok(work());
    }
    let thread = Builder::new().name("mpienv".to_owned()).stack_size(ENOUGH).spawn(work)?;
    Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn is_short() -> bool {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Stack).current.is_some_and(|limit| limit < ENOUGH as u64)
}
