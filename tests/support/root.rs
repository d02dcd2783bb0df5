//! What only root may do.

use std::process::Command;

use crate::tool::missing;

/// Daemons and network namespaces are root's.
#[must_use]
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    let root = output.stdout == b"0\n";
    if !root {
        missing("root");
    }
    root
}
