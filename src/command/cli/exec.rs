//! `mpienv exec`: runs a command with the variables set, in place of this process.

use std::ffi::OsString;
use std::time::Duration;

use crate::command::doctor::{self, port};
use crate::{ClusterInfo, Exports, Finding, Launch};
use clap::Args;
use mpienv_ask::on_interface;
use mpienv_core::seam::{Plan, PlanOptions, TargetFile};
use mpienv_launch::seam::{
    exec, launch_with_plan_options, leave_file, whole_process, widen_default_binding,
};

use super::meet::{MeetOption, wait_for_address};
use super::place::JointPlaceOptions;
use super::program::{ProgramOptions, command, print};
use super::threads::Runs;
use super::typed::{self, By, LauncherOption};
use super::warn::PATIENCE;
use super::worker::worker;
use super::worker_count::differs;
use super::{Failure, Program, Quiet, bind, examples, launch, stream, time, warn};

/// The subcommand's name.
pub(super) const NAME: &str = "exec";

/// Run a command with the variables set (replaces this process)
///
/// The command keeps the process number, the open files and the ignored signals. The exceptions
/// are SIGPIPE and SIGCHLD, which are reset to their defaults;
/// `mpienv exec -- sh -c 'trap "" PIPE; exec "$@"' sh CMD` ignores SIGPIPE.
#[derive(Args, Debug)]
#[command(after_help = examples::EXEC)]
pub(super) struct Options {
    #[command(flatten)]
    place: JointPlaceOptions,
    #[command(flatten)]
    program: Program,
    /// Set the node's variables, and unset RANK, WORLD_SIZE and LOCAL_RANK: for torchrun only
    ///
    /// Sets what `mpienv export --per-node` prints.
    /// `mpienv exec --per-node -- torchrun --nproc-per-node 8 train.py` finds the other nodes
    /// without further options.
    #[arg(long, conflicts_with_all = ["set", "threads"])]
    per_node: bool,
    /// Keep Open MPI's default binding to cores; without this option the command may use all cores
    /// of its mpirun
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
    given: ProgramOptions,
    /// Print the command, one argument per line and quoted for a shell, and start nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    launcher: LauncherOption,
    /// Start once the master's name resolves, or fail after a time such as 90s or 10m
    ///
    /// In Kubernetes, pods start before their names resolve. If the name does not resolve in time,
    /// the exit code is 124.
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait_for_master: Option<Duration>,
    #[command(flatten)]
    meet: MeetOption,
    #[command(flatten)]
    quiet: Quiet,
}

pub(super) fn run(options: Options) -> Result<(), Failure> {
    let info = options.read()?;
    let mut wanted = options.plan_options();
    let words = Plan::new(&info, &wanted).words?;
    let by = By::Exec { per_node: options.per_node };
    options.launcher.check(&info, by, &words)?;
    let is_starter = options.per_node || options.starts_others(&info, &words);
    let runs = Runs { keeps_binding: options.keep_binding, is_starter };
    let threads = options.given.threads.share(&info, runs)?;
    wanted.threads = threads.count;
    // A template may pass a script its place.
    let of_command = if options.per_node && !options.given.template {
        typed::script_of_node(&info, &words)
    } else if is_starter {
        None
    } else {
        differs(&info, "exec", 1)
    };
    let also = threads.finding().into_iter().chain(of_command);
    if !options.dry_run {
        options.meet.check(&info)?;
    }
    wanted.said = options.warn(&info, also);
    if options.dry_run {
        return Ok(print(&words)?);
    }
    if !options.keep_binding {
        widen_default_binding(&info, info.environment());
    }
    if let Some(bound) = bind::this_process(options.bind, &info, options.quiet)? {
        wanted.also.push(bound);
        // The program's threads are for the cores that it is bound to now.
        let runs = Runs { keeps_binding: true, ..runs };
        wanted.threads = options.given.threads.share(&info, runs)?.count;
    }
    let info = on_interface(&info)?;
    let plan = Plan::new(&info, &wanted);
    let plan = options.meet.meet_and_replan(plan, &info, &mut wanted, options.quiet)?;
    perform(plan, &info, wanted)
}

impl Options {
    /// Reads this process's place, and waits for its master.
    fn read(&self) -> Result<ClusterInfo, Failure> {
        let info = self.place.read(self.quiet)?;
        self.given.check_words()?;
        if let Some(patience) = self.wait_for_master.filter(|_| !self.dry_run) {
            // This host's own address depends on the route to the master, so the master's name must
            // resolve first.
            let host = info.master_addr()?;
            wait_for_address(host, patience, |left| doctor::addresses(host, left))?;
        }
        Ok(self.given.with_own_addr(info))
    }

    /// Returns what decides what the command gets, as far as the options tell.
    fn plan_options(&self) -> PlanOptions {
        PlanOptions {
            is_marked: !self.per_node,
            keeps_binding: self.keep_binding,
            meets: self.meet.is_asked(),
            ..self.given.plan_options(self.program.reader(self.per_node))
        }
    }

    /// Returns whether the command probably starts other processes, which divide the node's cores
    /// by themselves: a launcher, or the node's server of a template, such as `ray start`.
    fn starts_others(&self, info: &ClusterInfo, words: &[OsString]) -> bool {
        typed::find(words).is_some() || self.given.template && info.local_world_size() == Some(1)
    }

    /// Prints what is probably wrong. Returns the codes of what is also wrong for the command.
    fn warn(&self, info: &ClusterInfo, also: impl Iterator<Item = Finding>) -> Vec<String> {
        // A meeting of several ranks finds out by itself whether rank 0 can listen, and fails.
        let is_met = self.meet.is_asked() && info.world_size() > 1;
        let of_port = if is_met { None } else { port::of_rank_0(info) };
        let is_alone = self.dry_run || is_met;
        let master = if is_alone { None } else { doctor::master_of_several_nodes(info, PATIENCE) };
        let of_words = self.given.same_words_on_node(info);
        let findings = of_words.into_iter().chain(master).chain(of_port).chain(also);
        let said = self.quiet.warn_also(info, findings);
        if !self.dry_run && !self.meet.is_asked() {
            warn::starts_anyway(&said);
        }
        said.iter().map(|finding| finding.code.to_owned()).collect()
    }
}

/// Becomes the command, or starts it beside its scheduler.
fn perform(plan: Plan, info: &ClusterInfo, plan_options: PlanOptions) -> Result<(), Failure> {
    let (words, mut variables) = (plan.words?, plan.variables?);
    if let Some(file) = plan.file {
        write_file(file, &mut variables)?;
    }
    if plan.scheduler.is_some() {
        // They are two processes, so this one starts both and waits for them.
        let launch =
            launch_with_plan_options(Launch::with_scheduler(info), plan_options).subreaper(true);
        return whole_process(launch)
            .run(|_| worker(&words, None))
            .map_err(|error| launch::failure(&words, error));
    }
    let mut command = command(&words);
    variables.apply_to(&mut command);
    stream::close_again();
    Err(exec(&mut command).into())
}

/// Writes a file for the program, and sets the variable that names it.
fn write_file(file: TargetFile, exports: &mut Exports) -> Result<(), Failure> {
    let variable = file.variable;
    let (path, stays) = leave_file(file)?;
    let path = path.display().to_string();
    if stays {
        let line = format!("mpienv: {variable} is {path}; remove it when the program has exited\n");
        stream::report(&line);
    }
    exports.set(variable, path);
    Ok(())
}
