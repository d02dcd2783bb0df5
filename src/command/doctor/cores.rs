//! Checks whether this process may use all cores that its cgroup allows.

use super::finding;
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use mpienv_core::seam::LauncherSeam as _;

/// Returns how many cores this process may use, and how many it could use without its binding.
///
/// Cores that the cgroup forbids are not counted, because no option of a launcher can bring them
/// back.
#[cfg(target_os = "linux")]
pub(crate) fn count() -> Option<(usize, usize)> {
    let count = || usize::try_from(rustix::thread::sched_getaffinity(None).ok()?.count()).ok();
    let widened = move || widen().then(count).flatten();
    // Affinity belongs to a thread, so the binding of the calling thread stays.
    let widened = std::thread::Builder::new().spawn(widened).ok()?.join().ok()??;
    Some((count()?, widened))
}

/// Lets this thread use all cores that its cgroup allows. Returns whether Linux agreed.
#[cfg(target_os = "linux")]
pub(crate) fn widen() -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
    // Linux ignores cores that do not exist or are not allowed.
    sched_setaffinity(None, &all).is_ok()
}

/// Returns how many cores a child process may use, within its container's share and, if it keeps
/// one, its binding.
pub(crate) fn usable(keep_binding: bool) -> u32 {
    let count = move || {
        let _ = !keep_binding && widen();
        std::thread::available_parallelism()
            .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
    };
    // Affinity belongs to a thread, so the binding of the calling thread stays.
    std::thread::Builder::new()
        .spawn(count)
        .ok()
        .and_then(|counted| counted.join().ok())
        .unwrap_or(1)
}

/// Without core binding, there is nothing to report.
#[cfg(not(target_os = "linux"))]
pub(crate) fn count() -> Option<(usize, usize)> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn widen() -> bool {
    false
}

/// Compares the allowed cores with those that exist, the requested threads and the node's ranks.
pub(super) fn binding(
    info: &ClusterInfo,
    environment: &Environment,
    cores: Option<(usize, usize)>,
) -> Option<Finding> {
    let (allowed, all) = cores.filter(|(allowed, all)| allowed < all)?;
    let threads = threads(environment);
    let too_many = threads.is_some_and(|threads| threads > allowed);
    let severity = if too_many { Severity::Warning } else { Severity::Note };
    let threads =
        threads.map_or(String::new(), |threads| format!(", with OMP_NUM_THREADS={threads}"));
    let ranks = info.local_world_size().filter(|&ranks| ranks > 1);
    let ranks = ranks.map_or(String::new(), |ranks| match all / ranks as usize {
        share if share > allowed => {
            format!("; each of this node's {ranks} ranks could have {share}")
        }
        _ => format!("; this node has {ranks} ranks"),
    });
    let unbind = info.launcher().advice().unbind;
    let by = unbind.map_or("what started it", |_| info.launcher().title());
    let unbind = unbind.map_or_else(
        || "start it without taskset, numactl and the like (`mpirun --bind-to none`)".to_owned(),
        |unbind| format!("start it with {unbind}"),
    );
    finding(
        severity,
        "cpu-binding",
        format!("bound to {allowed} of {all} cores, by {by}{threads}{ranks}"),
        "threads and workers that this process starts share these cores",
        format!("{unbind}, or use fewer threads"),
    )
}

/// Returns the number of OpenMP threads. In a list for nested regions, the first number counts.
fn threads(environment: &Environment) -> Option<usize> {
    environment.get("OMP_NUM_THREADS")?.to_str()?.split(',').next()?.trim().parse().ok()
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
