//! Workers get every core, not those alone to which this process is bound.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// While it lives this thread may use every core that its cgroup allows, and so may whom it starts.
pub(in crate::launch) struct Unbound {
    before: Option<CpuSet>,
}

impl Unbound {
    pub(in crate::launch) fn of_this_thread() -> Unbound {
        let before = sched_getaffinity(None).ok();
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
        // Linux leaves out what is not there or not allowed. Where it refuses, the binding stays.
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
