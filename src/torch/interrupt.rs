//! Ends a call that waits when a signal's handler says so.
//!
//! Python runs the handlers of signals in its main thread, between two steps of the program. A call
//! is one step, so Ctrl-C would end it only when the other ranks have come.
#![expect(unsafe_code, reason = "a C ABI takes addresses")]

use mpienv_collective::seam::ask_while_waiting;

use crate::abi::{Handle, call};
use crate::failure::Failure;

/// Lets the calls of a group that wait in the process's main thread ask `is_canceled` several times
/// a second. Unless it returns 0, the call is canceled.
///
/// # Safety
/// As [`call`]; `is_canceled` stays as long as the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_ask(
    handle: *const Handle,
    is_canceled: Option<extern "C" fn() -> i32>,
) -> i32 {
    // SAFETY: the caller vouches for the handle.
    unsafe {
        call(handle, |group, _| {
            let no_question = || Failure::argument("no question");
            let is_canceled = is_canceled.ok_or_else(no_question)?;
            ask_while_waiting(group, move || is_main_thread() && is_canceled() != 0);
            Ok(())
        })
    }
}

/// No other thread may ask: Python ends a thread that enters it while it shuts down.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}
