//! How long a rank waits for another.

use std::time::Duration;

/// The longest waits for another rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// While the ranks connect.
    pub(super) connecting: Duration,
    /// In every later call.
    pub(super) calls: Duration,
}

#[cfg(test)]
impl From<Duration> for Timeouts {
    fn from(both: Duration) -> Timeouts {
        Timeouts { connecting: both, calls: both }
    }
}
