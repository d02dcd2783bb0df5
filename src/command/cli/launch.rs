//! `mpienv launch`: starts this node's workers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::command::check::JobMap;
use crate::command::doctor::{self, devices, port};
use crate::command::open_files::OpenFiles;
use crate::{
    ClusterInfo, ErrorKind, Finding, Launch, LaunchError, Output, Severity, StartError, Threads,
};
use clap::Args;
use mpienv_ask::on_interface;
use mpienv_core::seam::{Plan, PlanOptions, WordsError, counted};
use mpienv_launch::seam::{
    for_terminal, foreseen, has_met, launch_with_plan_options, node_options, own_program, places,
    share_of_workers, topology, try_run, whole_process,
};

use super::meet::MeetOption;
use super::place::JointPlaceOptions;
use super::program::{ProgramOptions, command};
use super::threads::{Chosen, too_many};
use super::typed::{self, By, LauncherOption};
use super::warn::PATIENCE;
use super::worker::worker;
use super::worker_count::{Node, WorkerCount, differs};
use super::{Failure, Program, Quiet, bind, examples, number, stream, time, time_or_none, warn};

/// Start this node's workers, and stop them all when one fails
///
/// Use it for jobs with one process on each node, or to start N ranks on this machine without a
/// launcher. Each line of a worker's output starts with `[rank] `. SIGINT, SIGTERM, SIGHUP,
/// SIGUSR1 and SIGUSR2 are passed on. A second SIGINT or SIGTERM kills workers that ignore the
/// first, as does the end of --grace. When a worker fails, the others get SIGTERM and later
/// SIGKILL. The exit code is that of the first worker that failed, or 128 plus the signal's
/// number if a signal ended it. The node's first worker inherits stdin unless it is a terminal.
///
/// Everything that descends from a worker is stopped with the job, in any process group or
/// session, even if mpienv itself is killed. Processes of another user can survive. If mpienv was
/// killed, or replaced a shell that had children, a process can survive that has cleared its
/// environment and whose parents have exited. If /proc is empty or belongs to another PID
/// namespace, the worker's process group is stopped.
#[derive(Args, Debug)]
#[command(after_help = examples::LAUNCH)]
pub(super) struct Options {
    #[command(flatten)]
    place: JointPlaceOptions,
    #[command(flatten)]
    program: Program,
    /// How many workers to start on this node: a number, `auto`, `gpu` or `cpu`; the same on all
    /// nodes
    ///
    /// auto: the platform's number (SKYPILOT_NUM_GPUS_PER_NODE, DSTACK_GPUS_PER_NODE,
    /// PET_NPROC_PER_NODE, NUM_TRAINERS, LEPTON_RESOURCE_ACCELERATOR_NUM, MLP_WORKER_GPU,
    /// SM_NUM_GPUS, MA_NUM_GPUS, NPROC_PER_NODE), else one for each visible device
    /// (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES,
    /// /dev), else one for each core that the workers may use. mpienv says on stderr which. gpu:
    /// the devices; cpu: the cores. Several nodes that count devices or cores meet as with --meet
    /// 10m, and start no worker if their numbers differ. A number needs no meeting, and nothing
    /// compares it: if two nodes have different ones, ranks have wrong numbers.
    #[arg(long, value_name = "N", alias = "nproc_per_node", value_parser = WorkerCount::parse, allow_negative_numbers = true)]
    nproc_per_node: WorkerCount,
    /// Write the workers' output to DIR/rank.K/stdout and DIR/rank.K/stderr instead
    ///
    /// A later launch into the same DIR replaces the files of its ranks and keeps those of other
    /// ranks and attempts, so name a folder for each job, as in --log-dir logs/$SLURM_JOB_ID.
    #[arg(long, value_name = "DIR", alias = "log_dir")]
    log_dir: Option<PathBuf>,
    /// How long workers may take to exit: by default 5 s after one has failed, 30 s after SIGINT or
    /// SIGTERM
    ///
    /// Workers that remain are killed. A second SIGINT or SIGTERM kills them at once. With one
    /// value, both times are the same; `inf` waits forever. If workers save a checkpoint on
    /// SIGTERM, give them as long as the platform does (Slurm's KillWait,
    /// terminationGracePeriodSeconds in Kubernetes).
    #[arg(long, value_name = "TIME", value_parser = time_or_none, allow_negative_numbers = true)]
    grace: Option<Duration>,
    /// Start all workers again after one has failed, at most N times
    ///
    /// A worker that fails stops the workers of all nodes; then all start again, after a pause of
    /// 0.5 s that doubles up to 30 s. Pass the same number on every node: if two nodes differ,
    /// mpienv names them and exits with code 3. The nodes stay the same: if one is lost, mpienv
    /// names it on all others and exits with code 3. Workers read the attempt, from 0, in
    /// MPIENV_RESTART_COUNT and TORCHELASTIC_RESTART_COUNT; templates have {restart}, and the files
    /// of --log-dir are in DIR/attempt_K. Nothing restarts after exit codes 2, 126 and 127, or
    /// after mpienv has received SIGINT, SIGTERM, SIGHUP or SIGUSR1. The exit code is that of the
    /// last attempt.
    #[arg(
        long,
        value_name = "N",
        alias = "max_restarts",
        default_value_t = 0,
        value_parser = number,
        allow_negative_numbers = true
    )]
    max_restarts: u32,
    /// End a job that hangs: one none of whose workers has written anything for a time such as 10m
    /// or 2h
    ///
    /// Before it stops the workers, mpienv reports on stderr, for each rank of all nodes: how long
    /// ago it wrote its last line, and that line; what its main thread is doing, the system call in
    /// which it waits, and the CPU time that it has used; and, if py-spy is on PATH, where its
    /// Python code is. Ranks that differ from the others come first. With --log-dir, the report is
    /// also in DIR/stall.json, or DIR/attempt_K/stall.json with --max-restarts. A worker that
    /// computes for longer without output touches the file that MPIENV_HEARTBEAT_FILE names
    /// (mpienv_rs.heartbeat() in Python). A stall is a failure: --max-restarts applies, and the
    /// exit code is 124. Pass the same time on every node: if two nodes differ, mpienv names them
    /// and exits with code 3. Off by default, because a program may be silent while it compiles or
    /// loads a model.
    #[arg(long, value_name = "TIME", alias = "stall_timeout", value_parser = time, allow_negative_numbers = true)]
    stall_timeout: Option<Duration>,
    /// With --max-restarts or --stall-timeout on several nodes: how long a node may be silent
    /// before the job ends; the same on every node
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = time)]
    node_timeout: Duration,
    /// Keep the binding of mpienv to cores; without this option the workers may use all cores of the
    /// job
    ///
    /// The cores of the job are those of the programs that started mpienv, up to the mpirun that
    /// bound it, or to the shell in which taskset did. Workers never leave the cores that a batch
    /// system, such as Slurm, gave mpienv.
    #[arg(long)]
    keep_binding: bool,
    /// Bind each worker to cores; memory follows by the first write to it
    ///
    /// If there are more workers than cores, workers share cores evenly, and mpienv says so on
    /// stderr. With --keep-binding, only the cores to which mpienv is bound are divided. A worker's
    /// device is the one with the number of its local rank among those that CUDA_VISIBLE_DEVICES
    /// (for AMD, ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES) shows, in the order of the PCI bus.
    #[arg(long, value_name = "TO", value_enum, default_value_t)]
    bind: bind::To,
    #[command(flatten)]
    given: ProgramOptions,
    #[command(flatten)]
    launcher: LauncherOption,
    #[command(flatten)]
    meet: MeetOption,
    #[command(flatten)]
    quiet: Quiet,
}

