//! The cores that this process may use, and those that it could use without its binding.

/// Returns how many cores this process may use, and how many it could use without its binding.
///
/// Cores that the cgroup forbids are not counted, because no option of a launcher can bring them
/// back.
#[cfg(target_os = "linux")]
pub fn count() -> Option<(usize, usize)> {
    let count = || usize::try_from(rustix::thread::sched_getaffinity(None).ok()?.count()).ok();
    let widened = move || widen().then(count).flatten();
    // Affinity belongs to a thread, so the binding of the calling thread stays.
    let widened = std::thread::Builder::new().spawn(widened).ok()?.join().ok()??;
    Some((count()?, widened))
}

/// Lets this thread use all cores that its cgroup allows. Returns whether Linux agreed.
#[cfg(target_os = "linux")]
pub fn widen() -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
    // Linux ignores cores that do not exist or are not allowed.
    sched_setaffinity(None, &all).is_ok()
}

/// Without core binding, there is nothing to report.
#[cfg(not(target_os = "linux"))]
pub fn count() -> Option<(usize, usize)> {
    None
}

#[cfg(not(target_os = "linux"))]
pub fn widen() -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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
            (count(), sched_getaffinity(None).unwrap() == one)
        });
        assert_eq!(bound.join().unwrap(), (Some((1, all)), true));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
