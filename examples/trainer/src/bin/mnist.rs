//! Trains a classifier of handwritten digits on all ranks that a launcher starts.

use std::io;
use std::process::ExitCode;

use mpienv_trainer::{cli, mnist};

fn main() -> ExitCode {
    let options = cli::Options::of_process();
    match mnist::run(&options, io::stdout(), io::stderr()) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("mnist: {error}");
            error.exit_code().into()
        }
    }
}
