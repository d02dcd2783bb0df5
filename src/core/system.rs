//! What the system says about itself and this process.

/// Returns the host's name.
pub(crate) fn host_name() -> Option<String> {
    Some(rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// Returns the user of this process, where the system has numbers for users.
pub fn user() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}
