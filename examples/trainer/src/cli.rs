//! The arguments of `mnist`.

use crate::batch::Order;
use crate::checkpoint;
use crate::model::Architecture;
use crate::train::TrainConfig;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};
use mpienv::Rank;
use mpienv_sharding::arguments::{
    PlannedRanks, at_least_one, name_of, numbers_may_be_negative, positive, seconds, whole_u32,
    whole_u64,
};
use mpienv_sharding::error::Error;
use mpienv_sharding::job::Backend;
use mpienv_sharding::plan::{Collectives, Plan, Terms};
use mpienv_sharding::strategy::Assignment;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default learning rate.
pub const LEARNING_RATE: f32 = 0.01;

/// Trains a classifier of handwritten digits on all ranks that a launcher starts, data parallel or
/// with its operators cut over the ranks.
///
/// Rank 0 prints a line for each epoch; with --log-steps, every rank also prints the loss of its
/// own batch every 10 steps. Exit codes: 0 success, 1 wrong environment or data, 2 invalid command
/// line, 3 the training failed, 124 a rank timed out, 130 stopped by Ctrl-C, 143 stopped by
/// SIGTERM.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "mnist", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
pub struct MnistArgs {
    /// What to do instead of training
    #[command(subcommand)]
    pub action: Option<Action>,

    /// Folder of the four MNIST files, plain or .gz, directly or in train and test. Default: digits
    /// drawn by code
    #[arg(long, value_name = "DIR", env = "DATA_PATH", value_parser = OsStringValueParser::new())]
    data: Option<OsString>,

    /// Number of passes over the training set
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = whole_u32)]
    epochs: u32,

    /// Samples per step on each rank
    #[arg(long, default_value = "32", value_name = "N", value_parser = at_least_one::<NonZeroUsize>)]
    batch_size: NonZeroUsize,

    /// Learning rate
    #[arg(long = "lr", default_value_t = LEARNING_RATE, value_name = "X", value_parser = positive)]
    learning_rate: f32,

    /// How an operator is cut over the ranks
    #[command(flatten)]
    pub cuts: Cuts,

    /// Seed for the sample order and the initial weights
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole_u64)]
    seed: u64,

    /// Model to train
    #[arg(long, value_enum, default_value_t = Architecture::Linear)]
    pub model: Architecture,

    /// Read the initial parameters from a file: safetensors with the model's tensors (linear:
    /// weight (10, 784), bias (10)), or, for the linear model, the weight alone as raw
    /// little-endian f32, with bias 0
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// Order of the samples in an epoch
    #[arg(long, value_enum, default_value_t = Order::Shuffle)]
    order: Order,

    /// Train on CPUs or on GPUs, each rank on the one of its local rank; auto: on GPUs if every rank
    /// has one
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub device: Device,

    /// Transport for the gradients; on GPUs, NCCL carries them, and this meets the ranks
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,

    /// Start N ranks on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: Option<u32>,

    /// Exit when this process, which started the rank, exits
    #[arg(long, value_name = "PID", hide = true)]
    pub end_with: Option<u32>,

    /// Write rank 0's losses and a summary of each epoch to a file of JSON lines; an existing file
    /// is emptied, or with --resume appended to
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,

    /// When and where checkpoints are written
    #[command(flatten)]
    pub checkpoints: checkpoint::Settings,

    /// Plot loss and accuracy as an SVG picture, updated during the run; an existing file is
    /// replaced
    #[arg(long, value_name = "FILE.svg", value_parser = OsStringValueParser::new().try_map(svg))]
    pub plot: Option<PathBuf>,

    /// Print each rank's loss every 10 steps, not only rank 0's line for each epoch
    #[arg(long)]
    pub log_steps: bool,

    /// Print neither the transport nor a progress bar
    #[arg(long)]
    pub quiet: bool,

    /// Seconds to wait for a missing rank
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Duration,
}

/// What a run trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    Cpu,
    Cuda,
    Auto,
}

/// How operators are cut over the ranks.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Cuts {
    /// Cut an operator over the ranks: a tuple for each input. Applies to matmul, or to the
    /// operator named before it: matmul2=((2,4),(4,1)). May be repeated; the other operators are
    /// cut to fit. Default: data parallel
    #[arg(long = "strategy", value_name = "[OP=]STRATEGY")]
    pub strategies: Vec<Assignment>,

    /// Collective calls to use with --strategy; the losses agree to rounding
    #[arg(long, value_enum, default_value_t = Collectives::Compat, requires = "strategies")]
    pub collectives: Collectives,
}

impl Cuts {
    /// Plans a step of `world` ranks with `share` samples each. Without a strategy, the plan is data
    /// parallel.
    pub fn plan(
        &self,
        model: Architecture,
        learning_rate: f32,
        world: u32,
        share: usize,
    ) -> Result<Plan, Error> {
        let mut network = model.network(share * world as usize);
        Assignment::apply(&self.strategies, &mut network)?;
        let collectives = self.collectives;
        let terms = Terms { world, data_cut: world, collectives, learning_rate, momentum: 0.0 };
        Plan::new(&network, &terms)
    }
}

