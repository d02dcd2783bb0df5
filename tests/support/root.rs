//! Tests that need root, which daemons and network namespaces require.

use std::process::Command;

use super::tool::missing;

/// Whether this process is root; if not, the test prints that and must return.
#[must_use]
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    let root = output.stdout == b"0\n";
    if !root {
        missing("root");
    }
    root
}
