//! The command line: its commands and options, and the modules that run them.

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
mod launch;
mod man;
mod meant;
mod overrides;
mod shell;
mod show;
mod simulate;
mod stream;
mod wait;
mod warn;
mod words;
mod worker;
mod worker_count;

use std::ffi::OsString;
use std::net::IpAddr;
use std::process;
use std::time::Duration;

use crate::simulate::{Job, JobError};
use crate::value::name::named;
use crate::{Finding, Launcher, Severity, Target};
use clap::{Args, CommandFactory, Parser, Subcommand};

use self::exit_code::ExitCode;
use self::failure::Failure;
use self::overrides::Overrides;
use self::shell::Shell;
use self::warn::Quiet;

#[cfg(target_os = "linux")]
pub use self::stream::before_main;

/// Tells a process its place in a cluster: rank, world size, local rank, master.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, subcommand_value_name = "COMMAND", after_help = examples::ALL)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print assignments for eval: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...
    ///
    /// The shell keeps its binding to cores: Open MPI leaves each of one or two ranks only one core
    /// by default, unless you pass `mpirun --bind-to none`. `mpienv exec` lets the command use all
    /// cores.
    ///
    /// After `eval` do not start another launcher, such as mpirun or torchrun, which `exec`
    /// refuses: its ranks would inherit one rank's variables. For torchrun start one process on
    /// each node, with --per-node.
    #[command(after_help = examples::EXPORT)]
    Export {
        #[command(flatten)]
        overrides: Overrides,
        /// The shell or file format to print for
        #[arg(long, value_enum, default_value = "sh")]
        shell: Shell,
        #[command(flatten)]
        program: Program,
        /// Print the node's variables instead, for a torchrun on each node
        ///
        /// Sets NODE_RANK, NNODES, MASTER_ADDR, MASTER_PORT and torchrun's own PET_NODE_RANK,
        /// PET_NNODES, PET_MASTER_ADDR, PET_MASTER_PORT, so that
        /// `torchrun --nproc-per-node 8 train.py` finds the other nodes, and PET_NPROC_PER_NODE if
        /// the platform gives the number of workers. Unsets RANK, WORLD_SIZE, LOCAL_RANK and
        /// LOCAL_WORLD_SIZE. If the platform does not give the place of the node, add
        /// --one-per-node, or --node-rank and --nnodes.
        #[arg(long, conflicts_with = "set")]
        per_node: bool,
        /// Print all findings on stderr, including notes
        #[arg(short, long, conflicts_with = "quiet")]
        verbose: bool,
        #[command(flatten)]
        quiet: Quiet,
    },
    /// Run a command with the variables set (replaces this process)
    ///
    /// The command keeps the process number, the open files and the ignored signals. The exception
    /// is SIGPIPE, which is reset to its default;
    /// `mpienv exec -- sh -c 'trap "" PIPE; exec "$@"' sh CMD` ignores it.
    #[command(after_help = examples::EXEC)]
    Exec {
        #[command(flatten)]
        overrides: Overrides,
        #[command(flatten)]
        program: Program,
        #[command(flatten)]
        options: exec::ExecOptions,
        #[command(flatten)]
        quiet: Quiet,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Start this node's workers, and stop them all when one fails
    ///
    /// Use it for jobs with one process on each node, or to start N ranks on this machine without a
    /// launcher. Each line of a worker's output starts with `[rank] `. SIGINT, SIGTERM, SIGHUP,
    /// SIGUSR1 and SIGUSR2 are passed on. A second SIGINT or SIGTERM kills workers that ignore the
    /// first, as does the end of --grace. When a worker fails, the others get SIGTERM and later
    /// SIGKILL. The exit code is that of the first worker that failed, or 128 plus the signal's
    /// number if a signal ended it. The node's first worker inherits stdin unless it is a terminal.
    ///
    /// On Linux, everything that descends from a worker is stopped with the job, in any process
    /// group or session, even if mpienv itself is killed. Processes of another user can survive. If
    /// mpienv was killed, or replaced a shell that had children, a process can survive that has
    /// cleared its environment and whose parents have exited. On other systems, or if /proc is
    /// empty or belongs to another PID namespace, the worker's process group is stopped.
    #[command(after_help = examples::LAUNCH)]
    Launch {
        #[command(flatten)]
        overrides: Overrides,
        #[command(flatten)]
        program: Program,
        #[command(flatten)]
        options: launch::LaunchOptions,
        #[command(flatten)]
        quiet: Quiet,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Show each value and where it comes from
    #[command(after_help = examples::SHOW)]
    Show {
        #[command(flatten)]
        overrides: Overrides,
        /// Show this host's own address and interface too, by the route to the master
        ///
        /// Resolves the master's name, which takes at most 10 seconds, and sends no packet.
        #[arg(long)]
        own_addr: bool,
        /// Print warnings on stderr too, once on each node, as `exec` does
        #[arg(long)]
        warn: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show each value, and find problems on this host
    ///
    /// If all ranks run it, rank 0 prints one report: its own values, and what differs on the other
    /// ranks. A rank that does not reach rank 0 in time prints its own report. With --json each
    /// rank prints its own object.
    #[command(after_help = examples::DOCTOR)]
    Doctor {
        #[command(flatten)]
        overrides: Overrides,
        /// How long to wait for the other ranks, in seconds; 0 inspects this rank only
        #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds_or_none, conflicts_with = "json")]
        timeout: Duration,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Test whether all ranks can meet at the master, and name the missing ones
    ///
    /// Start it as every rank of the job, with the same launcher and options as the program. Rank 0
    /// prints the hosts and their ranks. If a rank is missing, came twice, disagrees or runs
    /// another version, all ranks name it.
    #[command(after_help = examples::CHECK)]
    Check {
        #[command(flatten)]
        overrides: Overrides,
        /// How long to wait for all ranks, in seconds
        #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
        timeout: Duration,
        /// The address of its host that rank 0 listens on; 0.0.0.0 or :: for every address
        ///
        /// Without this option rank 0 listens on the master's address if that is an address of its
        /// host, and otherwise on every address.
        #[arg(long, value_name = "ADDRESS")]
        bind: Option<IpAddr>,
        /// Print the map as one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        quiet: Quiet,
    },
    /// Print the environments that a launcher would create, or run a command in each
    ///
    /// The ranks run together on this machine, as `launch` runs them: each line starts with
    /// `[rank] `, and all ranks stop when one fails. MASTER_ADDR is 127.0.0.1 and MASTER_PORT is
    /// free, so the ranks can meet. With --rank one rank runs alone, with the terminal and the
    /// launcher's own master.
    #[command(after_help = examples::SIMULATE)]
    Simulate {
        #[command(flatten)]
        shape: Shape,
        /// Simulate only this rank, instead of all
        #[arg(long, allow_negative_numbers = true)]
        rank: Option<u32>,
        /// Keep the launcher's own master, which this machine cannot reach (node0 and so on)
        #[arg(long, conflicts_with = "rank")]
        keep_master: bool,
        /// The command to run as each rank, and its arguments
        #[arg(last = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
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

/// The shape of a job that is simulated.
#[derive(Args, Debug)]
struct Shape {
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
}

impl Shape {
    fn job(&self) -> Result<Job, JobError> {
        let job = Job::of(self.launcher).nodes(self.nodes).per_node(self.ppn);
        if self.by_node { job.by_node() } else { job }.build()
    }
}

fn ranks(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=Job::MOST_RANKS).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {}", Job::MOST_RANKS))
}

/// The program whose variables are set.
#[derive(Args, Clone, Copy, Debug)]
struct Program {
    /// Also set the variables that this program reads
    #[arg(long = "for", value_name = "PROGRAM", default_value = "torch", value_parser = named(Target::ALL, Target::name), long_help = sets())]
    set: Target,
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

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0);
    // A year is as good as forever, and adding it to an `Instant` cannot overflow.
    let number = number.map(|number| number.min(365.0 * 86_400.0));
    number
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds above 0".to_owned())
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    if text.parse() == Ok(0.0) { Ok(Duration::ZERO) } else { seconds(text) }
}

/// Parses the command line, runs the command, and reports errors.
pub fn main() -> process::ExitCode {
    #[cfg(unix)]
    if crate::serve_as_watchdog() {
        return ExitCode::OK.into();
    }
    if let Some((parent, words)) = worker::request() {
        return report(worker::run(parent, &words));
    }
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => return answer(error),
    };
    let outcome = match command.verb {
        Verb::Export { overrides, program, per_node, shell, verbose, quiet } => {
            export::run(overrides, program.set, per_node, shell.into(), verbose, quiet)
        }
        Verb::Exec { overrides, program, options, quiet, command } => {
            exec::run(overrides, program.set, options, quiet, command)
        }
        Verb::Launch { overrides, program, options, quiet, command } => {
            launch::run(overrides, program.set, options, quiet, command)
        }
        Verb::Show { overrides, own_addr, warn, json } => {
            show::run(overrides, own_addr, warn, json)
        }
        Verb::Doctor { overrides, timeout, json } => doctor::run(overrides, json, timeout),
        Verb::Check { overrides, timeout, bind, json, quiet } => {
            check::run(overrides, timeout, bind, json, quiet)
        }
        Verb::Simulate { shape, rank, keep_master, command } => {
            simulate::run(shape, rank, keep_master, command)
        }
        Verb::Completions { shell } => completions::run(Command::command(), shell),
        Verb::Man => man::run(Command::command()),
    };
    report(outcome)
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
            // The program that read stdout has exited, as `head` does.
            if !failure.is_by_reader() {
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
