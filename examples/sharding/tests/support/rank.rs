//! A rank of a job that has no launcher.

use std::process::Command;

/// A program without variables but those of one of `size` ranks that meet at `port`.
pub fn rank_of(program: &str, rank: u32, size: u32, port: u16) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}
