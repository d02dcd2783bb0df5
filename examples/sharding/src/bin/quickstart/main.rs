//! Trains the quick start of operator sharding, prints its plan, or merges its checkpoints.

mod folder;
mod network;
mod options;
mod threads;

use std::borrow::Borrow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mpienv::RankError;

use folder::FolderError;
use mpienv::collective::{CollectiveError, Group};
use mpienv_sharding::checkpoint::RunId;
use mpienv_sharding::checkpoint::{Checkpoint, CheckpointError};
use mpienv_sharding::exchange::gather;
use mpienv_sharding::execute::{ExecuteError, Executor, State};
use mpienv_sharding::file::atomic_write;
use mpienv_sharding::plan::{Plan, PlanError};
use mpienv_sharding::program::backend::{self, BackendError};
use mpienv_sharding::program::cluster::{self, ClusterError};
use mpienv_sharding::program::exit;
use mpienv_sharding::program::job::{self, JobError};
use mpienv_sharding::program::readiness::{self, OtherRank};
use options::{Action, QuickstartArgs, Training};

/// Steps per epoch.
const STEPS: u64 = 4;

fn main() -> ExitCode {
    job::finish("quickstart", run(&QuickstartArgs::of_process(), &mut io::stdout()))
}

/// Runs the program. Writes its output to `out`.
fn run(options: &QuickstartArgs, out: &mut dyn Write) -> Result<(), QuickstartError> {
    match &options.action {
        Some(Action::Plan(show)) => {
            let text =
                network::plan(&show.sharding, show.planned.ranks)?.text(show.planned.rank)?;
            out.write_all(text.as_bytes())
                .and_then(|()| out.flush())
                .map_err(QuickstartError::Output)
        }
        Some(Action::Merge(merge)) => {
            let parts = folder::newest(&merge.folders)?;
            let whole = Checkpoint::merge(&parts)?;
            whole.write(&merge.output)?;
            let (steps, count) = (whole.steps(), parts.len());
            writeln!(
                out,
                "{}: {steps} steps, merged from {count} checkpoints",
                merge.output.display()
            )
            .map_err(QuickstartError::Output)
        }
        None => train(&options.training, out),
    }
}

fn train(options: &Training, out: &mut dyn Write) -> Result<(), QuickstartError> {
    let info = cluster::place()?;
    if let Some(count) = options.threads {
        // Under a launcher, every process would train all ranks and write the same files.
        if info.world_size() > 1 {
            return Err(QuickstartError::Launched(info.world_size()));
        }
        info.starting(count).warn();
        return threads::train(options, count, out);
    }
    // Omit the transport's name. A rank that cannot start still connects, to tell the others why.
    let connected =
        backend::connect(options.backend, &info, options.timeout, &mut |_| {}, &mut |text| {
            exit::say("quickstart", &text);
        });
    let prepared = Prepared::new(options, info.world_size());
    // An error common to all ranks is printed at the end.
    let print = |error: &QuickstartError| {
        if !error.is_of_all_ranks() {
            exit::say("quickstart", error);
        }
    };
    job::run(connected, prepared, print, |prepared, group| {
        train_rank(options, prepared, group, |line| {
            out.write_all(line.as_bytes())
                .and_then(|()| out.flush())
                .map_err(QuickstartError::Output)
        })
    })
}

/// What a rank prepares before it trains with the others.
struct Prepared<'a> {
    plan: Plan,
    resumed: Option<Resumed<'a>>,
}

impl<'a> Prepared<'a> {
    /// Reads and checks everything that a rank of `world` needs, without writing anything.
    fn new(options: &'a Training, world: u32) -> Result<Prepared<'a>, QuickstartError> {
        let plan = network::plan(&options.sharding, world)?;
        let read = |path| -> Result<Resumed<'_>, QuickstartError> {
            let (checkpoint, digest) = folder::read(path)?;
            Ok(Resumed { path, checkpoint, digest })
        };
        Ok(Prepared { plan, resumed: options.resume_from.as_deref().map(read).transpose()? })
    }

    /// Returns the state in which a rank starts, and the run's ID.
    fn start(&self, options: &Training, rank: u32) -> Result<(State, RunId), QuickstartError> {
        let (plan, init) = (&self.plan, options.init());
        Ok(match &self.resumed {
            Some(Resumed { path, checkpoint, .. }) => {
                (checkpoint.state(path, plan, rank)?, checkpoint.run_id(plan))
            }
            None => (State::new(init.parameters(plan, rank)), RunId::new(plan, &init)),
        })
    }

    /// Returns what must be the same on all ranks besides the plan, a line each.
    fn terms(&self, options: &Training) -> String {
        let start = match &self.resumed {
            Some(Resumed { checkpoint, digest, .. }) => {
                format!("step {} of a file with SHA-256 {digest}", checkpoint.steps())
            }
            None => format!("{:?}", options.init()),
        };
        let Training { epochs, integrated, .. } = options;
        let version = env!("CARGO_PKG_VERSION");
        format!("version: {version}\nstart: {start}\nepochs: {epochs}\nintegrated: {integrated}")
    }
}

/// The checkpoint that a run resumes from.
struct Resumed<'a> {
    path: &'a Path,
    checkpoint: Checkpoint,
    /// The file's SHA-256.
    digest: String,
}

