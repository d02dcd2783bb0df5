//! The arguments of `quickstart`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use mpienv_sharding::arguments::{
    PlannedRanks, numbers_may_be_negative, positive, seconds, whole_u32, whole_u64,
};
use mpienv_sharding::error::Error;
use mpienv_sharding::init::Init;
use mpienv_sharding::job::Backend;
use mpienv_sharding::network::Network;
use mpienv_sharding::plan::Collectives;
use mpienv_sharding::strategy::Strategy;
use mpienv_sharding::strategy::{Assignment, FIRST};

/// Trains x(2n,32) w(32,16) -> ReLU -> w2(16,16) with the mean squared error on n ranks, with every
/// operator cut over them.
///
/// Every rank uses the same 2 samples and prints the loss of every step. Checkpoints go to
/// device/RANK, the graph with its strategies and each rank's instructions to
/// saved_graph/rank_RANK. Exit codes: 0 success, 1 wrong environment, strategy or file, 2 invalid
/// command line, 3 the training failed, 124 a rank timed out.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(
    name = "quickstart",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
pub struct QuickstartArgs {
    #[command(subcommand)]
    pub action: Option<Action>,

    #[command(flatten)]
    pub training: Training,
}

/// What to do instead of training.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Action {
    /// Print the plan of a step without running it
    Plan(Show),
    /// Merge the newest checkpoints of all ranks into one file
    Merge(Merge),
}

/// What the plan depends on.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Sharding {
    /// Cut an operator over the ranks: a tuple for each input. Applies to matmul, or to the
    /// operator named before it: matmul2=((2,4),(4,1)). May be repeated; the other operators are
    /// cut to fit. Default: ((2,4),(4,1)) if 8 divides the number of ranks, otherwise only rows are
    /// cut
    #[arg(long = "strategy", value_name = "[OP=]STRATEGY")]
    strategies: Vec<Assignment>,

    /// Learning rate
    #[arg(long = "lr", default_value_t = 0.2, value_name = "X", value_parser = positive)]
    pub learning_rate: f32,

    /// Collective calls to use; the losses agree to rounding
    #[arg(long, value_enum, default_value_t = Collectives::Compat)]
    pub collectives: Collectives,
}

/// How to train.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Training {
    /// Run N ranks as threads of this process. Default: this process takes its rank from its
    /// launcher
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    #[command(flatten)]
    pub sharding: Sharding,

    /// How to draw the initial weights
    #[arg(long, value_enum, default_value_t = Draw::Normal)]
    init: Draw,

    /// Seed for the initial weights with --init normal
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole_u64)]
    seed: u64,

    /// Number of epochs of 4 steps each
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = whole_u32)]
    pub epochs: u32,

    /// Resume from a merged checkpoint, written with any strategy and number of ranks
    #[arg(long, value_name = "FILE")]
    pub resume_from: Option<PathBuf>,

    /// Write whole tensors to every checkpoint, as MindSpore does by default, instead of each
    /// rank's parts
    #[arg(long)]
    pub integrated: bool,

    /// Folder for device and saved_graph
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub output: PathBuf,

    /// Transport between the ranks
    #[arg(long, value_enum, default_value_t = Backend::Auto, conflicts_with = "threads")]
    pub backend: Backend,

    /// Seconds to wait for a missing rank
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Duration,
}

/// How the initial weights are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Draw {
    /// N(0, 0.01), independent of the strategy and the number of ranks
    Normal,
    /// As MindSpore 1.x draws them, for the strategy and the number of ranks
    #[value(name = "mindspore-1.x")]
    MindSpore1,
}

/// The plan to print.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Show {
    #[command(flatten)]
    pub planned: PlannedRanks,

    #[command(flatten)]
    pub sharding: Sharding,
}

/// The checkpoints to merge.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Merge {
    /// The folders of the ranks, such as device/0 device/1. The newest checkpoint that all of them
    /// have is used
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,

    /// The file to write
    #[arg(short, long, default_value = "merged.safetensors", value_name = "FILE")]
    pub output: PathBuf,
}

impl QuickstartArgs {
    /// Parses a command line that starts with the program's name.
    pub fn parse_line(
        line: impl IntoIterator<Item = OsString>,
    ) -> Result<QuickstartArgs, clap::Error> {
        let matches =
            numbers_may_be_negative(QuickstartArgs::command()).try_get_matches_from(line)?;
        QuickstartArgs::from_arg_matches(&matches)
    }
}

impl Training {
    pub fn init(&self) -> Init {
        match self.init {
            Draw::Normal => Init::Normal { seed: self.seed },
            Draw::MindSpore1 => Init::MindSpore1,
        }
    }
}

impl Sharding {
    /// Sets the strategies of the network's operators.
    pub fn apply(&self, network: &mut Network, world: u32) -> Result<(), Error> {
        Assignment::apply(&self.strategies, network)?;
        if self.strategies.is_empty() && world.is_multiple_of(8) {
            network.shard(FIRST, Strategy(vec![vec![2, 4], vec![4, 1]]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<QuickstartArgs, clap::Error> {
        QuickstartArgs::parse_line(
            std::iter::once("quickstart").chain(line.split_whitespace()).map(OsString::from),
        )
    }

    #[test]
    fn the_defaults_are_the_quick_starts() {
        let Training { sharding, epochs, threads, .. } = parse("").unwrap().training;
        assert_eq!((sharding.learning_rate, epochs, threads), (0.2, 5, None));
        assert_eq!(sharding.collectives, Collectives::Compat);
        assert_eq!(parse("").unwrap().training.init(), Init::Normal { seed: 1 });
        assert_eq!(parse("--init mindspore-1.x").unwrap().training.init(), Init::MindSpore1);
    }

    #[test]
    fn arguments_without_sense_are_refused() {
        for line in [
            "--strategy (2,4)",
            "--threads 0",
            "--threads 4294967295",
            "--lr 0",
            "--init random",
            "plan -n 0",
            "merge",
            "--threads 2 plan",
            "--threads 2 --backend tcp",
            "surplus",
        ] {
            assert_eq!(parse(line).map_err(|error| error.exit_code()), Err(2), "{line}");
        }
    }
}
