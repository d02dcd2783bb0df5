//! The CPUs that this thread, and the processes that it starts, may use.
//!
//! Affinity belongs to a thread. On systems other than Linux, and without the feature `launch`,
//! there is none.

use std::io;

use crate::launch::topology::Cpus;

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
        std::thread::Builder::new().spawn_scoped(scope, function).ok()?.join().ok()
    })
}

/// Returns the CPUs that a process may use, or this thread.
#[cfg(all(target_os = "linux", feature = "launch"))]
pub(crate) fn mask(process: Option<u32>) -> io::Result<Cpus> {
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_getaffinity};

    let pid = |id: u32| Pid::from_raw(i32::try_from(id).ok()?);
    let process = match process {
        Some(id) => Some(pid(id).ok_or(io::ErrorKind::InvalidInput)?),
        None => None,
    };
    let set = sched_getaffinity(process)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    Ok(cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

#[cfg(not(all(target_os = "linux", feature = "launch")))]
pub(crate) fn mask(_process: Option<u32>) -> io::Result<Cpus> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Binds this thread to these CPUs.
///
/// # Errors
/// Returns an error if the system refuses.
#[cfg(all(target_os = "linux", feature = "launch"))]
pub fn bind(cpus: &Cpus) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok()) {
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(all(target_os = "linux", feature = "launch")))]
pub fn bind(_cpus: &Cpus) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Lets this thread use all cores that its cgroup allows. Returns whether the system agreed.
pub(crate) fn widen() -> bool {
    // Linux ignores CPUs that do not exist or are not allowed.
    bind(&(0..MOST_CPUS).collect()).is_ok()
}

/// More CPUs than a mask has room for.
const MOST_CPUS: u32 = 1024;