/// The plan to print.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Show {
    #[command(flatten)]
    pub planned: PlannedRanks,

    /// Model to train
    #[arg(long, value_enum, default_value_t = Architecture::Linear)]
    pub model: Architecture,

    /// Samples per step on each rank
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch_size: u32,

    /// Learning rate
    #[arg(long = "lr", default_value_t = LEARNING_RATE, value_name = "X", value_parser = positive)]
    pub learning_rate: f32,

    /// How operators are cut over the ranks
    #[command(flatten)]
    pub cuts: Cuts,
}

impl Show {
    /// Returns the plan as text: the network, then the instructions of a rank.
    pub fn text(&self) -> Result<String, Error> {
        let Show { planned, cuts, .. } = self;
        let share = self.batch_size as usize;
        cuts.plan(self.model, self.learning_rate, planned.ranks, share)?.text(planned.rank)
    }
}

/// What to do instead of training.
#[derive(Clone, Debug, PartialEq, clap::Subcommand)]
pub enum Action {
    /// Print the plan of a step, as --strategy cuts it, without running it
    Plan(Show),
    /// Download MNIST over HTTPS into a folder, for --data
    Fetch(FetchOptions),
}

/// The arguments of `mnist fetch`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct FetchOptions {
    /// Folder for the four files; created if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Try this mirror first: the https:// or http:// URL of a folder with the four files
    #[arg(long, value_name = "URL", value_parser = address)]
    mirror: Option<String>,

    /// Try no mirror but --mirror
    #[arg(long, requires = "mirror")]
    only: bool,

    /// Seconds that a mirror may be silent
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    timeout: Duration,
}

#[cfg(feature = "fetch")]
impl FetchOptions {
    pub fn fetch(&self) -> crate::fetch::Fetch {
        let others = crate::fetch::MIRRORS.into_iter().filter(|_| !self.only).map(str::to_owned);
        let mirrors = self.mirror.clone().into_iter().chain(others).collect();
        let files = crate::fetch::FILES.to_vec();
        crate::fetch::Fetch { files, folder: self.folder.clone(), mirrors, timeout: self.timeout }
    }
}

impl MnistArgs {
    /// Parses a command line that starts with the program's name.
    pub fn parse_line(line: impl IntoIterator<Item = OsString>) -> Result<MnistArgs, clap::Error> {
        let mut command = numbers_may_be_negative(MnistArgs::command());
        let matches = command.try_get_matches_from_mut(line)?;
        let options = MnistArgs::from_arg_matches(&matches)?;
        // `--data "$UNSET"` must not silently train on the embedded digits.
        let given = matches.value_source("data") == Some(ValueSource::CommandLine);
        if given && options.data.as_ref().is_some_and(|folder| folder.is_empty()) {
            return Err(command.error(
                ErrorKind::InvalidValue,
                "--data is empty: name the folder of the MNIST files",
            ));
        }
        if options.device == Device::Cuda && !options.cuts.strategies.is_empty() {
            return Err(command.error(
                ErrorKind::ArgumentConflict,
                "--strategy cuts operators over CPUs only: GPUs train data parallel; leave out \
                 --strategy, or use --device cpu",
            ));
        }
        Ok(options)
    }

    pub fn config(&self) -> TrainConfig {
        TrainConfig {
            epochs: self.epochs,
            batch_size: self.batch_size.get(),
            learning_rate: self.learning_rate,
            seed: self.seed,
            order: self.order,
        }
    }

    /// The title of the run's plot.
    pub fn title(&self, rank: Rank) -> String {
        let data = self.data().map_or("embedded digits".into(), |folder| {
            folder.file_name().unwrap_or("data".as_ref()).to_string_lossy()
        });
        let MnistArgs { batch_size, learning_rate, seed, .. } = self;
        let ranks =
            if rank.size() == 1 { "1 rank".to_owned() } else { format!("{} ranks", rank.size()) };
        let model = name_of(&self.model);
        let cut: String =
            self.cuts.strategies.iter().map(|strategy| format!(", {strategy}")).collect();
        format!(
            "{model} on {data}: {ranks} with batches of {batch_size}, lr {learning_rate}, seed {seed}{cut}"
        )
    }

    /// Returns the folder of the data, if the user names one. An empty DATA_PATH counts as unset.
    pub fn data(&self) -> Option<&Path> {
        self.data.as_deref().filter(|folder| !folder.is_empty()).map(Path::new)
    }
}

/// Returns the arguments for the ranks that this process starts: all except `--ranks N`.
pub fn without_ranks(mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == "--ranks" {
            arguments.next();
        } else if !argument.to_string_lossy().starts_with("--ranks=") {
            kept.push(argument);
        }
    }
    kept
}

