//! The command line: its commands and options, and the modules that run them.

mod bind;
mod check;
mod completions;
mod count;
mod doctor;
mod examples;
mod exec;
mod exit_code;
mod export;
mod failure;
mod hint;
mod inner_launcher;
mod keeper;
mod launch;
mod man;
mod meant;
mod overrides;
mod shell;
mod show;
mod simulate;
mod stack;
mod stream;
mod threads;
mod wait;
mod warn;
mod words;
mod worker;
mod worker_count;

use std::env;
use std::ffi::OsString;
use std::process;
use std::time::Duration;

use crate::{Finding, Severity, Target};
use clap::{Args, CommandFactory, Parser, Subcommand};
use mpienv_core::seam::Reader;
use mpienv_core::seam::{FindingSeam as _, TargetSeam as _};

use self::exit_code::ExitCode;
use self::failure::Failure;
use self::overrides::named;
use self::warn::Quiet;

pub use self::stream::before_main;

/// The version, with the commit if a checkout was built.
const VERSION: &str = match option_env!("VERSION_AND_COMMIT") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Tells a process its place in a cluster: rank, world size, local rank, master.
#[derive(Debug, Parser)]
#[command(version = VERSION, about, max_term_width = 100, subcommand_value_name = "COMMAND", after_help = examples::ALL)]
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

/// The program whose variables are set.
#[derive(Args, Clone, Copy, Debug, Default)]
struct Program {
    /// Also set the variables that this program reads
    #[arg(long = "for", value_name = "PROGRAM", default_value = "torch", value_parser = named(Target::ALL, Target::name), long_help = sets())]
    set: Target,
}

impl Program {
    /// Returns who reads the variables: the program, or a launcher of the node's ranks.
    fn reader(self, per_node: bool) -> Reader {
        if per_node { Reader::Node } else { Reader::Program(self.set) }
    }
}

fn sets() -> String {
    // The manual page joins the lines, so each line must be a sentence.
    let mut text = "Also set the variables that this program reads\n\n".to_owned();
    for set in Target::ALL {
        let names: Vec<_> = set.variables().map(|variable| variable.name).collect();
        let names = if names.is_empty() {
            "RANK and so on, as with every program".to_owned()
        } else {
            names.join(", ")
        };
        let unset = set.removed_prefixes();
        let unset = if unset.is_empty() {
            String::new()
        } else {
            format!("; unsets inherited {}*", unset.join("*, "))
        };
        text += &format!("{} ({}): {names}{unset}{}.\n", set.name(), set.title(), set.note());
    }
    text
}

/// Parses a time above 0.
fn time(text: &str) -> Result<Duration, &'static str> {
    let time = time_or_none(text).ok().filter(|time| !time.is_zero());
    time.ok_or("expected a time above 0, such as 90 (seconds), 500ms, 10m or 2h")
}

/// Parses a time of 0 or more, in seconds or with its unit.
fn time_or_none(text: &str) -> Result<Duration, &'static str> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let of_unit = |(unit, seconds)| Some((text.strip_suffix(unit)?, seconds));
    let (number, unit) = units.into_iter().find_map(of_unit).unwrap_or((text, 1.0));
    let number = number.parse().ok().filter(|number: &f64| *number >= 0.0);
    // A year is as good as forever, and adding it to an `Instant` cannot overflow.
    let most = 365.0 * 86_400.0;
    let time = number.map(|number| Duration::from_secs_f64((number * unit).min(most)));
    time.ok_or("expected a time of 0 or more, such as 90 (seconds), 500ms, 10m or 2h")
}

/// Runs the command where its work has room.
pub fn main() -> process::ExitCode {
    stack::with_room(work).unwrap_or_else(|error| report(Err(Failure::Stack(error))))
}

/// Parses the command line, runs the command, and reports errors.
fn work() -> process::ExitCode {
    if crate::serve_as_watchdog() {
        return ExitCode::OK.into();
    }
    if let Some(code) = keeper::serve() {
        return code;
    }
    if let Some(request) = worker::request() {
        return report(worker::run(request));
    }
    let verb = match parse() {
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

/// Parses the command line.
fn parse() -> Result<Verb, clap::Error> {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    of_every_rank(&words).map_or_else(|| Ok(Command::try_parse()?.verb), Ok)
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
    meant::explain(&mut error);
    let text = error.render().ansi().to_string();
    if !error.use_stderr() {
        return report(stream::print_styled(text.as_bytes()).map_err(Failure::Output));
    }
    stream::report(text.as_bytes());
    export::stop_the_shell();
    ExitCode::USAGE.into()
}

fn report(outcome: Result<(), Failure>) -> process::ExitCode {
    let code = outcome.map_or_else(
        |failure| {
            if !failure.is_silent() {
                print_error(&failure);
            }
            failure.exit_code()
        },
        |()| ExitCode::OK,
    );
    code.into()
}

fn print_error(failure: &Failure) {
    let style = anstyle::AnsiColor::Red.on_default().bold();
    let meant = match failure {
        Failure::Start(error) => meant::for_program(error),
        _ => None,
    };
    let hint = meant.or_else(|| hint::for_failure(failure).map(str::to_owned));
    let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
    let report = match failure {
        Failure::Launch(error) => {
            error.report().map(ToString::to_string).filter(|report| !report.is_empty())
        }
        _ => None,
    };
    let report = report.map_or(String::new(), |report| report + "\n");
    stream::report(format!("{style}mpienv:{style:#} {failure}{hint}\n{report}").as_bytes());
}

/// Returns the lines of findings, with styles.
fn lines_of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let mut text = String::new();
    for finding in findings {
        let color = match finding.severity {
            Severity::Error => anstyle::AnsiColor::Red,
            Severity::Warning => anstyle::AnsiColor::Yellow,
            _ => anstyle::AnsiColor::Cyan,
        };
        let style = color.on_default().bold();
        let hint = hint::for_finding(finding).map_or(String::new(), |hint| format!("; {hint}"));
        text += &finding.lines(&format!("{style}{}{style:#}", finding.severity), &hint);
    }
    text
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
