//! The ID of this process, where no memory is cleared when a process forks.

pub(super) use std::process::id;
