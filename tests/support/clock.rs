//! How long tests wait.

use std::time::Duration;

/// What a slow, busy machine may take beyond what is promised; a hang takes longer.
pub const SLACK: Duration = Duration::from_secs(60);
