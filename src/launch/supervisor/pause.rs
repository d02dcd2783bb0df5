//! Waits while no worker runs, and hears signals that end the job.

use std::io;
use std::time::Duration;

use super::groups::{Waker, asks_to_end};
use super::signals::Signals;

/// A time without workers.
#[derive(Debug)]
pub(in crate::launch) struct Pause(Signals);

impl Pause {
    pub(in crate::launch) fn new() -> io::Result<Pause> {
        Signals::new().map(Pause)
    }

    /// What ends a wait.
    pub(in crate::launch) fn waker(&self) -> io::Result<Waker> {
        self.0.waker().map(Waker::new)
    }

    /// Waits until something may have changed; whether a signal arrived that ends the job.
    pub(in crate::launch) fn wait(&mut self, at_most: Option<Duration>) -> bool {
        self.0.wait(at_most).into_iter().any(asks_to_end)
    }
}
