//! The `mnist` program, from its options to its exit code.

pub mod outputs;

use std::cell::RefCell;
use std::io::{self, Write};
use std::process::{self, Command};

use mpienv::Rank;

use crate::checkpoint::{self, Checkpoints};
use crate::cli::{self, Action, MnistArgs};
use crate::data::source::{Source, SourceError};
use crate::data::{Dataset, Datasets};
use crate::log::Log;
use crate::model::Model;
use crate::stop::{Signal, Stop};
use crate::train::{self, Epoch, Report, Sharded, TrainError};
use crate::weights::{self, WeightsError};
use mpienv::collective::{CollectiveError, Group};
use mpienv_sharding::plan::{Plan, PlanError};
use mpienv_sharding::program::backend::{self, BackendError};
use mpienv_sharding::program::cluster::{self, ClusterError};
use mpienv_sharding::program::exit;
use mpienv_sharding::program::job::{self, JobError};
use mpienv_sharding::program::readiness::{self, OtherRank};
use outputs::OutputError;

/// A trained network must be more than this many times as accurate as always guessing the most
/// frequent class.
const ALMOST_A_GUESS: f64 = 1.2;

/// Printed if the user names no data.
#[cfg(feature = "fetch")]
const EMBEDDED: &str =
    "training on embedded digits drawn by code; for MNIST: mnist fetch DIR, then --data DIR";
#[cfg(not(feature = "fetch"))]
const EMBEDDED: &str = "training on embedded digits drawn by code; for MNIST, put its four files into a folder \
and name it with --data or DATA_PATH";

/// Runs the program: trains, starts ranks that train, prints a plan, or fetches MNIST.
///
/// Writes the run's output to `out` and messages to `remarks`.
///
/// # Errors
/// If the run fails. [`JobError::is_reported`] returns whether the error has been printed.
pub fn run(
    options: &MnistArgs,
    mut out: impl Write,
    remarks: impl Write,
) -> Result<(), MnistError> {
    if let Some(parent) = options.end_with {
        cluster::end_with(parent).map_err(MnistError::Orphan)?;
    }
    match (&options.action, options.ranks) {
        (Some(Action::Plan(show)), _) => {
            let text = show.text()?;
            out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(MnistError::Print)
        }
        #[cfg(feature = "fetch")]
        (Some(Action::Fetch(fetch)), _) => {
            // Several ranks would write the same files at the same time.
            let ranks = cluster::place()?.world_size();
            if ranks > 1 {
                Err(MnistError::Ranks(ranks))
            } else {
                Ok(fetch.fetch().run(out, remarks)?)
            }
        }
        #[cfg(not(feature = "fetch"))]
        (Some(Action::Fetch(_)), _) => {
            Err(MnistError::NotBuilt { what: "mnist fetch", feature: "fetch" })
        }
        (_, Some(count)) => start_ranks(count),
        (_, None) => train(options, out, remarks),
    }
}

/// Starts ranks of this program with the same arguments. Each finds its rank in its environment
/// variables.
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

fn train(options: &MnistArgs, out: impl Write, remarks: impl Write) -> Result<(), MnistError> {
    if cfg!(not(feature = "plot")) && options.plot.is_some() {
        return Err(MnistError::NotBuilt { what: "--plot", feature: "plot" });
    }
    let info = cluster::place()?;
    let rank = info.rank();
    let remarks = RefCell::new(remarks);
    let remark = |text: &str| {
        // If a message cannot be written, the run continues.
        let _ = remarks.borrow_mut().write_all(format!("mnist: {text}\n").as_bytes());
    };
    if options.source() == Source::Embedded && rank.is_first() {
        remark(EMBEDDED);
    }
    let mut say = |text: &str| {
        if rank.is_first() && !options.quiet {
            remark(text);
        }
    };
    // First, so that a job whose ranks cannot meet fails before it reads its data, and a rank that
    // cannot start tells the others why.
    let connected =
        backend::connect(options.backend, &info, options.timeout, &mut say, &mut |text| {
            remark(text)
        });
    let prepared = Prepared::new(options, rank);
    let print = |error: &MnistError| {
        if !error.is_by_reader() && (rank.is_first() || !error.is_reported_by_rank_0()) {
            remark(&error.to_string());
        }
    };
    let result = job::run(connected, prepared, print, |prepared, group| {
        let prepared = readiness::of_all(prepared, group, MnistError::NotReady)?;
        prepared.train(options, out, group, &remark)
    });
    result.map_err(|error| {
        if error.is_of_all_ranks() { MnistError::Reported(Box::new(error)) } else { error }
    })
}

