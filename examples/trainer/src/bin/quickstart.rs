//! Trains the quick start of operator sharding, prints its plan, or merges its checkpoints.

use std::io;
use std::process::ExitCode;

use mpienv_trainer::exit;
use mpienv_trainer::quickstart::{self, options::QuickstartArgs};

fn main() -> ExitCode {
    let options = QuickstartArgs::of_process();
    match quickstart::run(&options, &mut io::stdout()) {
        Ok(()) => exit::OK.into(),
        Err(error) => {
            if !error.is_by_reader() {
                exit::say("quickstart", &error);
            }
            error.exit_code().into()
        }
    }
}
