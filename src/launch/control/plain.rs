//! Only what the standard library can: workers are waited for and killed.

use std::io;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

/// How often the workers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The workers' ruler.
#[derive(Debug)]
pub(in crate::launch) struct Control;

impl Control {
    pub(in crate::launch) fn new(_adopts: bool) -> io::Result<Control> {
        Ok(Control)
    }

    pub(in crate::launch) fn prepare(&self, _command: &mut Command) {}

    pub(in crate::launch) fn started(&mut self, _child: &Child) {}

    pub(in crate::launch) fn ended(&mut self, _child: &Child) {}

    /// Asks nothing: a worker whose peers are gone ends by itself, or is killed.
    pub(in crate::launch) fn terminate(&mut self) {}

    pub(in crate::launch) fn kill(&mut self, children: &mut dyn Iterator<Item = &mut Child>) {
        for child in children {
            // One that has just ended cannot be killed, and need not be.
            let _ = child.kill();
        }
    }

    /// Whether a worker that has ended left processes behind.
    pub(in crate::launch) fn has_remains(&mut self) -> bool {
        false
    }

    /// Waits until something may have changed.
    pub(in crate::launch) fn wait(&mut self, at_most: Option<Duration>) {
        thread::sleep(at_most.map_or(LOOK_EVERY, |most| most.min(LOOK_EVERY)));
    }

    /// No signal is passed on.
    pub(in crate::launch) fn stop_listening(&mut self) {}

    /// Whether a signal of this number has been passed on.
    pub(in crate::launch) fn has_passed(&self, _signal: i32) -> bool {
        false
    }
}
