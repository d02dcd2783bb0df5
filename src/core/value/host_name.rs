//! The name of the host that this process runs on.

use std::fs;

/// Where Linux has the name, and where most systems keep it if /proc is not there.
const FILES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];

/// Returns this host's name as the system reports it. Errors and job maps use it to name a rank's
/// host.
///
/// Returns `None` if the system provides no name.
///
/// ```
/// let host = mpienv::host_name().unwrap_or_else(|| "an unknown host".into());
/// println!("running on {host}");
/// ```
#[must_use]
pub fn host_name() -> Option<String> {
    let mut names = FILES.iter().filter_map(|file| fs::read_to_string(file).ok());
    names.next().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}
