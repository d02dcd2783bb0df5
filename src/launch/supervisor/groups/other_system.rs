//! Unix systems other than Linux: a process is known by its number alone, and orphans go to init.

use rustix::io;
use rustix::process::{Pid, Signal, kill_process};

pub(super) fn send_if(is_meant: impl Fn() -> bool, signal: Signal, id: Pid) -> io::Result<()> {
    if is_meant() { kill_process(id, signal) } else { Ok(()) }
}

pub(super) fn adopt(_does: bool) -> bool {
    false
}

pub(super) fn adopts() -> bool {
    false
}
