//! `mpienv export`: assignments for `eval`, and nothing else on stdout.

use std::ffi::OsString;

use crate::command::doctor::port;
use crate::{Dialect, Environment, Exports, Unrepresentable};
use clap::{Args, ValueEnum};
use mpienv_core::seam::{Plan, PlanOptions};

use super::place::{JointPlaceOptions, on_known_interface};
use super::threads::ThreadsOption;
use super::{Failure, Program, Quiet, correction, examples, lines_of, program, stream};

/// The subcommand's name.
pub(super) const NAME: &str = "export";

/// Print assignments for eval: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...
///
/// The shell keeps its binding to cores: Open MPI leaves each of one or two ranks only one core
/// by default, unless you pass `mpirun --bind-to none`. `mpienv exec` lets the command use all
/// cores.
///
/// After `eval` do not start another launcher, such as mpirun or torchrun, which `exec`
/// refuses: its ranks would inherit one rank's variables. For torchrun start one process on
/// each node, with --per-node.
#[derive(Args, Debug, Default)]
#[command(after_help = examples::EXPORT)]
pub(super) struct Options {
    #[command(flatten)]
    place: JointPlaceOptions,
    /// The shell or file format to print for
    #[arg(long, value_enum, default_value_t)]
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
    #[arg(long, conflicts_with_all = ["set", "threads"])]
    per_node: bool,
    #[command(flatten)]
    threads: ThreadsOption,
    /// Print all findings on stderr, including notes
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    #[command(flatten)]
    quiet: Quiet,
}

pub(super) fn run(options: Options) -> Result<(), Failure> {
    let (dialect, quiet) = (Dialect::from(options.shell), options.quiet);
    // All or nothing: half of the variables would be worse than none.
    let text = text(options);
    stream::print(text.as_deref().unwrap_or(dialect.stop()).as_bytes())?;
    if text.is_ok()
        && stream::is_read_by_a_person()
        && !quiet.is_asked(&Environment::current())
        && let Some(line) = line(dialect)
    {
        stream::report(&format!(
            "mpienv: these lines were only printed; to set the variables, type {line}\n"
        ));
    }
    text.map(drop)
}

/// Returns the line that sets the variables in a shell of this dialect, with the options of this
/// command.
fn line(dialect: Dialect) -> Option<String> {
    let typed: Vec<_> = std::env::args_os().skip(1).collect();
    let typed = program::line(&typed);
    Some(match dialect {
        Dialect::Posix | Dialect::Apptainer => format!("eval \"$(mpienv {typed})\""),
        Dialect::Fish => format!("mpienv {typed} | source"),
        Dialect::Csh => format!("eval \"`mpienv {typed}`\""),
        Dialect::PowerShell => format!("mpienv {typed} | Out-String | Invoke-Expression"),
        Dialect::Cmd => format!("for /f \"delims=\" %i in ('mpienv {typed}') do @%i"),
        // Files and JSON are for other readers.
        _ => return None,
    })
}

fn text(options: Options) -> Result<String, Failure> {
    let Options { place, shell, program, per_node, threads, verbose, quiet } = options;
    let info = place.read(quiet)?;
    let threads = threads.in_shell(&info)?;
    if verbose {
        stream::report(&lines_of(info.findings()));
    } else {
        quiet.warn_also(&info, port::privileged_of_rank_0(&info));
    }
    let info = on_known_interface(info)?;
    let reader = program.reader(per_node);
    let plan = Plan::new(&info, &PlanOptions { reader, threads, ..PlanOptions::default() });
    let exports = plan.for_shell(reader)?;
    Ok(exports.to_text(shell.into())? + &passed_on(shell.into(), &exports, info.environment())?)
}

/// Which processes meet. The files of containers name these variables without their values, because
/// some are secrets: the runtime, or the shell, takes the values from its environment.
const OF_MEETING: [&str; 5] =
    ["MPIENV_TOKEN", "MPIENV_TOKEN_FILE", "MPIENV_AUTH", "MPIENV_CONTEXT", "MPIENV_RESTART_COUNT"];

