//! Trains the quick start of operator sharding, prints its plan, or merges its checkpoints.

mod folder;
mod network;
mod options;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use mpienv::ClusterInfo;
use mpienv::collective::{Group, threads};
use mpienv_sharding::checkpoint::{Checkpoint, RunId};
use mpienv_sharding::error::{Error, READER_GONE, Reach, TRAINING_FAILED};
use mpienv_sharding::exchange::gather;
use mpienv_sharding::execute::{Executor, State};
use mpienv_sharding::file;
use mpienv_sharding::plan::Plan;
use mpienv_sharding::{arguments, job};
use options::{Action, QuickstartArgs, Training};

/// Steps per epoch.
const STEPS: u64 = 4;

fn main() -> ExitCode {
    let options = arguments::parse_or_exit("quickstart", QuickstartArgs::parse_line);
    job::finish("quickstart", run(&options, &mut io::stdout()))
}

/// Runs the program. Writes its output to `out`.
fn run(options: &QuickstartArgs, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    match &options.action {
        Some(Action::Plan(show)) => {
            let text =
                network::plan(&show.sharding, show.planned.ranks)?.text(show.planned.rank)?;
            print(text.as_bytes(), out)
        }
        Some(Action::Merge(merge)) => {
            let parts = folder::newest(&merge.folders)?;
            let whole = Checkpoint::merge(&parts)?;
            whole.write(&merge.output)?;
            let (steps, count) = (whole.steps, parts.len());
            let output = merge.output.display();
            let text = format!("{output}: {steps} steps, merged from {count} checkpoints\n");
            print(text.as_bytes(), out)
        }
        None => train(&options.training, out),
    }
}

fn train(options: &Training, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let info = ClusterInfo::from_env()?;
    let size = info.world_size();
    if let Some(count) = options.threads {
        // Under a launcher, every process would train all ranks and write the same files.
        if size > 1 {
            return Err(Error::input(format!(
                "this is one of {size} ranks: start quickstart --threads only once, without mpirun \
                 or srun; or omit --threads, and each process takes its rank from its launcher"
            )));
        }
        info.starting(count).warn();
        return train_threads(options, count, out);
    }
    // Omit the transport's name. A rank that cannot start still connects, to tell the others why.
    let warn = |text: &str| job::say("quickstart", &text);
    let connected = job::connect(options.backend, &info, options.timeout, &|_| {}, &warn);
    job::run("quickstart", connected, Prepared::new(options, size), |prepared, group| {
        let prepared = prepared.as_ref().map_err(Error::clone);
        train_rank(options, prepared, group, |line, _| print(line.as_bytes(), out))
    })
}

/// Trains `count` ranks as threads of this process. Rank 0 writes the lines of all.
fn train_threads(
    options: &Training,
    count: u32,
    out: &mut (dyn Write + Send),
) -> Result<(), Error> {
    let out = Mutex::new(out);
    let prepared = Prepared::new(options, count)?;
    let results = threads::run(count, options.timeout, |group| {
        train_rank(options, Ok(&prepared), group, |line, group| {
            let lines = group.all_gather(line.as_bytes())?.concat();
            if !group.rank().is_first() {
                return Ok(());
            }
            print(&lines, *out.lock().unwrap_or_else(PoisonError::into_inner))
        })
    });
    let results = results.map_err(|error| {
        Error::input(format!(
            "the threads of {count} ranks: {error}; use fewer --threads, or \
             raise the limits (`ulimit -n`, `ulimit -u`, `ulimit -v`)"
        ))
    });
    // If one rank fails, the others report it as lost. The cause is that rank's error.
    let errors = results?.into_iter().filter_map(Result::err);
    let cause = errors.min_by_key(|error| matches!(error.reach, Reach::Lost | Reach::Other));
    cause.map_or(Ok(()), Err)
}

fn print(text: &[u8], out: &mut dyn Write) -> Result<(), Error> {
    job::print(text, "output", out)
}

/// What a rank prepares before it trains with the others.
struct Prepared<'a> {
    plan: Plan,
    /// The checkpoint that the run resumes from, with its path and SHA-256.
    resumed: Option<(&'a Path, Checkpoint, String)>,
}

