//! Affinity masks, as Linux keeps them for each thread.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::launch::topology::Cpus;

/// Returns the CPUs that a process may use, or this thread.
pub(crate) fn mask(process: Option<u32>) -> io::Result<Cpus> {
    let pid = |id: u32| Pid::from_raw(i32::try_from(id).ok()?);
    let process = match process {
        Some(id) => Some(pid(id).ok_or(io::ErrorKind::InvalidInput)?),
        None => None,
    };
    let set = sched_getaffinity(process)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    Ok(cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

/// Binds this thread to these CPUs.
///
/// # Errors
/// Returns an error if the system refuses.
pub fn bind(cpus: &Cpus) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok()) {
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    Ok(sched_setaffinity(None, &set)?)
}
