//! Controls the processes that a launch starts, by the means that the system provides.
//!
//! With the feature `launch`, on Unix, each worker has its own process group: the children of a
//! worker are stopped with it, and signals are passed on. On Linux, all descendants of a worker are
//! stopped with it, in any process group. Without the feature, workers are only killed.

#[cfg(all(feature = "launch", unix))]
mod adoption;
#[cfg(all(feature = "launch", target_os = "linux"))]
mod binding;
#[cfg(not(all(feature = "launch", unix)))]
mod fallback;
#[cfg(all(feature = "launch", unix))]
mod family;
#[cfg(all(feature = "launch", unix))]
mod groups;
#[cfg(all(feature = "launch", unix))]
mod processes;
#[cfg(all(feature = "launch", unix))]
mod signals;
#[cfg(all(feature = "launch", unix))]
mod watchdog;

#[cfg(all(feature = "launch", target_os = "linux"))]
pub(super) use binding::Unbound;
#[cfg(not(all(feature = "launch", unix)))]
pub(super) use fallback::{Signals, Supervisor, Waker};
#[cfg(all(feature = "launch", unix))]
pub(super) use groups::Supervisor;
#[cfg(all(feature = "launch", unix))]
pub(super) use signals::{Signals, Waker};
#[cfg(all(feature = "launch", unix))]
pub use watchdog::serve_as_watchdog;

/// Without core binding, there is nothing to release.
#[cfg(not(all(feature = "launch", target_os = "linux")))]
pub(super) struct Unbound;

#[cfg(not(all(feature = "launch", target_os = "linux")))]
impl Unbound {
    pub(super) fn of_this_thread() -> Unbound {
        Unbound
    }
}
