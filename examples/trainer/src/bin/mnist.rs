//! Trains a classifier of handwritten digits on all ranks that a launcher starts.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use mpienv_trainer::{cli, mnist};

fn main() -> ExitCode {
    let options = cli::Options::parse();
    match mnist::run(&options, io::stdout(), io::stderr()) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("mnist: {error}");
            error.exit_code().into()
        }
    }
}
