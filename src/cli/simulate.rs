//! `mpienv simulate`: the environments that a launcher would give.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::{Command, ExitStatus};

use mpienv::StartError;
use mpienv::simulate::{Job, Vars, real_variables};

use super::{Failure, Shape};

pub(crate) fn run(shape: Shape, rank: Option<u32>, command: Vec<OsString>) -> Result<(), Failure> {
    let job = shape.job()?;
    let ranks = match rank {
        None => 0..job.world_size(),
        Some(rank) if rank < job.world_size() => rank..rank + 1,
        Some(rank) => return Err(Failure::NoSuchRank { rank, size: job.world_size() }),
    };
    if command.is_empty() {
        return Ok(print(&job, ranks, rank.is_none())?);
    }
    for rank in ranks {
        let vars = job.environment(rank).unwrap_or_default();
        let status = run_in(&vars, &command)?;
        if !status.success() {
            return Err(Failure::Rank { rank, status });
        }
    }
    Ok(())
}

/// As `env` prints them; a comment before each rank where there are several.
fn print(job: &Job, ranks: impl Iterator<Item = u32>, headings: bool) -> io::Result<()> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    for rank in ranks {
        if let Some(place) = job.place(rank).filter(|_| headings) {
            writeln!(stdout, "# rank {rank}: node {}, local rank {}", place.node, place.local_rank)?;
        }
        for (name, value) in job.environment(rank).unwrap_or_default() {
            writeln!(stdout, "{name}={value}")?;
        }
    }
    stdout.flush()
}

/// Runs a command with these variables, and without any that a real launcher left here.
fn run_in(vars: &Vars, words: &[OsString]) -> Result<ExitStatus, Failure> {
    let (name, arguments) = words.split_first().ok_or(Failure::NoCommand)?;
    let mut command = Command::new(name);
    command.args(arguments);
    for name in real_variables() {
        command.env_remove(name);
    }
    command.envs(vars.iter().map(|(name, value)| (name, value)));
    command.status().map_err(|error| StartError::new(&command, error).into())
}
