//! Outside Unix, and without the feature `system`, the system is not asked.

pub(crate) fn host_name() -> Option<String> {
    None
}

/// Returns `None`.
pub fn user() -> Option<u32> {
    None
}
