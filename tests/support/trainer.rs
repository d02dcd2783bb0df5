//! The bundled trainer's programs, for tests of the command.

use std::path::Path;
use std::process::Command;

use crate::tool::{inherited, missing};

/// Has a command find the programs of the trainer; `None`, and said so, where they are not built.
///
/// They are beside the command under test where all packages are tested together; else `cargo build --release` has
/// built them.
pub fn with_trainer(mut command: Command) -> Option<Command> {
    let beside = Path::new(env!("CARGO_BIN_EXE_mpienv")).parent().unwrap();
    let release = beside.with_file_name("release");
    if !beside.join("mnist").is_file() && !release.join("mnist").is_file() {
        missing("mnist (cargo build --release)");
        return None;
    }
    let path = inherited("PATH").unwrap_or_default();
    let folders = [beside.to_owned(), release].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders).unwrap());
    Some(command)
}
