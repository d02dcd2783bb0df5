//! Times that depend on how fast the machine is now.

use std::time::{Duration, Instant};

/// A timeout that must pass after others were in time: many times as long as `work` takes on this
/// machine now.
pub(crate) fn longer_than(least: Duration, work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    least.max(50 * begun.elapsed())
}
