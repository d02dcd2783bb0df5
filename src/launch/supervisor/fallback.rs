//! Waits for workers and kills them with the standard library alone.
//!
//! Each signal has its default effect, stops are not detected, and the processes that a worker
//! leaves behind are not known.

#[path = "groups/no_binding.rs"]
mod binding;

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::launch::stop::{Late, Request, Stop};

pub(crate) use self::binding::Unbound;

/// The interval at which the workers are checked.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Returns false: without process groups, nothing needs a watchdog.
pub(crate) fn serve() -> bool {
    false
}

/// Waits until something may have changed.
fn look_later(at_most: Option<Duration>) {
    thread::sleep(at_most.map_or(LOOK_EVERY, |most| most.min(LOOK_EVERY)));
}

/// Supervises the workers.
#[derive(Debug)]
pub(crate) struct Supervisor;

/// Interrupts a wait from another thread.
#[derive(Debug)]
pub(crate) struct Waker;

impl Waker {
    pub(crate) fn wake(&self) {}
}

impl Supervisor {
    pub(crate) fn new(_subreaper: bool, _signals: Arc<Signals>) -> Supervisor {
        Supervisor
    }

    pub(crate) fn prepare(&self, _command: &mut Command) {}

    pub(crate) fn started(&mut self, _child: &Child) {}

    /// Returns the status of a worker that has exited.
    pub(crate) fn try_wait(&mut self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        child.try_wait()
    }

    pub(crate) fn is_dying(&self, _child: &Child) -> bool {
        false
    }

    pub(crate) fn newly_stopped(&mut self, _child: &Child) -> Option<Stop> {
        None
    }

    /// Does nothing: a worker whose peers are gone exits by itself or is killed.
    pub(crate) fn terminate(&mut self, _spares_interrupted: bool) {}

    pub(crate) fn kill(&mut self, children: &mut dyn Iterator<Item = &mut Child>) {
        for child in children {
            // A worker that has just exited cannot be killed and need not be.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn has_remains(&mut self) -> bool {
        false
    }

    pub(crate) fn wait(&mut self, at_most: Option<Duration>) {
        look_later(at_most);
    }

    /// Does nothing, because every worker that has exited has been reaped.
    pub(crate) fn let_go(&mut self) {}

    pub(crate) fn has_asked_to_end(&self) -> bool {
        false
    }

    pub(crate) fn has_passed(&self, _signal: i32) -> bool {
        false
    }
}

#[derive(Debug)]
pub(crate) struct Signals;

impl Signals {
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals)
    }

    /// Returns a waker that does nothing, because no wait is longer than one check.
    pub(crate) fn waker(&self) -> io::Result<Waker> {
        Ok(Waker)
    }

    pub(crate) fn wait_for_end(&self, at_most: Option<Duration>) -> Option<Late> {
        look_later(at_most);
        None
    }

    pub(crate) fn request(&self) -> Option<Request> {
        None
    }

    pub(crate) fn has_asked(&self) -> bool {
        false
    }

    pub(crate) fn is_hurried(&self) -> bool {
        false
    }

    pub(crate) fn end_process(&self) {}

    pub(crate) fn outlive(self: Arc<Self>) {}
}
