//! Controls the processes that a launch starts, by the means that the system provides.
//!
//! With the feature `launch`, on Unix, each worker has its own process group: the children of a
//! worker are stopped with it, and signals are passed on. On Linux, all descendants of a worker are
//! stopped with it, in any process group. Without the feature, workers are only killed.

#[cfg_attr(not(all(feature = "launch", unix)), path = "supervisor/fallback.rs")]
mod groups;

#[cfg(all(feature = "launch", unix))]
pub use groups::serve_as_watchdog;
pub(super) use groups::{Signals, Supervisor, Unbound, Waker};
