//! Options that both programs have, and parsers for values of options.

use std::io::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use crate::{error, job};

/// The ranks that a plan is for.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct PlannedRanks {
    /// The number of ranks
    #[arg(short = 'n', long = "ranks", default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub ranks: u32,

    /// The rank whose slices and groups are printed
    #[arg(long, default_value_t = 0, value_name = "R", value_parser = whole_u32)]
    pub rank: u32,
}

/// The name of a value on the command line.
pub fn name_of(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Lets all options take negative numbers, so that the error shows the allowed range.
pub fn numbers_may_be_negative(command: clap::Command) -> clap::Command {
    let takes_one = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    let command = command
        .mut_args(|arg| if takes_one(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(numbers_may_be_negative)
}

pub fn whole_u32(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u32::MAX))
}

pub fn whole_u64(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// Parses a `NonZero` number.
pub fn at_least_one<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 1 or more")
}

pub fn positive(text: &str) -> Result<f32, &'static str> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number > 0.0);
    number.ok_or("expected a number greater than 0")
}

pub fn seconds(text: &str) -> Result<Duration, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0);
    // A year is effectively forever, and does not overflow when added to a point in time.
    let number = number.map(|number| number.min(365.0 * 86400.0));
    // Less than half a nanosecond is rounded to 0.
    let duration = number.map(Duration::from_secs_f64).filter(|duration| !duration.is_zero());
    duration.ok_or("expected a number of seconds greater than 0")
}

/// Parses this process's command line with `parse`. Prints the help, the version or the usage error
/// and exits if there is one.
pub fn parse_or_exit<T>(
    program: &str,
    parse: impl FnOnce(std::env::ArgsOs) -> Result<T, clap::Error>,
) -> T {
    parse(std::env::args_os()).unwrap_or_else(|usage| {
        let printed = usage.print().and_then(|()| io::stdout().flush());
        let code = match printed {
            _ if usage.use_stderr() => error::USAGE,
            Ok(()) => 0,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => error::READER_GONE,
            Err(error) => {
                job::say(program, &format_args!("cannot write stdout: {error}; check the disk"));
                error::WRONG_INPUT
            }
        };
        signal_hook::low_level::exit(code.into())
    })
}
