//! `mpienv exec`: runs a command with the variables set, in place of this process.

use std::ffi::OsString;
use std::process::Command;

use crate::command::doctor::port;
use crate::{ClusterInfo, Environment, Exports, Finding, Launch, Target};
use clap::Args;
use mpienv_core::seam::{ExportsSeam as _, InfoSeam as _, TargetFile};
use mpienv_launch::seam::{exec, leave_file, whole_process, widen_default_binding};

use super::inner_launcher::{By, LauncherOption, is_launcher};
use super::overrides::{AskOption, Overrides};
use super::threads::{For, ThreadsOption};
use super::wait::{MasterOption, MeetOption};
use super::words::{self, TemplateOption};
use super::worker::worker;
use super::{Failure, Program, Quiet, bind, examples, launch, stream, warn};

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
    ask: AskOption,
    #[command(flatten)]
    program: Program,
    /// Set the node's variables instead, for a torchrun on each node
    ///
    /// Sets what `mpienv export --per-node` prints.
    /// `mpienv exec --per-node -- torchrun --nproc-per-node 8 train.py` finds the other nodes
    /// without further options.
    #[arg(long, conflicts_with_all = ["set", "threads"])]
    per_node: bool,
    /// Keep Open MPI's default binding to cores; without this option the command may use all cores
    ///
    /// By default mpirun binds each of one or two ranks to one core. mpienv keeps a binding that
    /// you asked mpirun for, and that of any other launcher. Pass this option if Open MPI 5 is to
    /// keep a binding, or if taskset or numactl set one between mpirun and mpienv: neither shows
    /// that you asked.
    #[arg(long)]
    keep_binding: bool,
    /// Bind the command to cores; memory follows by the first write to it
    ///
    /// The rank's share is the same as that of `mpienv launch --bind`. A binding that you asked
    /// mpirun for, and that of any other launcher, stays, and mpienv says so on stderr. If there
    /// are more ranks than cores, ranks share cores evenly. If a rank sees only its own device, the
    /// cores are divided among all devices of the NUMA node.
    #[arg(long, value_name = "TO", value_enum, default_value_t, conflicts_with_all = ["keep_binding", "per_node"])]
    bind: bind::To,
    #[command(flatten)]
    threads: ThreadsOption,
    #[command(flatten)]
    template: TemplateOption,
    /// Print the command, one argument per line and quoted for a shell, and start nothing
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
    let Options { overrides, ask, program: Program { set }, quiet, command: words, .. } = options;
    let environment = Environment::current();
    let info = ask.read(overrides, &environment, quiet)?;
    options.template.check(&words)?;
    if !options.dry_run {
        // This host's own address depends on the route to the master, so the master's name must
        // resolve first.
        options.master.wait(&info)?;
    }
    let finding = options.template.finding(&info, &words);
    let values =
        || if options.per_node { info.per_node_placeholders() } else { Ok(info.placeholders()) };
    // The secret comes with the meeting, and errors come before it.
    let has_secret = options.template.has_secret(&words) && options.meet.is_asked();
    let later = has_secret.then(|| values().map(|values| (values, words.clone()))).transpose()?;
    let now = || Ok(if has_secret { values()?.with_secret("{secret}") } else { values()? });
    let words = options.template.apply(now, &words)?;
    let by = By::Exec { per_node: options.per_node };
    options.launcher.check(&info, &environment, by, &words)?;
    let port = of_port(options.meet, &info);
    let is_starter = options.per_node || starts_others(&info, options.template, &words);
    let program = For { keep_binding: options.keep_binding, is_starter };
    let threads = options.threads.plan(&info, &environment, program)?;
    let findings = finding.into_iter().chain(port).chain(threads.finding());
    let said = quiet.warn_also(&info, &environment, findings);
    let info = info.having_said(&said);
    if options.dry_run {
        return Ok(words::print(&words)?);
    }
    if !options.meet.is_asked() {
        warn::starts_anyway(&said);
    }
    if !options.keep_binding {
        widen_default_binding(&info, &environment);
    }
    let bound = bind::this_process(options.bind, &info, &environment, quiet)?;
    // The program's threads are for the cores that it is bound to now.
    let program = For { keep_binding: true, is_starter };
    let threads = match bound {
        Some(_) => options.threads.plan(&info, &environment, program)?,
        None => threads,
    };
    let info = threads.apply(info);
    let info = if options.keep_binding { info.keeping_binding() } else { info };
    let info = info.on_interface()?;
    let exports = exports(options.meet, &info, if options.per_node { None } else { Some(set) })?;
    let (words, secrets) = match later.zip(options.meet.secret(&info)?) {
        Some(((values, words), secret)) => values.with_secret(&secret).expand_apart(&words)?,
        None => (words.into_owned(), Vec::new()),
    };
    if set == Target::MindSpore && info.rank().is_first() {
        let variables = |command: &mut Command| {
            command.envs(bound).envs(secrets.iter().map(|(name, value)| (name, value)));
        };
        return run_with_scheduler(&info, set, &words, variables);
    }
    let mut command = command(&words);
    exports.apply_to(&mut command);
    command.envs(bound).envs(secrets);
    stream::close_again();
    Err(exec(&mut command).into())
}

/// Returns the variables of a program, or those of a node without one.
fn exports(meet: MeetOption, info: &ClusterInfo, set: Option<Target>) -> Result<Exports, Failure> {
    let (mut exports, file) = meet.exports(info, |info| match set {
        None => Ok((info.per_node_exports()?, None)),
        Some(set) => info.marked().exports_and_file(set),
    })?;
    if let Some(file) = file {
        leave(file, &mut exports)?;
    }
    Ok(exports)
}

/// Runs the command twice, as rank 0's worker and as the scheduler. They are two processes, so this
/// process starts both and waits for them.
fn run_with_scheduler(
    info: &ClusterInfo,
    set: Target,
    words: &[OsString],
    add_variables: impl Fn(&mut Command),
) -> Result<(), Failure> {
    let launch = Launch::with_scheduler(info).variables(set).subreaper(true);
    whole_process(launch)
        .run(|_| {
            let mut command = worker(words, None);
            add_variables(&mut command);
            command
        })
        .map_err(|error| launch::failure(words, error))
}

/// Reports what may keep rank 0 from listening. A meeting of several ranks finds out by itself, and
/// fails.
fn of_port(meet: MeetOption, info: &ClusterInfo) -> Option<Finding> {
    let is_met = meet.is_asked() && info.world_size() > 1;
    if is_met { None } else { port::of_rank_0(info) }
}

/// Returns whether the command probably starts other processes, which divide the node's cores by
/// themselves: a launcher, or the node's server of a template, such as `ray start`.
fn starts_others(info: &ClusterInfo, template: TemplateOption, words: &[OsString]) -> bool {
    is_launcher(words) || template.is_asked() && info.local_world_size() == Some(1)
}

/// Writes a file for the program, and sets the variable that names it.
fn leave(file: TargetFile, exports: &mut Exports) -> Result<(), Failure> {
    let variable = file.variable;
    let (path, stays) = leave_file(file)?;
    let path = path.display().to_string();
    if stays {
        let line = format!("mpienv: {variable} is {path}; remove it when the program has exited\n");
        stream::report(line.as_bytes());
    }
    exports.set(variable, path);
    Ok(())
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
