//! `mpienv simulate`: the environments that a launcher would create.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};

use super::place::named;
use crate::command::check::SIMULATED;
use crate::simulate::Job;
use crate::{ClusterInfo, Launch, Launcher, Output};
use clap::Args;
use mpienv_launch::seam::{exec, for_terminal, foreseen, whole_process};

use super::program::command;
use super::worker::worker;
use super::{Failure, examples, launch, number, stream};

/// Print the environments that a launcher would create, or run a command in each
///
/// The ranks run together on this machine, as `launch` runs them: each line starts with
/// `[rank] `, and all ranks stop when one fails. MASTER_ADDR is 127.0.0.1 and MASTER_PORT is
/// free, so the ranks can meet. With --rank one rank runs alone, with the terminal and the
/// launcher's own master.
///
/// The ranks get none of the variables that describe a job here: those of launchers and of Azure,
/// MASTER_ADDR, MASTER_PORT, MPIENV_LAUNCHER, MPIENV_MASTER_ADDR, MPIENV_MASTER_PORT, MPIENV_TOKEN
/// and MPIENV_TOKEN_FILE. So a wrong value of these goes unnoticed; `mpienv doctor` reports it.
#[derive(Args, Debug)]
#[command(after_help = examples::SIMULATE)]
pub(super) struct Options {
    /// The launcher to simulate
    #[arg(long, value_name = "NAME", value_parser = named(Launcher::ALL, Launcher::name))]
    launcher: Launcher,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = ranks, allow_negative_numbers = true)]
    nodes: u32,
    /// Processes on each node
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = ranks, allow_negative_numbers = true)]
    ppn: u32,
    /// Assign ranks to nodes one by one instead of in blocks
    #[arg(long)]
    by_node: bool,
    /// Simulate only this rank, instead of all
    #[arg(long, value_parser = number, allow_negative_numbers = true)]
    rank: Option<u32>,
    /// Keep the launcher's own master, which this machine cannot reach (node0 and so on)
    #[arg(long, conflicts_with = "rank")]
    keep_master: bool,
    /// The command to run as each rank, and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn ranks(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=Job::MOST_RANKS).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {}", Job::MOST_RANKS))
}

pub(super) fn run(options: Options) -> Result<(), Failure> {
    let Options { launcher, nodes, ppn, by_node, rank, keep_master, command } = options;
    let job = Job::of(launcher).nodes(nodes).per_node(ppn);
    let job = if by_node { job.by_node() } else { job }.build()?;
    if let Some(rank) = rank.filter(|&rank| rank >= job.world_size()) {
        return Err(Failure::NoSuchRank { rank, size: job.world_size() });
    }
    match (rank, command.is_empty()) {
        (None, true) => Ok(print(&job, 0..job.world_size(), true)?),
        (Some(rank), true) => Ok(print(&job, rank..rank + 1, false)?),
        (Some(rank), false) => run_one(&job, rank, &command),
        (None, false) => {
            drop(stream::stdout()?);
            // Otherwise, every rank would fail to start and say the same.
            if let Some(error) = foreseen(&self::command(&command)) {
                return Err(error.into());
            }
            let launcher = job.launcher().name();
            let launch = match keep_master {
                true => Launch::simulated_with_master(job),
                false => Launch::simulated(&job),
            };
            let launch = launch.map_err(|error| launch::failure(&command, error))?;
            let launch = launch.output(Output::Prefixed).subreaper(true);
            let marked = |_: &ClusterInfo| {
                let mut worker = worker(&command, None);
                worker.env(SIMULATED, launcher);
                worker
            };
            whole_process(launch)
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
            let (node, local_rank) = (place.node, place.local_rank);
            writeln!(stdout, "# rank {rank}: node {node}, local rank {local_rank}")?;
        }
        for (name, value) in job.environment(rank).unwrap_or_default() {
            writeln!(stdout, "{name}={value}")?;
        }
    }
    stdout.flush()
}

/// Becomes a command as one rank only, with this process's terminal and signals.
fn run_one(job: &Job, rank: u32, words: &[OsString]) -> Result<(), Failure> {
    let mut command = command(words);
    job.apply_to(rank, &mut command);
    command.env(SIMULATED, job.launcher().name());
    stream::close_again();
    Err(exec(&mut command).into())
}