/// Parses the path of a plot. Its extension must not suggest another format.
fn svg(name: OsString) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(name);
    match path.extension() {
        Some(format) if format.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the picture is an SVG: give a name that ends in .svg"),
    }
}

/// Parses the URL of a mirror. Plain http is allowed because downloads are verified by SHA-256.
fn address(text: &str) -> Result<String, &'static str> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let known = rest.is_some_and(|rest| !rest.is_empty());
    known.then(|| text.to_owned()).ok_or("expected an address that begins with https:// or http://")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<MnistArgs, clap::Error> {
        MnistArgs::parse_line(
            std::iter::once("mnist").chain(line.split_whitespace()).map(OsString::from),
        )
    }

    #[test]
    fn the_defaults_are_the_tutorials() {
        let plan = parse("").unwrap().config();
        let expected = TrainConfig {
            epochs: 10,
            batch_size: 32,
            learning_rate: 0.01,
            seed: 1,
            order: Order::Shuffle,
        };
        assert_eq!(plan, expected);
    }

    #[test]
    fn arguments_without_sense_are_refused() {
        for line in [
            "--batch-size 0",
            "--batch-size -1",
            "--batch-size x",
            "--lr 0",
            "--lr nan",
            "--lr inf",
            "--lr -1",
            "--ranks 0",
            "--epochs -1",
            "--timeout 0",
            "--timeout 1e-12",
            "--timeout nan",
            "--timeout -3",
            "--order random",
            "--backend nccl",
            "--seed -1",
            "surplus",
            "--strategy x",
            "--strategy (2,4)",
            "--collectives min",
            "--strategy ((2,1),(1,1)) --collectives max",
            "plan -n 0",
            "plan --batch-size 0",
            "--epochs 1 plan",
            "--resume",
            "--checkpoint-every 10",
            "--checkpoint-dir d --checkpoint-every 0",
            "fetch",
            "fetch d --mirror ftp://x",
            "fetch d --only",
            "--epochs 1 fetch d",
            "--model cnn",
            "--device gpu",
            "--device cuda --strategy ((2,1),(1,1))",
        ] {
            assert_eq!(parse(line).map_err(|error| error.exit_code()), Err(2), "{line}");
        }
    }

    #[test]
    fn a_number_below_the_range_is_refused_with_the_range() {
        for (line, range) in [
            ("--lr -1", "expected a number greater than 0"),
            ("--lr -0.5", "expected a number greater than 0"),
            ("--batch-size -1", "expected a whole number, 1 or more"),
            ("--timeout -3", "expected a number of seconds greater than 0"),
            ("--ranks -1", "-1 is not in 1..=4096"),
            ("--ranks 4294967295", "4294967295 is not in 1..=4096"),
            ("--ranks 4294967296", "4294967296 is not in 1..=4096"),
            ("--checkpoint-dir d --checkpoint-every -5", "expected a whole number, 1 or more"),
            ("--epochs -1", "expected a whole number from 0 to 4294967295"),
            ("--epochs 4294967296", "expected a whole number from 0 to 4294967295"),
            ("--seed -1", "expected a whole number from 0 to 18446744073709551615"),
            ("plan --lr -1", "expected a number greater than 0"),
            ("plan --rank -1", "expected a whole number from 0 to 4294967295"),
            ("plan -n -1", "-1 is not in 1..=65536"),
            ("fetch d --timeout -1", "expected a number of seconds greater than 0"),
        ] {
            let text = parse(line).unwrap_err().to_string();
            assert!(
                text.contains(range) && !text.contains("unexpected argument"),
                "{line}: {text}"
            );
        }
    }

    #[test]
    fn a_picture_has_a_name_that_ends_in_svg() {
        assert_eq!(parse("--plot a.b.SVG").unwrap().plot, Some(PathBuf::from("a.b.SVG")));
        for name in ["x.png", "x", "svg", ".svg", "x.svg/", "x.svg.gz"] {
            let text = parse(&format!("--plot {name}")).map_err(|error| error.to_string());
            let refused =
                text.as_ref().is_err_and(|text| text.contains("give a name that ends in .svg"));
            assert!(refused || name == "x.svg/", "{name}: {text:?}");
        }
    }

    #[test]
    fn a_timeout_of_any_size_is_taken() {
        assert_eq!(parse("--timeout 0.5").unwrap().timeout, Duration::from_millis(500));
        assert!(parse("--timeout inf").unwrap().timeout > Duration::from_secs(86400));
        assert!(parse("--timeout 1e300").unwrap().timeout > Duration::from_secs(86400));
    }

    #[test]
    fn started_ranks_do_not_start_ranks() {
        let arguments =
            "--quiet --ranks 2 --seed 3 --ranks=4 --lr 1".split(' ').map(OsString::from);
        assert_eq!(without_ranks(arguments), ["--quiet", "--seed", "3", "--lr", "1"]);
    }
}