fn train_rank<'a>(
    options: &Training,
    prepared: Result<impl Borrow<Prepared<'a>>, QuickstartError>,
    group: &mut Group,
    mut print: impl FnMut(String) -> Result<(), QuickstartError>,
) -> Result<(), QuickstartError> {
    let rank = group.rank().index();
    let checkpoints = folder::of_rank(&options.output, rank);
    let own = prepared.and_then(|prepared| Ok((prepared, folder::take(&checkpoints)?)));
    let (prepared, _lock) = readiness::of_all(own, group, QuickstartError::NotReady)?;
    let prepared = prepared.borrow();
    let plan = &prepared.plan;
    let (mut state, run_id) = prepared.start(options, rank)?;
    let mut executor = Executor::new(plan, &prepared.terms(options), group)?;
    save_graphs(plan, rank, &options.output).map_err(QuickstartError::Output)?;
    let (samples, labels) = network::draw();
    while state.steps < u64::from(options.epochs) * STEPS {
        let moment @ (epoch, step) = folder::moment_after(state.steps);
        let loss = executor.step(&mut state, &samples, &labels)?;
        if !loss.is_finite() {
            return Err(QuickstartError::Diverged { epoch, step, loss });
        }
        let text = network::repr(f64::from(loss));
        let printed = print(format!("epoch: {epoch} step: {step}, loss is {text}\n"));
        let reader_gone = printed.as_ref().is_err_and(QuickstartError::is_reported);
        if !reader_gone {
            printed?;
        }
        let checkpoint = if options.integrated {
            integrated(plan, &state, &run_id, group)?
        } else {
            Checkpoint::new(plan, rank, &state, &run_id)
        };
        folder::add(&checkpoints, moment, &checkpoint)?;
        // All ranks stop after the same step. If one exited alone, the others would report it as
        // lost.
        let mut gone = [f32::from(u8::from(reader_gone))];
        group.all_reduce_sum(&mut gone)?;
        if gone != [0.0] {
            return Err(QuickstartError::Output(io::ErrorKind::BrokenPipe.into()));
        }
    }
    Ok(())
}

/// Writes the network and the rank's instructions.
fn save_graphs(plan: &Plan, rank: u32, output: &Path) -> io::Result<()> {
    let graphs = output.join("saved_graph").join(format!("rank_{rank}"));
    atomic_write::write(&graphs.join("step_parallel_begin_0000.ir"), plan.graph().as_bytes())?;
    let instructions = plan.instructions_of(rank);
    atomic_write::write(&graphs.join("18_execute_0000.ir"), instructions.as_bytes())
}

/// Merges the parts of all ranks, on every rank.
fn integrated(
    plan: &Plan,
    own: &State,
    run_id: &RunId,
    group: &mut Group,
) -> Result<Checkpoint, QuickstartError> {
    let tensors: Vec<_> = own.parameters.iter().chain(&own.momenta).cloned().collect();
    let of_rank = |(rank, mut parameters): (u32, Vec<_>)| {
        let momenta = parameters.split_off(own.parameters.len());
        let state = State { parameters, momenta, steps: own.steps };
        (PathBuf::from(format!("rank {rank}")), Checkpoint::new(plan, rank, &state, run_id))
    };
    let parts: Vec<_> = (0..).zip(gather(&tensors, group)?).map(of_rank).collect();
    Ok(Checkpoint::merge(&parts)?)
}

/// Why `quickstart` fails.
#[derive(Debug, thiserror::Error)]
enum QuickstartError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Ranks(#[from] RankError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A launcher started several processes, each of which would run all ranks.
    #[error(
        "this is one of {0} ranks: start quickstart --threads only once, without mpirun or srun; or omit --threads, and \
         each process takes its rank from its launcher"
    )]
    Launched(u32),
    /// This rank cannot start. The other ranks know why.
    #[error(transparent)]
    NotReady(Box<QuickstartError>),
    /// Another rank cannot start.
    #[error(transparent)]
    OtherRank(#[from] OtherRank),
    #[error(
        "rank {rank} of {count} cannot be started: {error}; use fewer --threads, or raise the limits (`ulimit -u`, `ulimit -v`)"
    )]
    Thread { rank: u32, count: u32, error: io::Error },
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(
        "epoch: {epoch} step: {step}: the loss is {loss}: training diverged; try a smaller --lr"
    )]
    Diverged { epoch: u64, step: u64, loss: f32 },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}

impl JobError for QuickstartError {
    /// Returns whether the reader of stdout, such as `head`, has exited, which is not a failure.
    fn is_reported(&self) -> bool {
        matches!(self, QuickstartError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    fn exit_code(&self) -> u8 {
        match self {
            _ if self.is_reported() => exit::READER_GONE,
            QuickstartError::Collective(error)
            | QuickstartError::Execute(ExecuteError::Collective(error)) => {
                exit::of_collective(error)
            }
            QuickstartError::Backend(error) => error.exit_code(),
            QuickstartError::NotReady(error) => error.exit_code(),
            QuickstartError::Diverged { .. } => exit::TRAINING_FAILED,
            _ => exit::WRONG_INPUT,
        }
    }

    fn is_of_all_ranks(&self) -> bool {
        use ExecuteError::{Disagreement, World};
        self.is_reported()
            || matches!(
                self,
                QuickstartError::NotReady(_)
                    | QuickstartError::OtherRank(_)
                    | QuickstartError::Execute(Disagreement { .. } | World { .. })
                    | QuickstartError::Diverged { .. }
            )
    }
}
