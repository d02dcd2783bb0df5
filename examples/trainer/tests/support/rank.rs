//! A rank of a job that has no launcher.

use std::process::Command;

use super::mnist::mnist;

/// One of `size` ranks of `mnist` that meet at `port`.
pub fn rank(rank: u32, size: u32, port: u16) -> Command {
    let mut command = mnist();
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}
