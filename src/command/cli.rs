//! The command line: its commands and options, and the modules that run them.

mod bind;
mod check;
mod completions;
mod correction;
mod doctor;
mod examples;
mod exec;
mod export;
mod failure;
mod launch;
mod launcher_connection;
mod man;
mod meet;
mod place;
mod program;
mod show;
mod simulate;
mod stream;
mod threads;
mod typed;
mod version;
mod warn;
mod worker;
mod worker_count;

use std::ffi::OsString;
use std::time::Duration;
use std::{env, process, thread};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, getrlimit};

use self::failure::{Failure, exit_code, lines_of};
use self::program::Program;
use self::warn::Quiet;

pub use self::stream::before_main;

/// The first paragraphs of `mpienv --help` and of the manual page.
const ABOUT: &str = "\
Tells a process its rank, its local rank, the job's size and the master's address under any cluster launcher.

Each launcher describes a job in variables of its own. mpienv reads them and sets those that programs read: RANK, \
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others. exec becomes a program that has them, export prints them for \
a shell, and launch starts the ranks itself. check and doctor test a job before it runs, show says where each value comes \
from, and simulate plays a job on one machine.";

/// Tells a process its place in a cluster: rank, world size, local rank, master.
#[derive(Debug, Parser)]
#[command(version = version::TEXT, arg(version::json()), about, long_about = ABOUT, max_term_width = 100, subcommand_value_name = "COMMAND", after_help = examples::ALL)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Export(export::Options),
    Exec(exec::Options),
    Launch(launch::Options),
    Show(show::Options),
    Doctor(doctor::Options),
    Check(check::Options),
    Simulate(simulate::Options),
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = examples::MAN)]
    Man,
}

/// Parses a whole number of 0 or more.
fn number(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| match text {
        "" => "it is empty; expected a whole number, such as 2",
        _ => "expected a whole number, such as 2",
    })
}

/// Parses a time above 0.
fn time(text: &str) -> Result<Duration, &'static str> {
    let time = time_or_none(text).ok().filter(|time| !time.is_zero());
    time.ok_or("expected a time above 0, such as 90 (seconds), 500ms, 10m or 2h")
}

/// Parses a time of 0 or more, in seconds or with its unit.
fn time_or_none(text: &str) -> Result<Duration, &'static str> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (number, unit) = split_unit(text, &units).unwrap_or((text, 1.0));
    let number = number.parse().ok().filter(|number: &f64| *number >= 0.0);
    // A year is as good as forever, and adding it to an `Instant` cannot overflow.
    let most = 365.0 * 86_400.0;
    let time = number.map(|number| Duration::from_secs_f64((number * unit).min(most)));
    time.ok_or("expected a time of 0 or more, such as 90 (seconds), 500ms, 10m or 2h")
}

/// Splits a number from the unit that follows it, and returns what the unit stands for.
fn split_unit<'a, T: Copy>(text: &'a str, units: &[(&str, T)]) -> Option<(&'a str, T)> {
    units.iter().find_map(|&(unit, value)| Some((text.strip_suffix(unit)?, value)))
}

/// The stack that the work always has room on, in bytes: what the standard library gives threads.
const ENOUGH: usize = 2 << 20;

/// Runs the command: in a thread of its own if the stack of the first one may not grow to what the
/// work needs (`ulimit -s`).
pub fn main() -> process::ExitCode {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|limit| limit >= ENOUGH as u64) {
        return work();
    }
    match thread::Builder::new().name("mpienv".to_owned()).stack_size(ENOUGH).spawn(work) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(error) => report(Err(Failure::Stack(error))),
    }
}

