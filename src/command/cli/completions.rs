//! `mpienv completions`: prints the completion script of a shell.

use clap_complete::Shell;

use super::{Failure, stream};

pub(crate) fn run(mut command: clap::Command, shell: Shell) -> Result<(), Failure> {
    // Generates into memory first, because clap_complete panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "mpienv", &mut script);
    Ok(stream::print(&script)?)
}
