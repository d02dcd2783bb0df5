//! Trains a classifier of handwritten digits on all ranks that a launcher starts.

use std::io;
use std::process::ExitCode;

use mpienv_sharding::program::{cluster, exit, job};
use mpienv_trainer::{cli, mnist};

fn main() -> ExitCode {
    if cluster::has_served_as_watchdog() {
        return exit::OK.into();
    }
    job::finish("mnist", mnist::run(&cli::MnistArgs::of_process(), io::stdout(), io::stderr()))
}
