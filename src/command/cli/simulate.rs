//! `mpienv simulate`: the environments that a launcher would create.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};

use crate::command::check::SIMULATED;
use crate::simulate::Job;
use crate::{ClusterInfo, Launch, Output, StartError};
use mpienv_launch::seam::{LaunchSeam as _, before, for_terminal};

use super::exec::command;
use super::worker::worker;
use super::{Failure, Shape, launch, stream};

pub(crate) fn run(
    shape: Shape,
    rank: Option<u32>,
    keep_master: bool,
    command: Vec<OsString>,
) -> Result<(), Failure> {
    let job = shape.job()?;
    if let Some(rank) = rank.filter(|&rank| rank >= job.world_size()) {
        return Err(Failure::NoSuchRank { rank, size: job.world_size() });
    }
    match (rank, command.is_empty()) {
        (None, true) => Ok(print(&job, 0..job.world_size(), true)?),
        (Some(rank), true) => Ok(print(&job, rank..rank + 1, false)?),
        (Some(rank), false) => run_one(&job, rank, &command),
        (None, false) => {
            drop(stream::stdout()?);
            let launch = Launch::simulated(&job, keep_master)
                .map_err(|error| launch::failure(&command, error))?;
            let launch = launch.output(Output::Prefixed).subreaper().whole_process();
            let marked = |_: &ClusterInfo| {
                let mut worker = worker(&command);
                worker.env(SIMULATED, "1");
                worker
            };
            launch
                .run(marked)
                .map_err(|error| launch::failure(&command, for_terminal(error, false)))
        }
    }
}

/// Prints variables as `env` does. If there are several ranks, a comment precedes each.
fn print(job: &Job, ranks: impl Iterator<Item = u32>, headings: bool) -> io::Result<()> {
    let mut stdout = BufWriter::new(stream::stdout()?);
    for rank in ranks {
        if let Some(place) = job.place(rank).filter(|_| headings) {
            writeln!(
                stdout,
                "# rank {rank}: node {}, local rank {}",
                place.node, place.local_rank
            )?;
        }
        for (name, value) in job.environment(rank).unwrap_or_default() {
            writeln!(stdout, "{name}={value}")?;
        }
    }
    stdout.flush()
}

/// Runs a command as one rank only, with this process's terminal.
fn run_one(job: &Job, rank: u32, words: &[OsString]) -> Result<(), Failure> {
    let mut command = command(words);
    job.apply_to(rank, &mut command);
    command.env(SIMULATED, "1");
    if let Some(error) = before(&command) {
        return Err(error.into());
    }
    stream::close_again();
    let status = command.status().map_err(|error| StartError::new(&command, error))?;
    if status.success() { Ok(()) } else { Err(Failure::Rank { rank, status }) }
}
