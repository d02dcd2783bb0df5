//! The `mnist` program.

use std::process::Command;

/// `mnist` without variables.
pub fn mnist() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.env_clear();
    command
}
