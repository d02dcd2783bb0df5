//! How long tests wait.

use std::time::Duration;

/// How much longer than promised a slow, busy machine may take; only a hang takes longer.
pub const SLACK: Duration = Duration::from_secs(20 * 60);
