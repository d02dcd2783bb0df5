//! Lets workers use every core, and not only those to which this process is bound. Otherwise all
//! workers of a node would share the one core to which mpirun binds a single process.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::launch::affinity;

/// While this exists, this thread and the processes that it starts may use every core that the
/// cgroup allows, unless the binding is kept. Then the thread gets its former binding back,
/// whatever it was bound to meanwhile.
pub(crate) struct Unbound {
    before: Option<CpuSet>,
}

impl Unbound {
    pub(crate) fn of_this_thread(is_kept: bool) -> Unbound {
        let before = sched_getaffinity(None).ok();
        // If Linux refuses, the binding stays.
        let _ = !is_kept && affinity::widen();
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
