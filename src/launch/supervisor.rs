//! How this system lets a process rule over those that it started.
//!
//! With the feature `launch`, on Unix, each worker has its own process group: a worker's own
//! children end with it, and signals are passed on. On Linux so it is with all that descends from a
//! worker, in whatever group. Without the feature workers are only killed.

#[cfg(all(feature = "launch", target_os = "linux"))]
mod binding;
#[cfg(all(feature = "launch", unix))]
mod descendants;
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
pub(super) use fallback::{Supervisor, Waker};
#[cfg(all(feature = "launch", unix))]
pub(super) use groups::{Supervisor, Waker};
#[cfg(all(feature = "launch", unix))]
pub use watchdog::serve_as_watchdog;

/// Elsewhere no process binds another.
#[cfg(not(all(feature = "launch", target_os = "linux")))]
pub(super) struct Unbound;

#[cfg(not(all(feature = "launch", target_os = "linux")))]
impl Unbound {
    pub(super) fn of_this_thread() -> Unbound {
        Unbound
    }
}
