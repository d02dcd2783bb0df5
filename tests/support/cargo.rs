//! Programs that run cargo.

use std::process::Command;

use super::tool::{clean, inherited};

/// A clean program with the variables that decide where cargo finds its files, which compiler it
/// runs, and what it has to compile again. rustup installs and updates nothing.
pub fn with_cargo(program: &str) -> Command {
    let mut command = clean(program);
    for name in
        ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR", "CARGO_INCREMENTAL"]
    {
        command.envs(inherited(name).map(|value| (name, value)));
    }
    command.env("RUSTUP_AUTO_INSTALL", "0");
    command
}