pub(super) fn run(mut options: Options) -> Result<(), Failure> {
    let info = options.place.read(options.quiet).map_err(LaunchError::from)?;
    // The reason may be that the place is left from another job.
    let quiet = options.quiet;
    let say_stale = |info: &ClusterInfo| {
        quiet.print(info, warn::stale(info).as_slice());
    };
    let workers = options.count(&info).inspect_err(|_| say_stale(&info))?;
    let words = &options.given.command[..];
    options.launcher.check(&info, By::Launch { workers }, words)?;
    if options.log_dir.is_none() {
        drop(stream::stdout()?);
    }
    let info = on_interface(&options.given.with_own_addr(info))?;
    let launch = Launch::new(&info, workers).inspect_err(|_| say_stale(&info));
    let launch = launch.map_err(|error| failure(words, error))?;
    // Before its places are asked for: with restarts, they contain the number of the attempt.
    let launch = launch.max_restarts(options.max_restarts).node_timeout(options.node_timeout);
    let mut launch = options.stall_timeout.into_iter().fold(launch, Launch::stall_timeout);
    options.given.check_words()?;
    let places = places(&mut launch);
    // Expanding the words now reports errors before anything starts.
    let first = places.iter().map(|place| options.words(place)).collect::<Result<Vec<_>, _>>()?;
    let named = first.first().map_or(words, |words| words);
    let chosen = options.given.threads.chosen(info.environment())?;
    let few = few_devices(places.first());
    options.meet.check(&info.starting(workers))?;
    let said = options.warn(&info, places.first(), chosen, workers, few.clone());
    let of_node = node_options(&launch);
    let is_joint = of_node.is_joint();
    let map = options.meet.wait(&info, Some(of_node), quiet).map_err(|failure| {
        failure
            .unless_said(said.iter().map(|finding| finding.code))
            .of_nodes(options.meet.is_unasked())
    })?;
    // Launches that stay connected say it themselves.
    map.iter().filter(|_| !is_joint).for_each(JobMap::tell_if_on_one_host);
    let launch = has_met(launch, options.meet.time());
    let launch = options.limited(launch, chosen.map(|(threads, _)| threads));
    // Stays in effect while this process is connected to those of the other nodes. Only if a worker
    // can restore the limit for itself, for which this program must be found.
    let files = (is_joint && own_program().is_some()).then(|| OpenFiles::for_meeting(&info));
    let before = files.as_ref().and_then(|files| files.before);
    let mut fault: Option<Failure> = None;
    // Once more, because ports and the number of the attempt change between attempts.
    let outcome = try_run(whole_process(launch), |place| {
        options.worker(place, before).map_err(|error| fault.insert(error).to_string())
    });
    match (outcome, fault) {
        (Err(LaunchError::OtherNode { .. }), Some(fault)) => Err(fault),
        (outcome, _) => outcome.map_err(|error| {
            let is_quiet = quiet.is_asked(info.environment());
            let is_of_worker = matches!(error.kind(), ErrorKind::Failed(_));
            if let Some(few) = few.filter(|_| is_of_worker && !is_quiet) {
                stream::report(&format!("mpienv: a reason may be that {}\n", few.what));
            }
            failure(named, for_terminal(error, is_quiet))
        }),
    }
}

