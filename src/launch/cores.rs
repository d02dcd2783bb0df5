//! The cores that this process may use, and those that it could use without its binding.

#[cfg(all(target_os = "linux", feature = "launch"))]
mod quota;
#[cfg(all(target_os = "linux", feature = "launch"))]
mod siblings;

use std::path::PathBuf;

use crate::launch::affinity;
use crate::launch::topology::Cpus;

/// Where the system describes its processors and this process.
#[derive(Clone, Debug)]
pub struct Roots {
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { sys: "/sys".into(), proc: "/proc".into() }
    }
}

/// What a thread, and the programs that it becomes or starts, may use of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowed {
    /// The numbers of the processors that the affinity mask allows, in order. With SMT, each
    /// hardware thread is one.
    pub cpus: Cpus,
    /// The cores that these processors belong to, at least 1.
    pub cores: u32,
    /// How many processors' time the cgroup grants, if it sets a limit. It may be a fraction.
    pub quota: Option<f64>,
}

impl Allowed {
    /// Returns how many threads that compute can run at once: one for each core, within the cgroup's
    /// quota, and at least 1.
    ///
    /// Hardware threads of one core share its arithmetic units, so two of them compute no faster
    /// than one. PyTorch and MKL start one thread for each core too.
    #[must_use]
    pub fn at_once(&self) -> u32 {
        self.within_quota(self.cores)
    }

    /// Returns how many hardware threads there are within the cgroup's quota, at least 1.
    #[must_use]
    pub fn hardware_threads(&self) -> u32 {
        self.within_quota(u32::try_from(self.cpus.len()).unwrap_or(u32::MAX))
    }

    fn within_quota(&self, number: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let quota = self.quota.map_or(u32::MAX, |quota| quota.floor() as u32);
        number.min(quota).max(1)
    }
}

/// Returns what this thread may use.
#[cfg(all(target_os = "linux", feature = "launch"))]
#[must_use]
pub fn allowed(roots: &Roots) -> Allowed {
    // A mask that cannot be read allows one processor for certain.
    let cpus = affinity::allowed().unwrap_or_else(|_| Cpus::from_iter([0]));
    let cores = siblings::cores(&cpus, &roots.sys);
    Allowed { cpus, cores, quota: quota::quota(roots) }
}

/// Returns what this process may use, as the standard library counts it.
#[cfg(not(all(target_os = "linux", feature = "launch")))]
#[must_use]
pub fn allowed(_roots: &Roots) -> Allowed {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    let cores = u32::try_from(count).unwrap_or(u32::MAX);
    Allowed { cpus: (0..cores).collect(), cores, quota: None }
}

/// Returns what a process that this one starts may use: without the binding of this process, unless
/// it keeps that.
#[must_use]
pub fn of_children(keep_binding: bool) -> Allowed {
    let now = || allowed(&Roots::default());
    let then = || {
        if !keep_binding {
            affinity::widen();
        }
        now()
    };
    // Without another thread, the binding of this one is all that is known.
    affinity::elsewhere(then).unwrap_or_else(now)
}

/// Returns how many CPUs this process may use, and how many it could use without its binding. `None`
/// if the system does not tell.
///
/// CPUs that the cgroup forbids are not counted, because no option of a launcher can bring them
/// back.
#[must_use]
pub fn count() -> Option<(usize, usize)> {
    Some((affinity::allowed().ok()?.len(), affinity::usable().ok()?.len()))
}

#[cfg(all(test, target_os = "linux", feature = "launch"))]
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
            let bound = super::allowed(&Roots::default());
            assert_eq!((bound.cpus, bound.cores), (Cpus::from_iter([first as u32]), 1));
            (count(), sched_getaffinity(None).unwrap() == one)
        });
        assert_eq!(bound.join().unwrap(), (Some((1, all)), true));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let whole = affinity::mask(Some(std::process::id())).unwrap();
        assert_eq!(whole, affinity::allowed().unwrap());
    }

    #[test]
    fn a_quota_limits_the_cores_and_a_fraction_is_rounded_down() {
        let allowed = |cores, quota| Allowed { cpus: (0..2 * cores).collect(), cores, quota };
        for (cores, quota, at_once, hardware_threads) in [
            (4, None, 4, 8),
            (4, Some(2.5), 2, 2),
            (4, Some(6.0), 4, 6),
            (4, Some(0.5), 1, 1),
            (1, Some(64.0), 1, 2),
        ] {
            let found = allowed(cores, quota);
            assert_eq!(
                (found.at_once(), found.hardware_threads()),
                (at_once, hardware_threads),
                "{found:?}"
            );
        }
    }
}
