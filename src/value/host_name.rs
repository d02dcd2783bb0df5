//! The name of the host that this process runs on.

/// This host's name, as its system has it: what errors and maps of a job name a rank's host by.
///
/// `None` if the system does not provide it: outside of Unix, and without the features `launch` and `rendezvous`.
///
/// ```
/// let host = mpienv::host_name().unwrap_or_else(|| "an unknown host".into());
/// println!("running on {host}");
/// ```
#[must_use]
pub fn host_name() -> Option<String> {
    #[cfg(all(unix, any(feature = "launch", feature = "rendezvous")))]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(all(unix, any(feature = "launch", feature = "rendezvous"))))]
    let name = String::new();
    (!name.is_empty()).then_some(name)
}
