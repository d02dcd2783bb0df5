//! The `mnist` program, from its options to its exit code.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{self, Command};

use mpienv::{ClusterInfo, ErrorKind, Launch, LaunchError, Rank};

use crate::agreement;
use crate::checkpoint::{self, Checkpoints};
use crate::cli::{self, Action, Device, MnistArgs};
use crate::data::{Dataset, Datasets};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::parameters;
use crate::stop::Stop;
use crate::train::{self, ReadyGpu, Report};
use mpienv::collective::Group;
use mpienv_sharding::arguments::name_of;
use mpienv_sharding::error::{Error, READER_GONE, Reach, TRAINING_FAILED, WRONG_INPUT};
use mpienv_sharding::file;
use mpienv_sharding::job;
use mpienv_sharding::plan::Plan;

/// A trained network must be more than this many times as accurate as always guessing the most
/// frequent class.
const ALMOST_A_GUESS: f64 = 1.2;

/// Printed if the user names no data.
const EMBEDDED: &str = if cfg!(feature = "fetch") {
    "training on embedded digits drawn by code; for MNIST: mnist fetch DIR, then --data DIR"
} else {
    "training on embedded digits drawn by code; for MNIST, put its four files into a folder and \
     name it with --data or DATA_PATH"
};

/// Runs the program: trains, starts ranks that train, prints a plan, or fetches MNIST. Writes the
/// run's output to `out`.
pub fn run(options: &MnistArgs, mut out: impl Write) -> Result<(), Error> {
    if let Some(parent) = options.end_with {
        mpienv::end_with_parent(parent).map_err(|error| {
            Error::input(format!("cannot tie this rank to the program that started it: {error}"))
        })?;
    }
    match (&options.action, options.ranks) {
        (Some(Action::Plan(show)), _) => job::print(show.text()?.as_bytes(), "plan", &mut out),
        #[cfg(feature = "fetch")]
        (Some(Action::Fetch(fetch)), _) => {
            // Several ranks would write the same files at the same time.
            let ranks = ClusterInfo::from_env()?.world_size();
            if ranks > 1 {
                let text = "start mnist fetch only once, without mpirun or srun";
                return Err(Error::input(format!("this is one of {ranks} ranks: {text}")));
            }
            fetch.fetch().run(out, std::io::stderr())
        }
        #[cfg(not(feature = "fetch"))]
        (Some(Action::Fetch(_)), _) => Err(not_built("mnist fetch", "fetch")),
        (_, Some(count)) => start_ranks(count),
        (_, None) => train(options, out),
    }
}

/// The error of a part of the program that was not compiled.
fn not_built(what: &str, feature: &str) -> Error {
    Error::input(format!(
        "{what}: this program was built without the feature `{feature}`; build it with --features \
         {feature}"
    ))
}

/// Starts ranks of this program with the same arguments. Each finds its rank in its environment
/// variables. Forwards this process's signals.
fn start_ranks(count: u32) -> Result<(), Error> {
    let program = std::env::current_exe()
        .map_err(|error| Error::input(format!("cannot start ranks: {error}")))?;
    let arguments = cli::without_ranks(std::env::args_os().skip(1));
    let info = ClusterInfo::from_env()?;
    info.starting(count).warn();
    // This program starts no other processes while the ranks run.
    let launch = Launch::new(&info, count).map_err(launch_error)?.subreaper(true);
    let run = launch.run(|_rank| {
        let mut command = Command::new(&program);
        command.arg(format!("--end-with={}", process::id())).args(&arguments);
        command
    });
    run.map_err(launch_error)
}

/// The exit code is that of the rank that failed, if any. As in shells, a signal's number is added
/// to 128.
fn launch_error(error: LaunchError) -> Error {
    let code = match error.kind() {
        ErrorKind::Failed(status) => status.code().or(status.signal().map(|signal| 128 + signal)),
        ErrorKind::Stopped(signal) => Some(128 + signal),
        _ => None,
    };
    match code.and_then(|code| code.try_into().ok()).unwrap_or(WRONG_INPUT) {
        // A rank shares stdout with the process that started it.
        READER_GONE => Error::reader_gone(),
        code => Error::new(code, error),
    }
}

/// Prints a message on stderr.
fn remark(text: &str) {
    job::say("mnist", &text);
}

