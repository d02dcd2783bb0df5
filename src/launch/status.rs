//! Exit statuses as the system counts them: on Unix, a status also holds the signal that killed the
//! process.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Returns the status of a process that this signal has killed.
pub(crate) fn by_signal(number: i32) -> ExitStatus {
    ExitStatus::from_raw(number)
}

/// Returns the system's own number.
pub(crate) fn into_raw(status: ExitStatus) -> i32 {
    status.into_raw()
}

/// Returns the status with this number.
pub(crate) fn from_raw(raw: i32) -> ExitStatus {
    ExitStatus::from_raw(raw)
}
