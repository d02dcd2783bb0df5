//! Trains the quick start of operator sharding, prints its plan, or merges its checkpoints.

use std::io;
use std::process::ExitCode;

use mpienv_trainer::job;
use mpienv_trainer::quickstart::{self, options::QuickstartArgs};

fn main() -> ExitCode {
    job::finish("quickstart", quickstart::run(&QuickstartArgs::of_process(), &mut io::stdout()))
}
