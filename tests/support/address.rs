//! Addresses of this host.

use super::tool::clean;

/// An address of this host that is not loopback; without one, the test prints that and must
/// return.
pub fn own_address() -> Option<String> {
    let output = clean("hostname").arg("-I").output();
    let addresses = output.map(|output| String::from_utf8(output.stdout).unwrap());
    let addresses = addresses.unwrap_or_default();
    let found = addresses.split_whitespace().find(|address| address.contains('.'));
    if found.is_none() {
        eprintln!("skipped: only loopback addresses");
    }
    found.map(str::to_owned)
}
