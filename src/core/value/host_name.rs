//! The name of the host that this process runs on.

use crate::system;

/// Returns this host's name as the system reports it. Errors and job maps use it to name a rank's
/// host.
///
/// Returns `None` if the system does not provide a name: outside Unix, and if neither of the
/// features `launch` and `rendezvous` is enabled.
///
/// ```
/// let host = mpienv::host_name().unwrap_or_else(|| "an unknown host".into());
/// println!("running on {host}");
/// ```
#[must_use]
pub fn host_name() -> Option<String> {
    system::host_name().filter(|name| !name.is_empty())
}
