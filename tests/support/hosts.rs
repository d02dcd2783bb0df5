//! Several hosts on this machine.

use std::path::Path;
use std::process::Command;

use crate::root::is_root;
use crate::tool::{clean, is_there};

/// Runs the command that is added to it on the first of several fresh hosts: nodeA 10.77.0.1, nodeB 10.77.0.2, ...
///
/// Sets of hosts with different tags live side by side. `None`, and said so, where something that it needs is missing.
pub fn hosts(tag: &str, count: u32) -> Option<Command> {
    if !["ip", "sshd", "ssh", "unshare"].iter().all(|program| is_there(program)) || !is_root() {
        return None;
    }
    let mut command = clean("tests/hosts/two-hosts.sh");
    command.env("TWO_HOSTS_TAG", tag).env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // Remote ranks have sshd's PATH; /tmp is each host's own.
    let binary = Path::new(env!("CARGO_BIN_EXE_mpienv"));
    let target = binary.ancestors().nth(2).unwrap();
    if target.starts_with("/tmp") {
        command.env("TWO_HOSTS_SHARE", target);
    }
    command.args(["run", "-n", &count.to_string(), "--", "timeout", "60"]);
    Some(command)
}
