//! The signal that Linux sends when the parent exits.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

pub(super) fn signal_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = i32::try_from(parent).ok().and_then(Pid::from_raw);
    if parent.is_none() || getppid() != parent {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the process that started this one has exited",
        ));
    }
    Ok(())
}
