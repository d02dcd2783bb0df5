//! `mpienv completions`: what a shell needs to complete the command's words.

use std::io::{self, Write};

use clap_complete::Shell;

use super::Failure;

pub(crate) fn run(mut command: clap::Command, shell: Shell) -> Result<(), Failure> {
    // Into memory first: clap_complete panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "mpienv", &mut script);
    let mut stdout = io::stdout().lock();
    stdout.write_all(&script)?;
    Ok(stdout.flush()?)
}
