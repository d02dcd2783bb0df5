//! `mpienv exec`: runs a command with the variables set, in place of this process.

use std::ffi::OsString;
use std::process::Command;

use crate::command::doctor::port::in_use_on_one_node;
use crate::{Environment, Launch, Target};
use clap::Args;
use mpienv_core::seam::InfoSeam as _;
use mpienv_launch::seam::{exec, whole_process, widen_default_binding};

use super::inner_launcher::{By, LauncherOption};
use super::overrides::{self, Overrides};
use super::wait::{MasterOption, MeetOption};
use super::words::{self, TemplateOption};
use super::worker::worker;
use super::{Failure, Program, Quiet, examples, launch, stream};

/// The subcommand's name.
pub(super) const NAME: &str = "exec";

/// Run a command with the variables set (replaces this process)
///
/// The command keeps the process number, the open files and the ignored signals. The exception
/// is SIGPIPE, which is reset to its default;
/// `mpienv exec -- sh -c 'trap "" PIPE; exec "$@"' sh CMD` ignores it.
#[derive(Args, Debug)]
#[command(after_help = examples::EXEC)]
pub(super) struct Options {
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    program: Program,
    /// Set the node's variables instead, for a torchrun on each node
    ///
    /// Sets what `mpienv export --per-node` prints.
    /// `mpienv exec --per-node -- torchrun --nproc-per-node 8 train.py` finds the other nodes
    /// without further options.
    #[arg(long, conflicts_with = "set")]
    per_node: bool,
    /// Keep Open MPI's default binding to cores; without this option the command may use all cores
    ///
    /// By default mpirun binds each of one or two ranks to one core. mpienv keeps a binding that
    /// you asked mpirun for, and that of any other launcher. Pass this option if Open MPI 5 is to
    /// keep a binding, or if taskset or numactl set one between mpirun and mpienv: neither shows
    /// that you asked.
    #[arg(long)]
    keep_binding: bool,
    #[command(flatten)]
    template: TemplateOption,
    /// Print the words of the command, one a line and quoted for a shell, and start nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    launcher: LauncherOption,
    #[command(flatten)]
    master: MasterOption,
    #[command(flatten)]
    meet: MeetOption,
    #[command(flatten)]
    quiet: Quiet,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(options: Options) -> Result<(), Failure> {
    let Options { overrides, program: Program { set }, quiet, command: words, .. } = options;
    let environment = Environment::current();
    let info = overrides::read(overrides, &environment, quiet)?;
    options.template.check(&words)?;
    if !options.dry_run {
        // This host's own address depends on the route to the master, so the master's name must
        // resolve first.
        options.master.wait(&info)?;
    }
    let finding = options.template.finding(&info, &words);
    let values =
        || if options.per_node { info.per_node_placeholders() } else { Ok(info.placeholders()) };
    let words = options.template.apply(values, &words)?;
    let by = By::Exec { per_node: options.per_node };
    options.launcher.check(&info, &environment, by, &words)?;
    // A meeting of several ranks finds out by itself, and fails.
    let is_met = options.meet.is_asked() && info.world_size() > 1;
    let port = if is_met { None } else { in_use_on_one_node(&info, &environment) };
    let said = quiet.warn_also(&info, &environment, finding.into_iter().chain(port));
    let info = info.having_said(&said);
    if options.dry_run {
        return Ok(words::print(&words)?);
    }
    let exports = options.meet.exports(&info, |info| match options.per_node {
        true => info.per_node_exports(),
        false => info.marked().exports_for(set),
    })?;
    if !options.keep_binding {
        widen_default_binding(&info, &environment);
    }
    if set == Target::MindSpore && info.rank().is_first() {
        // The worker and the scheduler are two processes, so this process starts both and waits for
        // them.
        let launch = Launch::with_scheduler(&info).variables(set).subreaper(true);
        return whole_process(launch)
            .run(|_| worker(&words))
            .map_err(|error| launch::failure(&words, error));
    }
    let mut command = command(&words);
    exports.apply_to(&mut command);
    stream::close_again();
    Err(exec(&mut command).into())
}

/// Returns the command with these words, of which the first is its name.
pub(super) fn command(words: &[OsString]) -> Command {
    // clap requires at least one word.
    let (name, arguments) =
        words.split_first().map_or((OsString::new(), words), |(name, rest)| (name.clone(), rest));
    let mut command = Command::new(name);
    command.args(arguments);
    command
}
