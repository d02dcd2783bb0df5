//! The `mnist` program.

use std::process::Command;

use super::rank::rank_of;

/// `mnist` without variables.
pub fn mnist() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.env_clear();
    command
}

/// One of `size` ranks of `mnist` that meet at `port` and have no launcher.
pub fn rank(rank: u32, size: u32, port: u16) -> Command {
    rank_of(env!("CARGO_BIN_EXE_mnist"), rank, size, port)
}
