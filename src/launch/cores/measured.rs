//! What Linux says of this thread: its affinity mask, the cores of that, and its cgroup's quota.

mod quota;
mod siblings;

use crate::launch::affinity;
use crate::launch::topology::Cpus;

use super::{Allowed, Roots};

/// Returns what this thread may use.
#[must_use]
pub fn allowed(roots: &Roots) -> Allowed {
    // A mask that cannot be read allows one processor for certain.
    let cpus = affinity::allowed().unwrap_or_else(|_| Cpus::from_iter([0]));
    let cores = siblings::cores(&cpus, &roots.sys);
    Allowed { cpus, cores, quota: quota::quota(roots) }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::super::count;
    use super::*;

    #[test]
    fn a_bound_thread_counts_its_own_cores_and_all_cores_and_stays_bound() {
        let (allowed, all) = count().unwrap();
        assert!(allowed <= all);
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        // A separate thread, because the binding would affect the next test.
        let bound = std::thread::spawn(move || {
            sched_setaffinity(None, &one).unwrap();
            let bound = super::allowed(&Roots::default());
            assert_eq!((bound.cpus, bound.cores), (Cpus::from_iter([first as u32]), 1));
            (count(), sched_getaffinity(None).unwrap() == one)
        });
        assert_eq!(bound.join().unwrap(), (Some((1, all)), true));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let whole = affinity::mask(Some(std::process::id())).unwrap();
        assert_eq!(whole, affinity::allowed().unwrap());
    }
}
