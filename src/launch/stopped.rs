//! What is said of a worker that a signal has stopped.

use std::fmt;
use std::io::{self, Write};

use crate::launch::role::Role;

/// Why a worker is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(all(feature = "launch", unix)), expect(dead_code, reason = "nothing tells of stops here"))]
pub(super) enum Stop {
    /// It read the terminal, and is not in the foreground.
    ReadsTerminal,
    /// It changed the terminal's settings or wrote to it, and is not in the foreground.
    SetsTerminal,
    /// Somebody sent it this signal.
    Signal(i32),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terminal = match self {
            Stop::ReadsTerminal => "it reads the terminal (SIGTTIN)",
            Stop::SetsTerminal => "it writes to the terminal or changes its settings (SIGTTOU)",
            Stop::Signal(number) => return write!(f, "signal {number} stopped it; SIGCONT continues it"),
        };
        write!(
            f,
            "{terminal}, and workers run in the background; pass its input in a file or through a pipe, or run the \
             program without launch; Ctrl-C ends the job"
        )
    }
}

/// Says on stderr that a worker is stopped, and why: it does nothing more, and nothing else says so.
pub(super) fn tell(role: Role, process: u32, stop: Stop) {
    let role = match role {
        Role::Rank(rank) => format!("rank {rank}"),
        Role::Scheduler => "the scheduler".to_owned(),
    };
    let text = format!("mpienv: {role} (process {process}) is stopped: {stop}\n");
    // Nobody reads a stderr that is closed.
    let _ = io::stderr().write_all(text.as_bytes());
}
