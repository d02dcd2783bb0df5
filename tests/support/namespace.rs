//! Shell scripts in separate namespaces: file systems, process numbers.

use std::process::{Command, Output};

use super::tool::{clean, is_there, missing};

/// Runs a shell script under `unshare` with these options, as root in a separate user namespace.
///
/// Returns `None` if the system does not allow such namespaces; the test must then return.
pub fn unshared(options: &[&str], script: &str) -> Option<Output> {
    if !is_there("unshare") {
        return None;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.arg("--map-root-user").args(options);
        command
    };
    if !unshare().arg("true").output().unwrap().status.success() {
        missing("namespaces for users");
        return None;
    }
    let mut command = clean("unshare");
    Some(command.arg("--map-root-user").args(options).args(["sh", "-c", script]).output().unwrap())
}