/// What a rank prepares before it trains with the others.
struct Prepared {
    data: Datasets,
    config: train::TrainConfig,
    /// The plan, if the operators are cut.
    cut: Option<Plan>,
    model: Box<dyn Model>,
    parameters: Vec<f32>,
    outputs: Vec<Box<dyn Report>>,
}

impl Prepared {
    /// Reads and checks everything that this rank needs, without writing anything.
    fn new(options: &MnistArgs, rank: Rank) -> Result<Prepared, MnistError> {
        let data = options.source().load()?;
        let config = options.config();
        let cut = (!options.cuts.strategies.is_empty()).then(|| {
            let share = config.largest_share(data.train.count(), rank);
            options.cuts.plan(options.model, config.learning_rate, rank.size(), share)
        });
        let model = options.model.model(config.largest_batch(data.train.count(), rank));
        let parameters = match &options.weights {
            // Only rank 0 reads the file, because all ranks take its parameters.
            Some(file) if rank.is_first() => weights::read(file, &model.parameter_shapes())?,
            _ => model.initial_parameters(config.seed),
        };
        let outputs = outputs::check(options, rank, config.steps(data.train.count(), rank.size()))?;
        Ok(Prepared { cut: cut.transpose()?, data, config, model, parameters, outputs })
    }

    /// Trains with the other ranks, all of which are ready.
    fn train(
        self,
        options: &MnistArgs,
        out: impl Write,
        group: &mut Group,
        remark: &dyn Fn(&str),
    ) -> Result<(), MnistError> {
        let Prepared { data, config, cut, mut model, mut parameters, outputs } = self;
        let rank = group.rank();
        // Until now, there was nothing to save, so signals kept their default action.
        let stop = Stop::on_signals().map_err(MnistError::Signals)?;
        let run = checkpoint::Run::new(&config, model.parameter_shapes(), rank.size(), &data.train);
        let run = match &cut {
            Some(cut) => run.with_strategies(&cut.named_strategies()),
            None => run,
        };
        let settings = options.checkpoints();
        let mut checkpoints =
            Checkpoints::begin(&settings, run, &mut parameters, group, &mut |text| remark(text))?;
        checkpoints.stop = stop.clone();
        if rank.is_first() {
            remark_start(&settings, checkpoints.start().epoch, config.epochs, remark);
        }
        let mut log = Log {
            out,
            rank,
            last: None,
            log_steps: options.log_steps,
            others: outputs,
            stop,
            reader_gone: false,
        };
        let (model, parameters) = (model.as_mut(), parameters.as_mut_slice());
        let trained = match &cut {
            Some(plan) => train::train_sharded(
                Sharded { model, plan },
                parameters,
                &data,
                &config,
                group,
                &checkpoints,
                &mut log,
            ),
            None => train::train(model, parameters, &data, &config, group, &checkpoints, &mut log),
        };
        let finished = log.finish().map_err(TrainError::Report);
        match trained.and(finished) {
            Ok(()) if log.reader_gone => return Err(MnistError::ReaderGone),
            Err(TrainError::Stopped { signal: Signal::Pipe, .. }) => {
                return Err(MnistError::ReaderGone);
            }
            ended => ended?,
        }
        Ok(log.last.map_or(Ok(()), |last| has_learned(&last, &data.test, &config))?)
    }
}

/// Remarks where checkpoints go, and whether the `done` epochs are all that were asked for.
fn remark_start(settings: &checkpoint::Settings, done: u32, epochs: u32, remark: &dyn Fn(&str)) {
    if let Some(folder) = &settings.folder {
        // Print this now, because some launchers drop a rank's output once they receive a stop
        // signal.
        remark(&format!(
            "checkpoints go to {}: if the run is stopped, continue with --resume",
            folder.display()
        ));
    }
    if done > 0 && done >= epochs {
        remark(&format!(
            "nothing is left to train: {done} epochs are done, and --epochs is {epochs}; continue with --epochs {} or more",
            done.saturating_add(1)
        ));
    }
}

