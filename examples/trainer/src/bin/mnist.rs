//! Trains a classifier of handwritten digits on all ranks that a launcher starts.

use std::io;
use std::process::ExitCode;

use mpienv_sharding::{arguments, job};
use mpienv_trainer::cli::MnistArgs;
use mpienv_trainer::mnist;

fn main() -> ExitCode {
    if mpienv::serve_as_watchdog() {
        return ExitCode::SUCCESS;
    }
    let options = arguments::parse_or_exit("mnist", MnistArgs::parse_line);
    job::finish("mnist", mnist::run(&options, io::stdout()))
}
