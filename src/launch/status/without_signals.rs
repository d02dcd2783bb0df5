//! Exit statuses on systems without signals.

use std::process::ExitStatus;

pub(crate) fn by_signal(_number: i32) -> ExitStatus {
    ExitStatus::default()
}

pub(crate) fn into_raw(status: ExitStatus) -> i32 {
    status.code().unwrap_or(1)
}

#[cfg(windows)]
pub(crate) fn from_raw(raw: i32) -> ExitStatus {
    std::os::windows::process::ExitStatusExt::from_raw(raw.cast_unsigned())
}

#[cfg(not(windows))]
pub(crate) fn from_raw(_raw: i32) -> ExitStatus {
    ExitStatus::default()
}