fn train(options: &MnistArgs, out: impl Write) -> Result<(), Error> {
    if cfg!(not(feature = "plot")) && options.plot.is_some() {
        return Err(not_built("--plot", "plot"));
    }
    let info = ClusterInfo::from_env()?;
    let rank = info.rank();
    if options.data().is_none() && rank.is_first() {
        remark(EMBEDDED);
    }
    let name_transport = |text: &str| {
        // Only after the ranks have met do they know whether all have GPUs.
        if rank.is_first() && !options.quiet && options.device == Device::Cpu {
            remark(text);
        }
    };
    // First, so that a job whose ranks cannot meet fails before it reads its data, and a rank that
    // cannot start tells the others why.
    let connected = job::connect(options.backend, &info, options.timeout, &name_transport, &remark);
    job::run("mnist", connected, Prepared::new(options, &info), |prepared, group| {
        job::all_ready(prepared, group)?.train(options, out, group)
    })
}

/// What a rank prepares before it trains with the others.
struct Prepared {
    data: Datasets,
    config: train::TrainConfig,
    /// The plan, if the operators are cut.
    cut: Option<Plan>,
    model: Box<dyn Model>,
    /// Why there is none matters only if the run may use one.
    gpu: Result<ReadyGpu, Error>,
    parameters: Vec<f32>,
    outputs: Vec<Box<dyn Report>>,
}

impl Prepared {
    /// Reads and checks everything that this rank needs, without writing anything.
    fn new(options: &MnistArgs, info: &ClusterInfo) -> Result<Prepared, Error> {
        let rank = info.rank();
        let data = Datasets::load(options.data())?;
        let config = options.config();
        let cut = (!options.cuts.strategies.is_empty()).then(|| {
            let share = config.largest_share(data.train.count(), rank);
            options.cuts.plan(options.model, config.learning_rate, rank.size(), share)
        });
        let model = options.model.model(config.largest_batch(data.train.count(), rank));
        let parameters = match &options.weights {
            // Only rank 0 reads the file, because all ranks take its parameters.
            Some(file) if rank.is_first() => parameters::read(file, &model.parameter_shapes())?,
            _ => model.initial_parameters(config.seed),
        };
        let outputs = check_outputs(options, rank, config.steps(data.train.count(), rank.size()))?;
        let gpu = match options.device {
            Device::Cpu => Err(Error::input("--device cpu")),
            Device::Auto if cut.is_some() => {
                Err(Error::input("--strategy cuts operators over CPUs"))
            }
            #[cfg(feature = "cuda")]
            _ => train::cuda::open(info, options.model, &config, &data.train, options.timeout),
            #[cfg(not(feature = "cuda"))]
            _ => Err(not_built("--device cuda", "cuda")),
        };
        let gpu = if options.device == Device::Cuda { Ok(gpu?) } else { gpu };
        Ok(Prepared { cut: cut.transpose()?, data, config, model, gpu, parameters, outputs })
    }

    /// The GPU of this rank, if all ranks have one. Rank 0 says what the run trains on.
    fn chosen_gpu(
        gpu: Result<ReadyGpu, Error>,
        options: &MnistArgs,
        group: &mut Group,
    ) -> Result<Option<ReadyGpu>, Error> {
        agreement::check_device(&name_of(&options.device), group)?;
        let reason = gpu.as_ref().err().map(ToString::to_string).unwrap_or_default();
        if options.device == Device::Cpu {
            return Ok(None);
        }
        let all = group.all_gather(reason.as_bytes())?;
        let without = (0..).zip(&all).find(|(_, reason)| !reason.is_empty());
        let text = match (without, &gpu) {
            (None, Ok(gpu)) => gpu.description.clone(),
            (Some((rank, reason)), _) if group.size() > 1 => format!(
                "training on CPUs, gradients over {}; not on GPUs, because of rank {rank}: {}",
                group.describe(),
                mpienv::printable(reason)
            ),
            _ => format!("training on the CPU, not on a GPU: {reason}"),
        };
        if group.rank().is_first() && !options.quiet {
            remark(&text);
        }
        Ok(gpu.ok().filter(|_| without.is_none()))
    }

