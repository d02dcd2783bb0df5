//! What the standard library counts.

use super::{Allowed, Roots};

/// Returns what this process may use, as the standard library counts it.
#[must_use]
pub fn allowed(_roots: &Roots) -> Allowed {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    let cores = u32::try_from(count).unwrap_or(u32::MAX);
    Allowed { cpus: (0..cores).collect(), cores, quota: None }
}
