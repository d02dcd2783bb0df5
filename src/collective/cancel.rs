//! Ends the calls of a group from another thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ends the calls of a [`Group`](super::Group) from another thread: see
/// [`Group::canceller`](super::Group::canceller).
#[derive(Clone, Debug)]
pub struct Canceller(pub(super) Arc<Cancel>);

impl Canceller {
    /// Makes the call that runs now, or the next one, and all later calls fail with
    /// [`CollectiveError::Canceled`](super::CollectiveError::Canceled).
    pub fn cancel(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }
}

/// Whether the calls are canceled, and what wakes those that wait.
#[derive(Default)]
pub struct Cancel {
    is_set: AtomicBool,
    wakers: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl Cancel {
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Adds what wakes a call that waits.
    pub(super) fn wake_by(&self, wake: impl Fn() + Send + 'static) {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(wake));
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_set", &self.is_set()).finish_non_exhaustive()
    }
}