    /// Trains with the other ranks, all of which are ready.
    fn train(self, options: &MnistArgs, out: impl Write, group: &mut Group) -> Result<(), Error> {
        let Prepared { data, config, cut, mut model, gpu, mut parameters, outputs } = self;
        let rank = group.rank();
        let gpu = Prepared::chosen_gpu(gpu, options, group)?;
        // Until now, there was nothing to save, so signals kept their default action.
        let stop = Stop::on_signals()
            .map_err(|error| Error::input(format!("cannot handle signals: {error}")))?;
        let (shapes, ranks) = (model.parameter_shapes(), rank.size());
        let run = checkpoint::Run::new(&config, cut.as_ref(), shapes, ranks, &data.train);
        let settings = &options.checkpoints;
        let mut checkpoints =
            Checkpoints::begin(settings, run, &mut parameters, group, &mut |text| remark(text))?;
        checkpoints.stop = stop.clone();
        if rank.is_first() {
            remark_start(settings, checkpoints.start().epoch, config.epochs);
        }
        let (log_steps, others) = (options.log_steps, outputs);
        let mut log = Log { out, rank, last: None, log_steps, others, stop, reader_gone: false };
        let (model, parameters) = (model.as_mut(), parameters.as_mut_slice());
        let (data, config, checkpoints) = (&data, &config, &checkpoints);
        let training = train::Training { data, config, group, checkpoints, report: &mut log };
        let trained = match (&cut, gpu) {
            (Some(plan), _) => training.sharded(model, plan, parameters),
            (None, Some(gpu)) => (gpu.train)(model, parameters, training),
            (None, None) => training.data_parallel(model, parameters),
        };
        let finished = log.finish().map_err(train::cannot_report);
        trained.and(finished)?;
        if log.reader_gone {
            return Err(Error::reader_gone());
        }
        log.last.map_or(Ok(()), |last| has_learned(last, &data.test, config))
    }
}

/// Checks that the files which a run writes besides checkpoints can be written, without changing
/// them. An epoch has `steps` steps.
fn check_outputs(
    options: &MnistArgs,
    rank: Rank,
    steps: usize,
) -> Result<Vec<Box<dyn Report>>, Error> {
    let mut outputs: Vec<Box<dyn Report>> = Vec::new();
    if !rank.is_first() {
        return Ok(outputs);
    }
    let named = [
        ("--weights", &options.weights),
        ("--metrics", &options.metrics),
        ("--plot", &options.plot),
    ];
    let mut taken: Vec<(&'static str, PathBuf)> = Vec::new();
    for (name, path) in named {
        let Some(path) = path else { continue };
        // --weights is already read, and the outputs are checked below.
        let Ok(place) = file::place_of(path) else { continue };
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == place) {
            return Err(Error::input(format!(
                "{} is named by {other} and by {name}: one would overwrite the other; name two files",
                path.display()
            )));
        }
        taken.push((name, place));
    }
    let wrong = |option: &str, error: io::Error| {
        let text = format!("{option} must name a writable regular file, or a new one");
        Error::input(format!("{error}; {text}"))
    };
    if let Some(path) = &options.metrics {
        let metrics = Metrics::new(path, options.checkpoints.resume);
        outputs.push(Box::new(metrics.map_err(|error| wrong("--metrics", error))?));
    }
    #[cfg(feature = "plot")]
    if let Some(path) = &options.plot {
        let plot = crate::plot::Plot::new(path, options.title(rank), steps);
        outputs.push(Box::new(plot.map_err(|error| wrong("--plot", error))?));
    }
    #[cfg(feature = "progress")]
    if !options.quiet {
        outputs.push(Box::new(crate::progress::Progress::new(options.config().epochs, steps)));
    }
    #[cfg(not(any(feature = "plot", feature = "progress")))]
    let _ = steps;
    Ok(outputs)
}

/// Remarks where checkpoints go, and whether the `done` epochs are all that were asked for.
fn remark_start(settings: &checkpoint::Settings, done: u32, epochs: u32) {
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
    (epoch, test_accuracy): (u32, f64),
    test: &Dataset,
    config: &train::TrainConfig,
) -> Result<(), Error> {
    let most = test.class_counts().into_iter().max().unwrap_or_default();
    let guess = most as f64 / test.count() as f64;
    // If most images are of one class, there is little to learn.
    if test_accuracy > ALMOST_A_GUESS * guess || guess > 0.5 {
        return Ok(());
    }
    let advice = if config.learning_rate > cli::LEARNING_RATE {
        "training diverged; try a smaller --lr"
    } else {
        "try a larger --lr, or more --epochs"
    };
    let text = format!(
        "the network has learned nothing: after epoch {epoch} the test accuracy is \
         {test_accuracy:.4}, and always giving the most frequent answer has {guess:.4}: {advice}"
    );
    Err(Error::new(TRAINING_FAILED, text).reaching(Reach::First))
}
