//! `mpienv completions`: prints the completion script of a shell.

use std::io::{self, Write};

use clap_complete::Shell;

use super::Failure;

pub(crate) fn run(mut command: clap::Command, shell: Shell) -> Result<(), Failure> {
    // Generates into memory first, because clap_complete panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "mpienv", &mut script);
    let mut stdout = io::stdout().lock();
    stdout.write_all(&script)?;
    Ok(stdout.flush()?)
}
