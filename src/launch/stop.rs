//! A request to end the job: SIGINT or SIGTERM, which this process has received, or SIGHUP if the
//! terminal then stopped a worker.

use std::fmt;
use std::time::{Duration, Instant};

/// A repetition within this time is the same request: `timeout` signals its child, then the child's
/// process group.
#[cfg_attr(not(all(feature = "launch", unix)), expect(dead_code, reason = "no signal is caught"))]
pub(super) const SAME_REQUEST: Duration = Duration::from_millis(500);

/// The signals that end a job on request.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// The first request to end the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub signal: i32,
    pub since: Instant,
    /// Whether another request has followed: the workers are killed at once.
    pub is_repeated: bool,
}

impl Request {
    #[cfg_attr(
        not(all(feature = "launch", unix)),
        expect(dead_code, reason = "no signal is caught")
    )]
    pub(super) fn new(signal: i32) -> Request {
        Request { signal, since: Instant::now(), is_repeated: false }
    }

    /// A request to end a worker that the terminal has stopped after a hang-up.
    pub(super) fn by_hang_up() -> Request {
        Request { signal: SIGHUP, since: Instant::now(), is_repeated: false }
    }

    /// Returns when workers that remain are killed.
    pub(super) fn deadline(self, grace: Duration) -> Instant {
        if self.is_repeated { self.since } else { self.since + grace }
    }
}

/// The longest time that workers may take: a year is as good as forever, and adding it to an
/// `Instant` cannot overflow.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 86400);

/// How long workers may take to exit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    pub after_failure: Duration,
    pub after_signal: Duration,
}

/// Returns whether a signal of this number requests the end of the job.
pub(super) fn is_request(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGTERM)
}

/// The name of a request's signal, as users know it.
pub(super) struct Name(pub i32);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SIGHUP => f.write_str("SIGHUP"),
            SIGINT => f.write_str("Ctrl-C (SIGINT)"),
            SIGTERM => f.write_str("SIGTERM"),
            number => write!(f, "signal {number}"),
        }
    }
}
