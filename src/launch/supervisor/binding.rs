//! Lets workers use every core, and not only those to which this process is bound.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// While this exists, this thread and the processes that it starts may use every core that the
/// cgroup allows.
pub(crate) struct Unbound {
    before: Option<CpuSet>,
}

impl Unbound {
    pub(crate) fn of_this_thread() -> Unbound {
        let before = sched_getaffinity(None).ok();
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
        // Linux ignores cores that do not exist or are not allowed. If it refuses, the binding
        // stays.
        let _ = sched_setaffinity(None, &all);
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
