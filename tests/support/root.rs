//! Tests that need root: daemons and network namespaces are root's.

use std::process::Command;

use super::tool::missing;

/// Whether this is root; where not, the test says so and is to return.
#[must_use]
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    let root = output.stdout == b"0\n";
    if !root {
        missing("root");
    }
    root
}
