//! What ends or stops workers from outside: requests to end the job, and stops by the terminal.
//!
//! A request is SIGINT or SIGTERM, which this process has received, or SIGHUP if the terminal then
//! stopped a worker.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::report::of_ranks;
use crate::running::Role;
use crate::tell;
use mpienv_core::seam::signal;

/// A repetition within this time is the same request: `timeout` signals its child, then the child's
/// process group. So is the signal to this process after that to a worker.
pub(super) const SAME_REQUEST: Duration = Duration::from_millis(500);

/// The signals that end a job on request; SIGHUP only if the terminal then stops a worker.
pub(super) const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
/// Asks workers to exit.
pub(super) const SIGTERM: i32 = 15;
/// Kills a process when it writes to a pipe without a reader.
pub(super) const SIGPIPE: i32 = 13;
/// Stop a process that uses the terminal while it is in the background.
const SIGTTIN: i32 = Signal::TTIN.as_raw();
const SIGTTOU: i32 = Signal::TTOU.as_raw();

/// The first request to end the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub signal: i32,
    pub since: Instant,
    /// Whether another request has followed: the workers are killed at once.
    pub is_repeated: bool,
}

impl Request {
    pub(super) fn new(signal: i32) -> Request {
        Request { signal, since: Instant::now(), is_repeated: false }
    }

    /// Returns when workers that remain are killed.
    pub(super) fn deadline(self, grace: Duration) -> Instant {
        if self.is_repeated { self.since } else { self.since + grace }
    }
}

/// A signal that ends the job, and arrived while no worker was running.
#[derive(Clone, Copy, Debug)]
pub(super) enum Late {
    First,
    /// The job was already asked to end.
    Repeated(Request),
}

/// The longest time that workers may take: a year is as good as forever, and adding it to an
/// `Instant` cannot overflow.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 86400);
/// A time that no one waits for.
const FOREVER: Duration = Duration::from_secs(100 * 86400);

/// How long workers may take to exit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    pub after_failure: Duration,
    pub after_signal: Duration,
}

/// Returns whether a signal of this number requests the end of the job: workers that ignore it are
/// killed. SIGHUP does not, because programs that ignore it (`nohup`) are meant to go on.
pub(super) fn is_request(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGTERM)
}

/// Returns the signal that has ended a process, or the last command of a shell, which exits with 128
/// and the signal's number then.
pub(super) fn ended_by(status: ExitStatus) -> Option<i32> {
    signal(status).or_else(|| status.code()?.checked_sub(128))
}

/// Returns whether such a signal has ended a process or a shell's command.
pub(super) fn is_by_request(status: ExitStatus) -> bool {
    ended_by(status).is_some_and(is_request)
}

/// Returns whether SIGKILL has ended a process or a shell's command, which gets no notice of it.
pub(super) fn is_killed(status: ExitStatus) -> bool {
    ended_by(status) == Some(Signal::KILL.as_raw())
}

/// Returns the name of a request's signal, as users know it.
pub(super) fn name(signal: i32) -> String {
    match signal {
        SIGHUP => "SIGHUP".to_owned(),
        SIGINT => "Ctrl-C (SIGINT)".to_owned(),
        SIGTERM => "SIGTERM".to_owned(),
        number => format!("signal {number}"),
    }
}

/// Returns whether a signal is from the terminal, which stops the worker again whenever it
/// continues.
pub(super) fn is_by_terminal(signal: i32) -> bool {
    matches!(signal, SIGTTIN | SIGTTOU)
}

/// Returns why this signal has stopped a worker.
fn why_stopped(signal: i32) -> String {
    let terminal = match signal {
        SIGTTIN => "it reads the terminal (SIGTTIN)",
        SIGTTOU => "it writes to the terminal or changes its settings (SIGTTOU)",
        _ => return format!("signal {signal} stopped it; SIGCONT continues it"),
    };
    format!(
        "{terminal}, and workers run in the background; pass its input in a file or through a \
         pipe, or run the program without launch"
    )
}

/// Reports on stderr which workers have not followed a request to end the job, and what ends them.
pub(super) fn tell_remaining(ranks: Vec<u32>, signal: i32, left: Duration) {
    let who = if ranks.is_empty() { "processes".to_owned() } else { of_ranks(ranks) };
    let end = match left > FOREVER {
        true => String::new(),
        false => format!("; SIGKILL ends them in {:.0} s", left.as_secs_f64()),
    };
    tell(&format!(
        "after {}, mpienv waits for {who}; a second signal kills them at once{end}",
        name(signal)
    ));
}

/// Reports on stderr that a worker is stopped, and why. A stopped worker does nothing, and nothing
/// else reports it.
///
/// `killed_in`: the worker was asked to exit, and is killed after this time.
pub(super) fn tell_stop(role: Role, process: u32, signal: i32, killed_in: Option<Duration>) {
    let who = match role.is_scheduler {
        true => "the scheduler".to_owned(),
        false => format!("rank {}", role.rank),
    };
    let end = match killed_in {
        Some(grace) if grace > FOREVER => "; it was asked to end".to_owned(),
        Some(grace) => {
            format!("; it was asked to end, and SIGKILL ends it in {} s", grace.as_secs_f64())
        }
        None if is_by_terminal(signal) => "; Ctrl-C ends the job".to_owned(),
        None => String::new(),
    };
    let why = why_stopped(signal);
    tell(&format!("{who} (process {process}) is stopped: {why}{end}"));
}
