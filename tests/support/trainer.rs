//! The bundled trainer's programs, for tests of the command.

use std::path::Path;
use std::process::Command;

use super::tool::{inherited, missing};

/// Lets a command find the trainer's programs; prints a message and returns `None` if they are not
/// built.
///
/// They are next to the command under test when all packages are tested together.
pub fn with_trainer(mut command: Command) -> Option<Command> {
    let folder = Path::new(env!("CARGO_BIN_EXE_mpienv")).parent().unwrap();
    if !folder.join("mnist").is_file() {
        missing("mnist (cargo test --workspace builds it)");
        return None;
    }
    let path = inherited("PATH").unwrap_or_default();
    let folders = [folder.to_owned()].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders).unwrap());
    Some(command)
}
