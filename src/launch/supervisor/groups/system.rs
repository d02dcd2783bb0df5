//! What only Linux offers: a handle that refers to one process, and the adoption of orphans.

use rustix::io::{self, Errno};
use rustix::process::{
    Pid, PidfdFlags, Signal, child_subreaper, getpid, kill_process, pidfd_open, pidfd_send_signal,
    set_child_subreaper,
};

/// Sends a signal to the process with this ID if it is the one that is meant.
pub(super) fn send_if(is_meant: impl Fn() -> bool, signal: Signal, id: Pid) -> io::Result<()> {
    match pidfd_open(id, PidfdFlags::empty()) {
        // The handle refers to one process, so the check stays valid even if the process exits and
        // another one gets its ID.
        Ok(held) if is_meant() => pidfd_send_signal(&held, signal),
        Err(Errno::SRCH) => Ok(()),
        // The kernel is older than 5.3, a sandbox forbids it, or too many files are open.
        Err(_) if is_meant() => kill_process(id, signal),
        _ => Ok(()),
    }
}

/// Starts or stops adopting orphans. Returns whether the system agreed.
pub(super) fn adopt(does: bool) -> bool {
    set_child_subreaper(does.then(getpid)).is_ok()
}

/// Returns whether this process adopts orphans now.
pub(super) fn adopts() -> bool {
    matches!(child_subreaper(), Ok(Some(_)))
}