/// Fails if the network is hardly better than one that ignores the images.
fn has_learned(
    last: &Epoch,
    test: &Dataset,
    config: &train::TrainConfig,
) -> Result<(), TrainError> {
    let most = test.class_counts().into_iter().max().unwrap_or_default();
    let guess = most as f64 / test.count() as f64;
    // If most images are of one class, there is little to learn.
    if last.test_accuracy > ALMOST_A_GUESS * guess || guess > 0.5 {
        return Ok(());
    }
    let advice = if config.learning_rate > cli::LEARNING_RATE {
        "training diverged; try a smaller --lr"
    } else {
        "try a larger --lr, or more --epochs"
    };
    Err(TrainError::NothingLearned {
        epoch: last.epoch,
        accuracy: last.test_accuracy,
        guess,
        advice,
    })
}

/// Why `mnist` fails.
#[derive(Debug, thiserror::Error)]
pub enum MnistError {
    /// The launcher's variables are wrong.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The data is missing or wrong.
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Output(#[from] OutputError),
    /// This rank has printed the error, or rank 0 has for all ranks.
    #[error(transparent)]
    Reported(Box<MnistError>),
    /// This rank cannot start. The other ranks know why.
    #[error(transparent)]
    NotReady(Box<MnistError>),
    /// Another rank cannot start.
    #[error(transparent)]
    OtherRank(#[from] OtherRank),
    #[error(
        "{what}: this program was built without the feature `{feature}`; build it with --features {feature}"
    )]
    NotBuilt { what: &'static str, feature: &'static str },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("cannot write the plan: {0}")]
    Print(io::Error),
    /// The program reading a rank's stdout, such as `head`, has exited, and all ranks stopped.
    #[error("the reader of stdout has exited")]
    ReaderGone,
    #[cfg(feature = "fetch")]
    #[error("this is one of {0} ranks: start mnist fetch only once, without mpirun or srun")]
    Ranks(u32),
    #[cfg(feature = "fetch")]
    #[error(transparent)]
    Fetch(#[from] crate::fetch::FetchError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("cannot tie this rank to the program that started it: {0}")]
    Orphan(io::Error),
    /// The path of this program is unknown.
    #[error("cannot start ranks: {0}")]
    Program(io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl From<CollectiveError> for MnistError {
    fn from(error: CollectiveError) -> MnistError {
        TrainError::from(error).into()
    }
}

impl JobError for MnistError {
    fn exit_code(&self) -> u8 {
        match self {
            _ if self.is_by_reader() => exit::READER_GONE,
            MnistError::Train(TrainError::Collective(error)) => exit::of_collective(error),
            MnistError::Backend(error) => error.exit_code(),
            MnistError::Train(
                TrainError::Disagreement(_)
                | TrainError::Plan(_)
                | TrainError::Checkpoint(_)
                | TrainError::Report(_),
            ) => exit::WRONG_INPUT,
            MnistError::Train(TrainError::Stopped { signal, .. }) => {
                exit::SIGNALLED + signal.number()
            }
            MnistError::Train(_) => exit::TRAINING_FAILED,
            MnistError::Cluster(error) => error.rank_exit_code().unwrap_or(exit::WRONG_INPUT),
            MnistError::Reported(error) | MnistError::NotReady(error) => error.exit_code(),
            _ => exit::WRONG_INPUT,
        }
    }

    fn is_reported(&self) -> bool {
        matches!(self, MnistError::Reported(_)) || self.is_by_reader()
    }

    fn is_of_all_ranks(&self) -> bool {
        use TrainError::{
            Checkpoint, Disagreement, Diverged, Divergence, NothingLearned, Plan, Stopped,
        };
        matches!(
            self,
            MnistError::NotReady(_)
                | MnistError::OtherRank(_)
                | MnistError::ReaderGone
                | MnistError::Train(
                    Checkpoint(_)
                        | Disagreement(_)
                        | Divergence { .. }
                        | Diverged { .. }
                        | NothingLearned { .. }
                        | Plan(_)
                        | Stopped { .. }
                )
        )
    }
}

impl MnistError {
    /// Returns whether the reader of stdout has exited, which is not a failure.
    fn is_by_reader(&self) -> bool {
        match self {
            MnistError::ReaderGone => true,
            MnistError::Print(error) => error.kind() == io::ErrorKind::BrokenPipe,
            // A rank shares stdout with the process that started it.
            MnistError::Cluster(error) => error.rank_exit_code() == Some(exit::READER_GONE),
            MnistError::Reported(error) => error.is_by_reader(),
            _ => false,
        }
    }

    /// Returns whether rank 0 prints the error for all ranks, because only it knows the details.
    fn is_reported_by_rank_0(&self) -> bool {
        matches!(
            self,
            MnistError::Train(TrainError::Stopped { .. } | TrainError::NothingLearned { .. })
        )
    }
}
