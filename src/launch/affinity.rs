//! The CPUs that this thread, and the processes that it starts, may use.
//!
//! Affinity belongs to a thread.

mod masks;

use std::io;

use crate::launch::thread::small_thread;
use crate::launch::topology::Cpus;

pub use self::masks::bind;
pub(crate) use self::masks::mask;

/// Returns the CPUs that this thread may use: those of its binding and of its cgroup.
///
/// # Errors
/// Returns an error if the system does not tell.
pub fn allowed() -> io::Result<Cpus> {
    mask(None)
}

/// Returns the CPUs that this thread could use without its binding.
///
/// # Errors
/// Returns an error if the system does not tell.
pub fn usable() -> io::Result<Cpus> {
    let widened = elsewhere(|| {
        let _ = widen();
        allowed()
    });
    widened.unwrap_or_else(|| Err(io::Error::other("no thread could be started to ask")))
}

/// Calls a function in a thread of its own, so that the binding of the calling thread stays.
pub(crate) fn elsewhere<T: Send>(function: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        small_thread("other cores").ok()?.spawn_scoped(scope, function).ok()?.join().ok()
    })
}

/// Lets this thread use all cores that its cgroup allows. Returns whether the system agreed.
pub(crate) fn widen() -> bool {
    // Linux ignores CPUs that do not exist or are not allowed.
    bind(&(0..MOST_CPUS).collect()).is_ok()
}

/// More CPUs than a mask has room for.
const MOST_CPUS: u32 = 1024;
