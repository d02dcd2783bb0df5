//! The `mnist` program: from its options to its exit code.

pub mod plan;

use std::cell::RefCell;
use std::io::{self, Write};
use std::process::{self, Command};

use mpienv::Rank;

use crate::backend::{self, BackendError};
use crate::checkpoint::{self, Checkpoints};
use crate::cli::{self, Action, Options};
use crate::cluster::{self, ClusterError};
use crate::collective::Collective;
use crate::data::source::{Source, SourceError};
use crate::exit;
use crate::initial::{self, InitialError};
use crate::log::Log;
use crate::metrics::Metrics;
#[cfg(feature = "plot")]
use crate::plot::Plot;
#[cfg(feature = "progress")]
use crate::progress::Progress;
use crate::sharding::plan::PlanError;
use crate::stop::Stop;
use crate::train::{self, Sharded, TrainError};

/// What is said when there is no data: where the digits come from, and how to get real ones.
#[cfg(feature = "fetch")]
const EMBEDDED: &str = "training on embedded digits drawn by code; for MNIST: mnist fetch DIR, then --data DIR";
#[cfg(not(feature = "fetch"))]
const EMBEDDED: &str = "training on embedded digits drawn by code; for MNIST, put its four files into a folder \
and name it with --data or DATA_PATH";

/// Runs the program: trains, or starts ranks that do, or prints a plan, or fetches MNIST. Lines of the run go to `out`, remarks to `remarks`.
///
/// # Errors
/// When anything is wrong; [`MnistError::exit_code`] has the exit code.
pub fn run(options: &Options, mut out: impl Write, remarks: impl Write) -> Result<(), MnistError> {
    if let Some(parent) = options.end_with {
        cluster::end_with(parent).map_err(MnistError::Orphan)?;
    }
    match (&options.action, options.ranks) {
        (Some(Action::Plan(show)), _) => {
            let text = plan::text(show)?;
            out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(MnistError::Output)
        }
        #[cfg(feature = "fetch")]
        (Some(Action::Fetch(fetch)), _) => {
            // Ranks would write the same files at the same time.
            let ranks = cluster::place()?.world_size();
            if ranks > 1 { Err(MnistError::Ranks(ranks)) } else { Ok(fetch.fetch().run(out, remarks)?) }
        }
        #[cfg(not(feature = "fetch"))]
        (Some(Action::Fetch(_)), _) => Err(MnistError::NotBuilt { what: "mnist fetch", feature: "fetch" }),
        (_, Some(count)) => start_ranks(count),
        (_, None) => train(options, out, remarks),
    }
}

/// Starts ranks of this program with the same arguments; they know from their variables where they are.
fn start_ranks(count: u32) -> Result<(), MnistError> {
    let program = std::env::current_exe().map_err(MnistError::Program)?;
    let arguments = cli::without_ranks(std::env::args_os().skip(1));
    let command = || {
        let mut command = Command::new(&program);
        command.arg(format!("--end-with={}", process::id())).args(&arguments);
        command
    };
    Ok(cluster::start(count, command)?)
}

fn train(options: &Options, out: impl Write, mut remarks: impl Write) -> Result<(), MnistError> {
    if cfg!(not(feature = "plot")) && options.plot.is_some() {
        return Err(MnistError::NotBuilt { what: "--plot", feature: "plot" });
    }
    let info = cluster::place()?;
    let rank = info.world();
    let source = options.source();
    if source == Source::Embedded && rank.is_first() {
        // A remark that nobody can read is no reason to stop.
        let _ = remarks.write_all(format!("mnist: {EMBEDDED}\n").as_bytes());
    }
    let data = source.load()?;
    let plan = options.plan();
    // Before anything is written: a strategy that does not fit ends the run on every rank.
    let cut = (!options.cuts.strategies.is_empty()).then(|| {
        let share = plan.largest_share(data.train.count(), rank);
        plan::plan(options.model, &options.cuts, plan.learning_rate, rank.size(), share)
    });
    let cut = cut.transpose()?;
    let mut model = options.model.model(plan.largest_batch(data.train.count(), rank));
    let mut parameters = match &options.init {
        Some(file) => initial::read(file, &model.parameter_shapes())?,
        None => model.initial_parameters(plan.seed),
    };
    let metrics = metrics(options, rank)?;
    #[cfg(any(feature = "plot", feature = "progress"))]
    let steps = plan.steps(data.train.count(), rank);
    #[cfg(feature = "plot")]
    let plot = plot(options, rank, steps)?;
    let remarks = RefCell::new(remarks);
    let remark = |text: &str| {
        // A remark that nobody can read is no reason to stop.
        let _ = remarks.borrow_mut().write_all(format!("mnist: {text}\n").as_bytes());
    };
    let mut say = |text: &str| {
        if rank.is_first() && !options.quiet {
            remark(text);
        }
    };
    let mut group = backend::connect(options.backend, &info, options.timeout, &mut say, &mut |text| remark(text))?;
    let run = |group: &mut dyn Collective| -> Result<(), MnistError> {
        // Before this there is nothing to keep, and a signal ends the process as ever.
        let stop = Stop::on_signals().map_err(MnistError::Signals)?;
        let run = checkpoint::Run::new(&plan, model.parameter_shapes(), rank.size(), &data.train);
        let run = match &cut {
            Some(cut) => run.with_strategies(&cut.named_strategies()),
            None => run,
        };
        let mut checkpoints =
            Checkpoints::begin(&options.checkpoints(), run, &mut parameters, group, &mut |text| remark(text))?;
        checkpoints.stop = stop;
        let mut log = Log {
            out,
            rank,
            quiet: options.quiet,
            metrics,
            #[cfg(feature = "plot")]
            plot: plot.map(|mut plot| {
                plot.go_on(checkpoints.start());
                plot
            }),
            #[cfg(feature = "progress")]
            progress: (rank.is_first() && !options.quiet).then(|| Progress::new(plan.epochs, steps)),
        };
        let trained = match &cut {
            Some(cut) => {
                let sharded = Sharded { model: model.as_mut(), plan: cut };
                train::train_sharded(sharded, &mut parameters, &data, &plan, group, &checkpoints, &mut log)
            }
            None => train::train(model.as_mut(), &mut parameters, &data, &plan, group, &checkpoints, &mut log),
        };
        let finished = log.finish().map_err(TrainError::Report);
        Ok(trained.and(finished)?)
    };
    let result = run(group.as_mut());
    match &result {
        Err(error) if !error.is_of_all_ranks() => {
            // The others would wait for this rank until their timeout.
            group.abort(error.exit_code(), &mut || remark(&error.to_string()));
            result
        }
        _ => result.and(group.end().map_err(|error| TrainError::from(error).into())),
    }
}

