//! Reports a worker that a signal has stopped.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use crate::launch::ending::of_ranks;
use crate::launch::role::Role;
use crate::launch::stop::Name;

/// A time that no one waits for.
const FOREVER: Duration = Duration::from_secs(100 * 86400);

/// Why a worker is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "launch", unix)),
    expect(dead_code, reason = "stops are not detected here")
)]
pub(super) enum Stop {
    /// It read the terminal while in the background.
    ReadsTerminal,
    /// It changed the terminal's settings or wrote to it while in the background.
    SetsTerminal,
    /// It received this signal.
    Signal(i32),
}

impl Stop {
    /// Returns whether the terminal stops the worker, and stops it again whenever it continues.
    pub(super) fn is_by_terminal(self) -> bool {
        matches!(self, Stop::ReadsTerminal | Stop::SetsTerminal)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terminal = match self {
            Stop::ReadsTerminal => "it reads the terminal (SIGTTIN)",
            Stop::SetsTerminal => "it writes to the terminal or changes its settings (SIGTTOU)",
            Stop::Signal(number) => {
                return write!(f, "signal {number} stopped it; SIGCONT continues it");
            }
        };
        write!(
            f,
            "{terminal}, and workers run in the background; pass its input in a file or through a pipe, or run the \
             program without launch"
        )
    }
}

/// Reports on stderr which workers have not followed a request to end the job, and what ends them.
pub(super) fn tell_remaining(ranks: Vec<u32>, signal: i32, left: Duration) {
    let (left_over, name) =
        (if ranks.is_empty() { "processes".to_owned() } else { of_ranks(ranks) }, Name(signal));
    let end = if left > FOREVER {
        String::new()
    } else {
        format!("; SIGKILL ends them in {:.0} s", left.as_secs_f64())
    };
    let text = format!(
        "mpienv: after {name}, mpienv waits for {left_over}; a second signal kills them at once{end}\n"
    );
    // If stderr is closed, it cannot be reported.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Reports on stderr that a worker is stopped, and why. A stopped worker does nothing, and nothing
/// else reports it.
///
/// `killed_in`: the worker was asked to exit, and is killed after this time.
pub(super) fn tell(role: Role, process: u32, stop: Stop, killed_in: Option<Duration>) {
    let role = match role {
        Role::Rank(rank) => format!("rank {rank}"),
        Role::Scheduler => "the scheduler".to_owned(),
    };
    let end = match killed_in {
        Some(grace) => {
            format!("; it was asked to end, and SIGKILL ends it in {} s", grace.as_secs_f64())
        }
        None if stop.is_by_terminal() => "; Ctrl-C ends the job".to_owned(),
        None => String::new(),
    };
    let text = format!("mpienv: {role} (process {process}) is stopped: {stop}{end}\n");
    // If stderr is closed, the stop cannot be reported.
    let _ = io::stderr().write_all(text.as_bytes());
}