impl Options {
    /// Returns what decides what each worker gets, as far as the options tell.
    fn plan_options(&self) -> PlanOptions {
        self.given.plan_options(self.program.reader(false))
    }

    /// Returns the words of a worker's command.
    fn words(&self, place: &ClusterInfo) -> Result<Vec<OsString>, WordsError> {
        Plan::new(place, &self.plan_options()).words
    }

    /// Returns a worker's command. Reports what would keep every worker from starting: all of them
    /// would say the same.
    fn worker(&self, place: &ClusterInfo, files: Option<u64>) -> Result<Command, Failure> {
        let words = self.words(place)?;
        match foreseen(&command(&words)) {
            Some(error) => Err(error.into()),
            None => Ok(worker(&words, files)),
        }
    }

    /// Prints what is probably wrong with this node, and with starting the workers. Returns what it
    /// printed about the place.
    fn warn(
        &self,
        info: &ClusterInfo,
        first: Option<&ClusterInfo>,
        chosen: Chosen,
        workers: u32,
        few: Option<Finding>,
    ) -> Vec<Finding> {
        let of_words = first.and_then(|place| self.given.same_words_on_node(place));
        let ranks = first.and_then(|place| place.ranks_on_host());
        let share = ranks.map(|ranks| share_of_workers(ranks, self.keep_binding));
        let too_many = share.and_then(|share| too_many(chosen, info.users_threads(), &share));
        // A meeting of several nodes finds out by itself whether rank 0 can listen, and fails.
        let is_met = self.meet.is_asked() && info.world_size() > 1;
        let port = first.filter(|_| !is_met).and_then(port::of_rank_0);
        let master = if is_met { None } else { doctor::master_of_several_nodes(info, PATIENCE) };
        let of_count = differs(info, "launch", workers);
        let findings = of_words.into_iter().chain(master).chain(too_many).chain(port);
        let findings = findings.chain(few).chain(of_count);
        let said = self.quiet.warn_also(&info.starting(workers), findings);
        if !self.meet.is_asked() {
            warn::starts_anyway(&said);
        }
        said
    }