/// The file of metrics, begun or gone on with; only rank 0 writes one.
fn metrics(options: &Options, rank: Rank) -> Result<Option<Metrics>, MnistError> {
    let path = options.metrics.as_deref().filter(|_| rank.is_first());
    let begin = if options.checkpoints().resume { Metrics::append } else { Metrics::create };
    path.map(begin).transpose().map_err(MnistError::Metrics)
}

/// The picture, not yet drawn; only rank 0 draws one.
#[cfg(feature = "plot")]
fn plot(options: &Options, rank: Rank, steps: usize) -> Result<Option<Plot>, MnistError> {
    let path = options.plot.as_deref().filter(|_| rank.is_first());
    let plot = path.map(|path| Plot::new(path, options.title(rank), steps));
    plot.transpose().map_err(MnistError::Plot)
}

/// Why `mnist` fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MnistError {
    /// The launcher's variables are wrong.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The data is not there or wrong.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The file of first weights is wrong.
    #[error(transparent)]
    Initial(#[from] InitialError),
    /// The file of metrics cannot be begun.
    #[error("{0}; --metrics names a file that can be written")]
    Metrics(io::Error),
    /// The picture cannot be written.
    #[cfg(feature = "plot")]
    #[error("{0}; --plot names a file that can be written")]
    Plot(io::Error),
    /// This program was compiled without a part of it.
    #[error("{what}: this program was built without the feature `{feature}`; build it with --features {feature}")]
    NotBuilt {
        /// What was asked for.
        what: &'static str,
        /// The feature that has it.
        feature: &'static str,
    },
    /// The operators cannot be cut so.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan cannot be written.
    #[error("the plan cannot be written: {0}")]
    Output(io::Error),
    /// Several ranks are about to fetch.
    #[cfg(feature = "fetch")]
    #[error("this is one of {0} ranks: mnist fetch is to be started once, without mpirun or srun")]
    Ranks(u32),
    /// MNIST cannot be fetched.
    #[cfg(feature = "fetch")]
    #[error(transparent)]
    Fetch(#[from] crate::fetch::FetchError),
    /// The ranks did not meet.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Whoever started this rank cannot end it any more.
    #[error("this rank is to end with the program that started it: {0}")]
    Orphan(io::Error),
    /// The system does not tell which program this is.
    #[error("ranks cannot be started: {0}")]
    Program(io::Error),
    /// The system refuses to tell of signals.
    #[error("signals cannot be handled: {0}")]
    Signals(io::Error),
    /// The training ended early.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl MnistError {
    /// The exit code for it, of [`exit`].
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            MnistError::Train(TrainError::Collective(error)) => exit::of_collective(error),
            MnistError::Backend(error) => error.exit_code(),
            MnistError::Train(
                TrainError::Disagreement(_) | TrainError::Plan(_) | TrainError::Checkpoint(_) | TrainError::Report(_),
            ) => exit::WRONG_INPUT,
            MnistError::Train(TrainError::Stopped { signal, .. }) => exit::SIGNALLED + signal.number(),
            MnistError::Train(_) => exit::TRAINING_FAILED,
            MnistError::Cluster(error) => error.rank_exit_code().unwrap_or(exit::WRONG_INPUT),
            _ => exit::WRONG_INPUT,
        }
    }

    /// Whether every rank ends by itself, for the same reason.
    fn is_of_all_ranks(&self) -> bool {
        use TrainError::{Checkpoint, Disagreement, Diverged, Divergence, Plan, Stopped};
        matches!(
            self,
            MnistError::Train(
                Checkpoint(_) | Disagreement(_) | Divergence { .. } | Diverged { .. } | Plan(_) | Stopped { .. }
            )
        )
    }
}