/// Parses the command line, runs the command, and reports errors.
fn work() -> process::ExitCode {
    if crate::serve_as_watchdog() {
        return exit_code::OK.into();
    }
    mpienv_launch::seam::keep_ended_children();
    if let Some(code) = launcher_connection::serve() {
        return code;
    }
    if let Some(failure) = worker::serve() {
        return report(Err(failure));
    }
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let verb = match of_every_rank(&words).map_or_else(|| Ok(Command::try_parse()?.verb), Ok) {
        Ok(verb) => verb,
        Err(error) => return answer(error),
    };
    let outcome = match verb {
        Verb::Export(options) => export::run(options),
        Verb::Exec(options) => exec::run(options),
        Verb::Launch(options) => launch::run(options),
        Verb::Show(options) => show::run(options),
        Verb::Doctor(options) => doctor::run(options),
        Verb::Check(options) => check::run(options),
        Verb::Simulate(options) => simulate::run(options),
        Verb::Completions { shell } => completions::run(Command::command(), shell),
        // The page is in the checkout, so it cannot name its commit.
        Verb::Man => man::run(Command::command().version(env!("CARGO_PKG_VERSION"))),
    };
    report(outcome)
}

/// Parses a valid line of a subcommand that every rank runs, without the options of the others: to
/// build them all takes longer than `export` itself. Help and errors come from the whole.
fn of_every_rank(words: &[OsString]) -> Option<Verb> {
    match words.first()?.to_str()? {
        // Without options, nothing is parsed: the parser alone is a sixth of all instructions.
        export::NAME if words.len() == 1 => Some(Verb::Export(export::Options::default())),
        export::NAME => alone(words).map(Verb::Export),
        exec::NAME => alone(words).map(Verb::Exec),
        _ => None,
    }
}

fn alone<T: Args>(words: &[OsString]) -> Option<T> {
    let command = T::augment_args(clap::Command::new("mpienv"));
    T::from_arg_matches(&command.try_get_matches_from(words).ok()?).ok()
}

/// Prints the help, the version, or the error in the command line.
fn answer(mut error: clap::Error) -> process::ExitCode {
    if error.kind() == ErrorKind::DisplayVersion && env::args_os().any(|word| word == "--json") {
        return report(version::print_json().map_err(Failure::Output));
    }
    correction::explain(&mut error);
    let text = error.render().ansi().to_string();
    if !error.use_stderr() {
        return report(stream::print_styled(&text).map_err(Failure::Output));
    }
    stream::report(&text);
    export::stop_the_shell();
    exit_code::USAGE.into()
}

fn report(outcome: Result<(), Failure>) -> process::ExitCode {
    let Err(failure) = outcome else { return exit_code::OK.into() };
    stream::report(&failure.text());
    failure.exit_code().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subcommand_alone_is_parsed_as_in_the_whole() {
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        for line in [
            "export",
            "export --shell=fish --master-port auto --launcher slurm -v",
            "export --node-rank 1 --nnodes 2 --per-node -q",
            "exec -- python -m x -- y",
            "exec --for jax --nccl-ifname ^lo --meet 3 --template --dry-run -- a {rank}",
        ] {
            let whole = [words("mpienv"), words(line)].concat();
            let whole = Command::try_parse_from(whole).unwrap().verb;
            let alone = of_every_rank(&words(line));
            assert_eq!(format!("{alone:?}"), format!("{:?}", Some(whole)), "{line}");
        }
        for line in ["", "show", "export --help", "export -x", "exec", "exec a", "help export"] {
            assert!(of_every_rank(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn a_time_is_in_seconds_or_has_a_unit() {
        let seconds = |text: &str| time(text).map(|time| time.as_secs_f64()).ok();
        for (text, expected) in [
            ("90", 90.0),
            ("0.2", 0.2),
            ("250ms", 0.25),
            ("90s", 90.0),
            ("2m", 120.0),
            ("1.5h", 5400.0),
            ("inf", 31_536_000.0),
            ("9e99h", 31_536_000.0),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for text in ["", "s", "ms", "x", "1d", "1 m", "m1", "1h30m", "-1", "-1m", "nan", "nans"] {
            assert!(time_or_none(text).is_err(), "{text}");
        }
        for text in ["0", "0ms", "0.0h"] {
            assert_eq!((seconds(text), time_or_none(text)), (None, Ok(Duration::ZERO)), "{text}");
        }
    }
}