    /// Returns the launch with the options that limit the workers, and say what they get.
    fn limited(&self, launch: Launch, chosen: Option<Threads>) -> Launch {
        let output = self.log_dir.clone().map_or(Output::Prefixed, Output::LogDir);
        let launch =
            launch_with_plan_options(launch, self.plan_options()).output(output).subreaper(true);
        let launch = launch.keep_binding(self.keep_binding).bind(self.bind.into());
        let launch = self.grace.into_iter().fold(launch, Launch::grace);
        // A launcher divides the node's cores by itself.
        let is_launcher = typed::find(&self.given.command).is_some();
        chosen.or(is_launcher.then_some(Threads::Keep)).into_iter().fold(launch, Launch::threads)
    }

    /// Returns how many workers this node gets. If they had to be counted, prints the source of the
    /// number, and has the nodes compare it.
    fn count(&mut self, info: &ClusterInfo) -> Result<u32, crate::Error> {
        if let WorkerCount::Fixed(workers) = self.nproc_per_node {
            return Ok(workers);
        }
        info.check_per_node()?;
        let platform = info.workers_of_platform();
        let node = Node::here(self.keep_binding, info.environment());
        let (workers, source) = self.nproc_per_node.resolve(platform, &node)?;
        // Launches that stay connected compare their numbers themselves.
        let is_joint = self.max_restarts > 0 || self.stall_timeout.is_some();
        let is_compared = info.world_size() > 1 && self.nproc_per_node.is_counted(platform);
        if is_compared && !is_joint {
            self.meet = self.meet.to_compare();
        }
        if !self.quiet.is_asked(info.environment()) {
            let workers = counted(workers as usize, "worker");
            let waits = if is_compared { "; waits for all nodes to compare it" } else { "" };
            stream::report(&format!("mpienv: {workers} on this node: {source}{waits}\n"));
        }
        Ok(workers)
    }
}

/// Returns the finding that the workers are more than the devices that they see.
fn few_devices(first: Option<&ClusterInfo>) -> Option<Finding> {
    let first = first?;
    devices::few(first, &topology(first.environment()).devices)
        .filter(|found| found.severity > Severity::Note)
}

/// Converts a launch error. A command that cannot be started gets the same message as under `exec`.
pub(super) fn failure(words: &[OsString], error: LaunchError) -> Failure {
    match error {
        LaunchError::Start { error, .. } => {
            StartError::new(&command(words), error.into_io()).into()
        }
        error => Failure::Launch(error),
    }
}
