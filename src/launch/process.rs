//! This process: the program that it becomes, its own program, its parent and its threads.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Builder;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::flag;

use crate::start_error::{StartError, before, find};

/// Replaces this process with `command`; returns only if that fails.
///
/// The process id, the open files and the environment are kept, and signals reach the program
/// directly. Ignored signals stay ignored (`nohup`). The exceptions are SIGCHLD, after
/// [`keep_ended_children`], and SIGPIPE, which is reset to its default, because Rust's runtime
/// ignores it before `main` and its former state is lost. To ignore it, start the program through a
/// shell: `sh -c 'trap "" PIPE; exec "$@"' sh CMD`.
///
/// A Python script whose first line names no interpreter is an error, because the system would
/// start it with `sh`.
pub fn exec(command: &mut Command) -> StartError {
    before(command).unwrap_or_else(|| {
        let error = command.exec();
        StartError::new(command, error)
    })
}

/// Lets this process wait for its children although it was started with SIGCHLD ignored: the system
/// would drop how they end. A program that it starts or becomes gets the default.
pub fn keep_ended_children() {
    // Only unsafe code could set the default here; a handler that does nothing is enough. If the
    // system refuses it, all is as it was.
    let _ = flag::register(Signal::CHILD.as_raw(), Arc::<AtomicBool>::default());
}

/// Returns the path of the running program, even if its file was replaced. Without /proc, finds it
/// by its name.
pub fn own_program() -> Option<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Some(running.to_owned());
    }
    let file = find(&Command::new(std::env::args_os().next()?))?;
    std::path::absolute(file).ok()
}

/// Asks Linux to kill this process when the thread that started it exits.
///
/// The request survives an `exec`, but child processes do not inherit it. If the process of a
/// [`Launch`](crate::Launch) is killed, its watchdog kills the workers, except for a worker that is
/// just being started. A worker that calls this function first closes that gap. `parent` is the
/// process ID of the process that started this one.
///
/// ```no_run
/// use std::os::unix::process::CommandExt;
/// use std::process::Command;
///
/// // The program that starts this one passes its process ID as the first argument.
/// let parent = std::env::args().nth(1).and_then(|id| id.parse().ok()).unwrap_or_default();
/// mpienv::end_with_parent(parent)?;
/// let error = Command::new("python").arg("train.py").exec();
/// eprintln!("{error}");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the parent has already exited, or if the system refuses.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = i32::try_from(parent).ok().and_then(Pid::from_raw);
    if parent.is_none() || getppid() != parent {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the process that started this one has exited",
        ));
    }
    Ok(())
}

/// Splits the text of `/proc/PID/stat`, `number (name) state ...`, into the name, which may contain
/// anything, and the fields after it.
pub fn stat_fields(stat: &str) -> Option<(&str, Vec<&str>)> {
    let (head, fields) = stat.rsplit_once(") ")?;
    Some((head.split_once(" (")?.1, fields.split_ascii_whitespace().collect()))
}

/// Returns a number that no other process and no other call is likely to get, but for a process
/// that is forked from this one.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The stack size of a thread, in bytes. Its calls are few and shallow.
const STACK: usize = 256 << 10;
/// The address space that must be free before a thread is started, in bytes.
///
/// glibc reserves up to 128 MiB for the allocations of a thread. If it cannot, each allocation
/// takes a page or more, and the first that fails ends the process before it can report why.
const ROOM: usize = 136 << 20;

/// Returns what starts a thread, or an error if too little memory is free.
pub(crate) fn small_thread(name: &str) -> io::Result<Builder> {
    Vec::<u8>::new().try_reserve_exact(ROOM)?;
    Ok(Builder::new().name(name.to_owned()).stack_size(STACK))
}