impl<'a> Prepared<'a> {
    /// Reads and checks everything that a rank of `world` needs, without writing anything.
    fn new(options: &'a Training, world: u32) -> Result<Prepared<'a>, Error> {
        let plan = network::plan(&options.sharding, world)?;
        let resumed = match options.resume_from.as_deref() {
            Some(path) => folder::read(path).map(|(read, digest)| Some((path, read, digest)))?,
            None => None,
        };
        Ok(Prepared { plan, resumed })
    }

    /// Returns the state in which a rank starts, and the run's ID.
    fn start(&self, options: &Training, rank: u32) -> Result<(State, RunId), Error> {
        let (plan, init) = (&self.plan, options.init());
        Ok(match &self.resumed {
            Some((path, read, _)) => (read.state(path, plan, rank)?, read.run_id(plan)),
            None => (State::new(init.parameters(plan, rank)), RunId::new(plan, &init)),
        })
    }

    /// Returns what must be the same on all ranks besides the plan, a line each.
    fn terms(&self, options: &Training) -> String {
        let start = match &self.resumed {
            Some((_, read, digest)) => {
                format!("step {} of a file with SHA-256 {digest}", read.steps)
            }
            None => format!("{:?}", options.init()),
        };
        let Training { epochs, integrated, .. } = options;
        let version = env!("CARGO_PKG_VERSION");
        format!("version: {version}\nstart: {start}\nepochs: {epochs}\nintegrated: {integrated}")
    }
}

fn train_rank(
    options: &Training,
    prepared: Result<&Prepared<'_>, Error>,
    group: &mut Group,
    mut print: impl FnMut(&str, &mut Group) -> Result<(), Error>,
) -> Result<(), Error> {
    let rank = group.rank().index();
    let checkpoints = folder::rank_folder(&options.output, rank);
    let own = prepared.and_then(|prepared| Ok((prepared, folder::take(&checkpoints)?)));
    let (prepared, _lock) = job::all_ready(own, group)?;
    let plan = &prepared.plan;
    let (mut state, run_id) = prepared.start(options, rank)?;
    let mut executor = Executor::new(plan, &prepared.terms(options), group)?;
    save_graphs(plan, rank, &options.output).map_err(|error| Error::output("output", &error))?;
    let (samples, labels) = network::draw();
    while state.steps < u64::from(options.epochs) * STEPS {
        let moment @ (epoch, step) = folder::moment_after(state.steps);
        let loss = executor.step(&mut state, &samples, &labels)?;
        if !loss.is_finite() {
            let text = format!("epoch: {epoch} step: {step}: the loss is {loss}");
            let text = format!("{text}: training diverged; try a smaller --lr");
            return Err(Error::new(TRAINING_FAILED, text).reaching(Reach::All));
        }
        let text = network::repr(f64::from(loss));
        let printed = print(&format!("epoch: {epoch} step: {step}, loss is {text}\n"), group);
        let reader_gone = printed.as_ref().is_err_and(|error| error.code == READER_GONE);
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
            return Err(Error::reader_gone());
        }
    }
    Ok(())
}

/// Writes the network and the rank's instructions.
fn save_graphs(plan: &Plan, rank: u32, output: &Path) -> io::Result<()> {
    let graphs = output.join("saved_graph").join(format!("rank_{rank}"));
    file::write(&graphs.join("step_parallel_begin_0000.ir"), plan.graph().as_bytes())?;
    let instructions = plan.instructions_of(rank);
    file::write(&graphs.join("18_execute_0000.ir"), instructions.as_bytes())
}

/// Merges the parts of all ranks, on every rank.
fn integrated(
    plan: &Plan,
    own: &State,
    run_id: &RunId,
    group: &mut Group,
) -> Result<Checkpoint, Error> {
    let tensors: Vec<_> = own.parameters.iter().chain(&own.momenta).cloned().collect();
    let of_rank = |(rank, mut parameters): (u32, Vec<_>)| {
        let momenta = parameters.split_off(own.parameters.len());
        let state = State { parameters, momenta, steps: own.steps };
        (PathBuf::from(format!("rank {rank}")), Checkpoint::new(plan, rank, &state, run_id))
    };
    let parts: Vec<_> = (0..).zip(gather(&tensors, group)?).map(of_rank).collect();
    Checkpoint::merge(&parts)
}
