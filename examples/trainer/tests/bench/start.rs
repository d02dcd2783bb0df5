//! Measures the median time from the start of `mnist` to the line of its first step, and the peak
//! memory of a rank, for one rank and for two over TCP and MPI.
//!
//! If DATA_PATH names a folder, `mnist` reads its files. Otherwise, it draws digits.

#[path = "../../../sharding/tests/support/launcher.rs"]
mod launcher;
#[path = "../support/living.rs"]
mod living;
#[path = "../../../../tests/support/port.rs"]
mod port;
#[path = "../support/start.rs"]
mod start;
#[path = "../../../../tests/support/tool.rs"]
#[expect(dead_code, reason = "the command of mpienv is not run")]
mod tool;

use std::path::Path;
use std::process::Command;

use launcher::job;
use start::{Start, start};
use tool::{inherited, is_there};

const TIMES: usize = 11;
const MNIST: &str = env!("CARGO_BIN_EXE_mnist");

fn main() {
    println!("| ranks | to the first step, s | peak memory of a rank, MB |\n| --- | --- | --- |");
    measure("1", || Command::new(MNIST));
    measure("2, tcp", || {
        let mut command = Command::new(MNIST);
        command.args(["--ranks", "2", "--backend", "tcp"]);
        command
    });
    if cfg!(feature = "mpi") && is_there("mpirun") {
        measure("2, mpi", || {
            let mut command = job(Path::new("mpirun"), &[], 2, MNIST);
            command.args(["--backend", "mpi"]);
            command
        });
    }
}

fn measure(what: &str, command: impl Fn() -> Command) {
    let run = |_| start(command().envs(inherited("DATA_PATH").map(|folder| ("DATA_PATH", folder))));
    let starts: Vec<Start> = (0..TIMES).map(run).collect();
    let mut times: Vec<f64> = starts.iter().map(|start| start.first_step.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let peak = starts.iter().map(|start| start.peak).max().unwrap_or(0) as f64 / 1e6;
    println!("| {what} | {:.3} | {peak:.0} |", times[TIMES / 2]);
}
