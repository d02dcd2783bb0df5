//! Output of workers that could not be written, and how the launch learns of it.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::launch::error::LaunchError;
use crate::launch::supervisor::Waker;

/// The first failure to write any worker's output.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    first: Arc<Mutex<Option<LaunchError>>>,
    waker: Arc<Waker>,
}

impl Faults {
    /// Starts without a fault. Each fault wakes the launch.
    pub(crate) fn new(waker: Waker) -> Faults {
        Faults { first: Arc::default(), waker: Arc::new(waker) }
    }

    /// Adds a fault. Breaks off if the reader has exited, as `head` does: the worker then notices
    /// it as without a launch.
    pub(super) fn add(&self, stream: &'static str, error: io::Error) -> ControlFlow<()> {
        let fault = LaunchError::Output { stream, error };
        let is_by_reader = fault.is_by_reader();
        self.lock().get_or_insert(fault);
        self.waker.wake();
        if is_by_reader { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns whether there is a fault that was not taken.
    pub(crate) fn is_left(&self) -> bool {
        self.lock().is_some()
    }

    /// Takes the first fault if `is_such` accepts it.
    pub(crate) fn take_if(
        &self,
        is_such: impl FnOnce(&LaunchError) -> bool,
    ) -> Option<LaunchError> {
        self.lock().take_if(|fault| is_such(fault))
    }

    fn lock(&self) -> MutexGuard<'_, Option<LaunchError>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
