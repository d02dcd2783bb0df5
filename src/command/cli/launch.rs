//! `mpienv launch`: starts this node's workers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::{ClusterInfo, Environment, Launch, LaunchError, Output, StartError, Target};
use clap::Args;

use super::exec::command;
use super::wait::MeetOption;
use super::words::TemplateOption;
use super::worker::worker;
use super::{Failure, Overrides, Quiet, torchrun};

/// How workers are started and stopped.
#[derive(Args, Debug)]
pub(crate) struct LaunchOptions {
    /// How many workers to start on this node
    #[arg(long, value_name = "N", alias = "nproc_per_node", value_parser = workers, allow_negative_numbers = true)]
    nproc_per_node: u32,
    /// Write the workers' output to DIR/rank.K/stdout and DIR/rank.K/stderr instead
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// How long the other workers may take to exit after one has failed
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, allow_negative_numbers = true)]
    grace: Duration,
    /// Keep the launcher's binding to cores; without this option the workers may use all cores
    #[arg(long)]
    keep_binding: bool,
    #[command(flatten)]
    template: TemplateOption,
    #[command(flatten)]
    meet: MeetOption,
}

fn workers(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (1..=ClusterInfo::MOST_WORKERS).contains(&number) => Ok(number),
        // torchrun counts by itself.
        _ if ["gpu", "cpu", "auto", "xpu"].contains(&text) => {
            let count = if text == "cpu" { "$(nproc)" } else { "$(nvidia-smi -L | wc -l)" };
            Err(format!("mpienv does not count devices: give the number, as in --nproc-per-node {count}"))
        }
        _ => Err(format!("expected a whole number from 1 to {}", ClusterInfo::MOST_WORKERS)),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|number: &f64| *number >= 0.0);
    // A year is as good as forever, and can be added to any moment.
    let number = number.map(|number| number.min(365.0 * 86400.0));
    number.map(Duration::from_secs_f64).ok_or_else(|| "expected a number of seconds, 0 or more".to_owned())
}

pub(crate) fn run(
    overrides: Overrides,
    set: Target,
    options: LaunchOptions,
    quiet: Quiet,
    words: Vec<OsString>,
) -> Result<(), Failure> {
    let environment = Environment::current();
    let info = overrides.read_from(&environment, quiet)?;
    torchrun::check_launch(&info, &environment, options.nproc_per_node, &words)?;
    let output = options.log_dir.map_or(Output::Prefixed, Output::LogDir);
    let launch = Launch::new(&info, options.nproc_per_node).map_err(|error| failure(&words, error))?;
    options.template.check(&words)?;
    let finding = launch.workers().first().and_then(|place| options.template.finding(place, &words));
    let of_each: Result<Vec<_>, Failure> =
        launch.workers().iter().map(|place| options.template.apply(|| Ok(place.placeholders()), &words)).collect();
    let of_each = of_each?;
    let words = of_each.first().map_or(&words[..], |words| words);
    quiet.warn_also(&info, &environment, finding);
    options.meet.wait(&info)?;
    let launch = launch.variables(set).output(output).grace(options.grace).subreaper();
    let launch = if options.keep_binding { launch.keep_binding() } else { launch };
    let words_of = |place: &ClusterInfo| {
        let index = place.local_rank().and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| of_each.get(index)).map_or(words, |words| words)
    };
    launch.run(|place| worker(words_of(place))).map_err(|error| failure(words, error))
}

/// Why workers failed; a command that cannot be started gets the same message as from `exec`.
pub(super) fn failure(words: &[OsString], error: LaunchError) -> Failure {
    match error {
        LaunchError::Start { error, .. } => StartError::new(&command(words), error.into_io()).into(),
        error => Failure::Launch(error),
    }
}
