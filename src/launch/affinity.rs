//! The CPUs that this thread, and the processes that it starts, may use.
//!
//! Affinity belongs to a thread: Linux keeps a mask for each.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process::small_thread;
use crate::topology::Cpus;
use mpienv_core::seam::ancestors_in_job;

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
        widen();
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

/// Lets this thread use all cores that its cgroup allows. If Linux refuses, the binding stays.
pub(crate) fn widen() {
    // Linux ignores CPUs that do not exist or are not allowed.
    let _ = bind(&(0..MOST_CPUS).collect());
}

/// Releases this thread from a binding that was made for it alone: it gets the CPUs of the processes
/// above it, up to the mpirun that started it, and at most those that a batch system gave the job.
///
/// A mask that cannot be read, and one that Linux refuses, changes nothing.
pub(crate) fn release() {
    let above = ancestors_in_job().into_iter().map(Some);
    let masks = above.chain([None]).filter_map(|process| mask(process).ok());
    let _ = bind(&masks.fold(Cpus::default(), |all, cpus| all.or(&cpus)));
}

/// More CPUs than a mask has room for.
const MOST_CPUS: u32 = 1024;

/// Returns the CPUs that a process may use, or this thread.
pub(crate) fn mask(process: Option<u32>) -> io::Result<Cpus> {
    let pid =
        |id: u32| i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput);
    let set = sched_getaffinity(process.map(pid).transpose()?)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    Ok(cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

/// Binds this thread to these CPUs.
///
/// # Errors
/// Returns an error if the system refuses.
pub fn bind(cpus: &Cpus) -> io::Result<()> {
    let mut set = CpuSet::new();
    let known = cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok());
    known.filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// While this exists, this thread and the processes that it starts may use all cores of the job,
/// unless the binding is kept. Then the thread gets its former binding back, whatever it was bound
/// to meanwhile.
pub(crate) struct Unbound {
    before: Option<CpuSet>,
}

impl Unbound {
    pub(crate) fn of_this_thread(is_kept: bool) -> Unbound {
        let before = sched_getaffinity(None).ok();
        if !is_kept {
            release();
        }
        Unbound { before }
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before);
        }
    }
}
