//! Output of workers that could not be written, and how the launch learns of it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::launch::supervisor::Waker;

/// Lines of one stream that could not be written.
#[derive(Debug)]
pub(crate) struct Fault {
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    pub error: io::Error,
}

impl Fault {
    /// Returns whether the reader has exited, as `head` does. The workers then notice it as without
    /// a launch.
    pub(crate) fn is_by_reader(&self) -> bool {
        self.error.kind() == io::ErrorKind::BrokenPipe
    }
}

/// The first failure to write any worker's output.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    first: Arc<Mutex<Option<Fault>>>,
    waker: Arc<Waker>,
}

impl Faults {
    /// Starts without a fault. Each fault wakes the launch.
    pub(crate) fn new(waker: Waker) -> Faults {
        Faults { first: Arc::default(), waker: Arc::new(waker) }
    }

    pub(super) fn add(&self, fault: Fault) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
        self.waker.wake();
    }

    /// Returns whether there is a fault that was not taken.
    pub(crate) fn is_left(&self) -> bool {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes the first fault if `is_such` accepts it.
    pub(crate) fn take_if(&self, is_such: impl FnOnce(&Fault) -> bool) -> Option<Fault> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take_if(|fault| is_such(fault))
    }
}
