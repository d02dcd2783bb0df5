//! The arguments of `mnist`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::OsStringValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::backend::Backend;
use crate::data::source::Source;
use crate::shard::Order;
use crate::train::Plan;

/// Trains a classifier of handwritten digits, data parallel over all ranks that a launcher starts.
///
/// Every rank writes the loss of its own batch every 10 steps, rank 0 a line for each epoch. Exit codes: 0 ok, 1 wrong
/// environment or data, 2 usage, 3 the training failed, 124 a rank did not come in time.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "mnist", version, max_term_width = 100)]
pub struct Options {
    /// The folder of the four MNIST files, plain or .gz, with or without train and test in it; without it, digits drawn by code
    #[arg(long, value_name = "DIR", env = "DATA_PATH", value_parser = OsStringValueParser::new())]
    data: Option<OsString>,

    /// How often to go through the training set
    #[arg(long, default_value_t = 10, value_name = "N")]
    epochs: u32,

    /// Samples of a step, of each rank
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = at_least_one::<usize>)]
    batch_size: usize,

    /// Learning rate
    #[arg(long = "lr", default_value_t = 0.01, value_name = "X", value_parser = positive)]
    learning_rate: f32,

    /// What the order of the samples and the first weights depend on
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// First weights from a file: 10 x 784 little-endian f32; biases 0
    #[arg(long, value_name = "FILE")]
    pub init: Option<PathBuf>,

    /// In what order an epoch goes through the samples
    #[arg(long, value_enum, default_value_t = Order::Shuffle)]
    order: Order,

    /// What carries the gradients from rank to rank
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,

    /// Start N ranks on this machine
    #[arg(long, value_name = "N", value_parser = at_least_one::<u32>)]
    pub ranks: Option<u32>,

    /// Write rank 0's losses and the epochs' summaries to a file of JSON lines; one of that name is emptied
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,

    /// Leave out the steps: only rank 0's line for each epoch
    #[arg(long)]
    pub quiet: bool,

    /// How long to wait for a rank that does not come, in seconds
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Duration,
}

impl Options {
    /// The options that the process was started with; ends the process when they are wrong, or ask for help.
    #[must_use]
    pub fn of_process() -> Options {
        Options::of(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// The options of a command line, the program's name included.
    fn of(line: impl IntoIterator<Item = OsString>) -> Result<Options, clap::Error> {
        let mut command = Options::command();
        let matches = command.try_get_matches_from_mut(line)?;
        let options = Options::from_arg_matches(&matches)?;
        // `--data "$UNSET"` must not train on other data than was meant.
        let given = matches.value_source("data") == Some(ValueSource::CommandLine);
        if given && options.data.as_ref().is_some_and(|folder| folder.is_empty()) {
            return Err(command.error(ErrorKind::InvalidValue, "--data is empty: name the folder of the MNIST files"));
        }
        Ok(options)
    }

    /// How to train.
    #[must_use]
    pub fn plan(&self) -> Plan {
        Plan {
            epochs: self.epochs,
            batch_size: self.batch_size,
            learning_rate: self.learning_rate,
            seed: self.seed,
            order: self.order,
        }
    }

    /// Where the data comes from. An empty DATA_PATH is as none.
    #[must_use]
    pub fn source(&self) -> Source {
        match &self.data {
            Some(folder) if !folder.is_empty() => Source::Folder(folder.into()),
            _ => Source::Embedded,
        }
    }
}

fn at_least_one<T: std::str::FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    text.parse()
        .ok()
        .filter(|number| *number >= T::from(1))
        .ok_or_else(|| "a whole number from 1 on is wanted".to_owned())
}

pub(crate) fn positive(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "a number above 0 is wanted".to_owned())
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0);
    // A year is as good as forever, and can be added to any moment.
    let number = number.map(|number| number.min(365.0 * 86400.0));
    number.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds above 0 is wanted".to_owned())
}

/// The arguments to give to ranks that are started here: all but `--ranks N`.
#[must_use]
pub fn without_ranks(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        if argument == "--ranks" {
            arguments.next();
        } else if !argument.to_string_lossy().starts_with("--ranks=") {
            kept.push(argument);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::of(std::iter::once("mnist").chain(line.split_whitespace()).map(OsString::from))
    }

    #[test]
    fn the_defaults_are_the_tutorials() {
        let plan = parse("").unwrap().plan();
        let expected = Plan { epochs: 10, batch_size: 32, learning_rate: 0.01, seed: 1, order: Order::Shuffle };
        assert_eq!(plan, expected);
    }

    #[test]
    fn arguments_without_sense_are_refused() {
        for line in [
            "--batch-size 0",
            "--batch-size -1",
            "--batch-size x",
            "--lr 0",
            "--lr nan",
            "--lr inf",
            "--lr -1",
            "--ranks 0",
            "--epochs -1",
            "--timeout 0",
            "--timeout nan",
            "--timeout -3",
            "--order random",
            "--backend nccl",
            "--seed -1",
            "surplus",
            "--strategy x",
        ] {
            assert_eq!(parse(line).map_err(|error| error.exit_code()), Err(2), "{line}");
        }
    }

    #[test]
    fn a_timeout_of_any_size_is_taken() {
        assert_eq!(parse("--timeout 0.5").unwrap().timeout, Duration::from_millis(500));
        assert!(parse("--timeout inf").unwrap().timeout > Duration::from_secs(86400));
        assert!(parse("--timeout 1e300").unwrap().timeout > Duration::from_secs(86400));
    }

    #[test]
    fn started_ranks_do_not_start_ranks() {
        let arguments = "--quiet --ranks 2 --seed 3 --ranks=4 --lr 1".split(' ').map(OsString::from);
        assert_eq!(without_ranks(arguments), ["--quiet", "--seed", "3", "--lr", "1"]);
    }

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }
}
