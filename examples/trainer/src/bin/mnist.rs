//! Trains a classifier of handwritten digits on all ranks that a launcher starts.

use std::io::{self, Write};
use std::process::ExitCode;

use mpienv_trainer::{cli, exit, mnist};

fn main() -> ExitCode {
    let options = cli::Options::of_process();
    match mnist::run(&options, io::stdout(), io::stderr()) {
        Ok(()) => exit::OK.into(),
        Err(error) => {
            // One write a line: what ranks that share a terminal say does not mix. If nobody reads it, the code tells.
            let _ = io::stderr().write_all(format!("mnist: {error}\n").as_bytes());
            error.exit_code().into()
        }
    }
}