/// Returns the lines that pass the variables of the meeting on to a container.
fn passed_on(
    dialect: Dialect,
    exports: &Exports,
    environment: &Environment,
) -> Result<String, Unrepresentable> {
    let mut text = String::new();
    for name in OF_MEETING {
        let is_decided = exports.iter().any(|(own, _)| own == name);
        let Some(value) = environment.get(name).filter(|_| !is_decided) else { continue };
        match dialect {
            Dialect::Docker => text += &format!("{name}\n"),
            Dialect::Apptainer => {
                let mut alone = Exports::default();
                alone.set(name, value.to_string_lossy().into_owned());
                alone.to_text(dialect).map_err(|mut error| {
                    error.value = Some("...".to_owned());
                    error
                })?;
                text += &format!(
                    "export APPTAINERENV_{name}=\"${name}\" SINGULARITYENV_{name}=\"${name}\";\n"
                );
            }
            _ => {}
        }
    }
    Ok(text)
}

/// If the command line of an `export` is invalid, prints text that stops the shell that evaluates
/// it.
pub(super) fn stop_the_shell() {
    let words: Vec<OsString> =
        std::env::args_os().skip(1).take_while(|word| word != "--").collect();
    // Options may precede the subcommand, which is what is wrong then.
    let is_export = correction::verb_at(&words).is_some_and(|at| words[at] == NAME);
    if !is_export || stream::is_read_by_a_person() {
        return;
    }
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let after = words.iter().skip_while(|word| *word != "--shell").nth(1).map(AsRef::as_ref);
    let name = words.iter().find_map(|word| word.strip_prefix("--shell=")).or(after);
    // A wrong name is probably of a shell, and most have sh's `false`.
    let shell = name.and_then(|name| Shell::from_str(name, false).ok()).unwrap_or_default();
    // If stdout cannot be written, nothing can stop the shell.
    let _ = stream::print(Dialect::from(shell).stop().as_bytes());
}

/// What `mpienv export` can print; [`Dialect`] documents the limits of each.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
#[expect(clippy::enum_variant_names, reason = "PowerShell is a name")]
pub(super) enum Shell {
    /// Any POSIX shell: sh, dash, ksh
    #[default]
    #[value(aliases = ["dash", "ksh"])]
    Sh,
    /// Same as sh
    Bash,
    /// Same as sh
    Zsh,
    /// The fish shell
    Fish,
    /// csh and tcsh
    #[value(alias = "tcsh")]
    Csh,
    /// PowerShell on any system
    #[value(name = "powershell", alias = "pwsh")]
    PowerShell,
    /// Windows' cmd.exe
    Cmd,
    /// A .env file, as Docker Compose, python-dotenv and Node read it
    Dotenv,
    /// A file for docker run --env-file or podman run --env-file
    Docker,
    /// Variables of sh for a container of Apptainer or Singularity, also with --cleanenv
    #[value(alias = "singularity")]
    Apptainer,
    /// Lines to append to the file that GITHUB_ENV names in a GitHub Actions step
    #[value(name = "github")]
    GitHub,
    /// One JSON object for programs; null means unset
    Json,
}

impl From<Shell> for Dialect {
    fn from(shell: Shell) -> Dialect {
        match shell {
            Shell::Sh | Shell::Bash | Shell::Zsh => Dialect::Posix,
            Shell::Fish => Dialect::Fish,
            Shell::Csh => Dialect::Csh,
            Shell::PowerShell => Dialect::PowerShell,
            Shell::Cmd => Dialect::Cmd,
            Shell::Dotenv => Dialect::Dotenv,
            Shell::Docker => Dialect::Docker,
            Shell::Apptainer => Dialect::Apptainer,
            Shell::GitHub => Dialect::GitHub,
            Shell::Json => Dialect::Json,
        }
    }
}
