//! Trains a classifier of handwritten digits on all ranks that a launcher starts.

use std::io;
use std::process::ExitCode;

use mpienv_trainer::{cli, cluster, exit, mnist};

fn main() -> ExitCode {
    if cluster::has_served_as_watchdog() {
        return exit::OK.into();
    }
    let options = cli::MnistArgs::of_process();
    match mnist::run(&options, io::stdout(), io::stderr()) {
        Ok(()) => exit::OK.into(),
        Err(error) => {
            if !error.is_reported() {
                exit::say("mnist", &error);
            }
            error.exit_code().into()
        }
    }
}
