//! Programs that run cargo.

use std::process::Command;

use super::tool::{clean, inherited};

/// A clean program with the variables that decide where cargo finds its files and what it has to
/// compile again.
pub fn with_cargo(program: &str) -> Command {
    let mut command = clean(program);
    for name in ["CARGO_HOME", "RUSTUP_HOME", "CARGO_TARGET_DIR", "CARGO_INCREMENTAL"] {
        command.envs(inherited(name).map(|value| (name, value)));
    }
    command
}
