//! Rejects a launcher as the command: it starts ranks itself, which would get one rank's variables.

use std::ffi::OsString;
use std::path::Path;

use crate::{ClusterInfo, Environment, LaunchStyle, Launcher};
use clap::Args;
use mpienv_core::seam::{LauncherSeam as _, Programs};

use super::{count, words};

/// Whether the command may be a launcher.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LauncherOption {
    /// Start the command even if it is itself a launcher, such as mpirun, srun or torchrun
    ///
    /// Each rank that mpienv starts then starts a job of its own. The ranks of that job inherit one
    /// rank's RANK and WORLD_SIZE, and need `mpienv exec` to get their own:
    /// `mpienv launch --nproc-per-node 2 --allow-launcher -- mpirun -n 2 mpienv exec -- ./solver`.
    #[arg(long)]
    allow_launcher: bool,
}

/// Programs that start ranks.
#[derive(Clone, Copy)]
struct Inner {
    /// File names and the names of Python modules, with blanks between them.
    names: &'static str,
    /// The subcommands that start ranks; empty if the program always does.
    verbs: &'static str,
    starts: Starts,
}

/// What a program starts.
#[derive(Clone, Copy)]
enum Starts {
    /// The ranks of a job, usually on several nodes. The text is an example of its options.
    Job(&'static str),
    /// The ranks of its node.
    Node {
        /// How mpienv tells it about the other nodes.
        per_node: &'static str,
        /// Options, written with hyphens, that show that it knows the other nodes.
        options: &'static [&'static str],
        /// Variables that show the same.
        variables: &'static [&'static str],
    },
}

/// Programs that start the ranks of their node. Those that start the ranks of a job are described
/// with their launcher.
const OF_A_NODE: &[Inner] = &[
    Inner {
        names: "torchrun torch.distributed.run torch.distributed.launch",
        verbs: "",
        starts: Starts::Node {
            per_node: "mpienv exec --per-node -- torchrun ...",
            options: &["--nnodes", "--node-rank", "--rdzv-"],
            variables: &["PET_NNODES", "PET_RDZV_ENDPOINT"],
        },
    },
    Inner {
        names: "deepspeed",
        verbs: "",
        starts: Starts::Node {
            per_node: "mpienv exec --template -- deepspeed --no_ssh --node_rank {node_rank} --master_addr {master_addr} ...",
            options: &["--no-ssh", "--node-rank"],
            variables: &[],
        },
    },
    Inner {
        names: "accelerate",
        verbs: "launch",
        starts: Starts::Node {
            per_node: "mpienv exec --template -- accelerate launch --multi_gpu --num_machines {nnodes} --machine_rank {node_rank} ...",
            options: &["--num-machines", "--machine-rank", "--config-file"],
            variables: &[],
        },
    },
    Inner {
        names: "paddle.distributed.launch",
        verbs: "",
        starts: Starts::Node {
            per_node: "mpienv exec --template -- python -m paddle.distributed.launch --rank {node_rank} --master {master_addr}:{master_port} ...",
            options: &["--nnodes", "--rank", "--master"],
            variables: &["PADDLE_NNODES", "PADDLE_MASTER"],
        },
    },
    Inner {
        names: "msrun",
        verbs: "",
        starts: Starts::Node {
            per_node: "mpienv exec --template -- msrun --node_rank {node_rank} --master_addr {master_addr} ...",
            options: &["--node-rank"],
            variables: &[],
        },
    },
];

/// Returns all programs that start ranks.
fn inner() -> impl Iterator<Item = Inner> {
    let of_launchers = Launcher::ALL.iter().filter_map(|launcher| launcher.advice().programs);
    let of_jobs = of_launchers.map(|Programs { names, verbs, options }| Inner {
        names,
        verbs,
        starts: Starts::Job(options),
    });
    of_jobs.chain(OF_A_NODE.iter().copied())
}

/// Which command would start the launcher.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// With `--per-node`, a launcher of one node's ranks is what it is for.
    Exec { per_node: bool },
    /// Every worker would start the launcher.
    Launch { workers: u32 },
}

/// Why the command is not started.
#[derive(Debug, thiserror::Error)]
#[error("{why}; {remedy}; --allow-launcher starts it anyway")]
pub(crate) struct InnerLauncher {
    why: String,
    remedy: String,
}

impl LauncherOption {
    /// Returns an error if the words start a launcher whose ranks would get one rank's variables.
    pub(super) fn check(
        self,
        info: &ClusterInfo,
        environment: &Environment,
        by: By,
        words: &[OsString],
    ) -> Result<(), InnerLauncher> {
        let Some(found) = find(words).filter(|_| !self.allow_launcher) else { return Ok(()) };
        let workers = if let By::Launch { workers } = by { workers } else { 1 };
        let ranks = u64::from(info.world_size()) * u64::from(workers);
        let refused = match (found.starts, by) {
            // Each of its ranks gets its own variables.
            (Starts::Job(_), By::Exec { .. }) if found.words.iter().any(is_mpienv) => None,
            (Starts::Job(options), by) => Some(found.of_job(options, by, ranks)),
            (Starts::Node { .. }, By::Exec { per_node: true }) => None,
            // Alone, it starts its ranks as it does without mpienv.
            (starts, _) if ranks == 1 || starts.knows_other_nodes(environment, words) => None,
            (Starts::Node { per_node, .. }, by) => Some(found.of_node(per_node, by, ranks, info)),
        };
        refused.map_or(Ok(()), Err)
    }
}

/// Returns whether the words start a launcher.
pub(super) fn is_launcher(words: &[OsString]) -> bool {
    find(words).is_some()
}

impl Found<'_> {
    fn of_job(&self, options: &str, by: By, ranks: u64) -> InnerLauncher {
        let name = &self.name;
        let remedy = remedy(self.in_order(options));
        let remedy = match by {
            By::Exec { .. } => remedy,
            By::Launch { .. } => format!(
                "omit it, because launch starts the ranks of a node itself; or let it start all ranks: {remedy}"
            ),
        };
        let why = match ranks {
            1 => format!(
                "{name} starts the ranks of a job, and all of them would inherit this process's RANK=0 and WORLD_SIZE=1"
            ),
            _ => format!("{}, whose ranks all inherit the same RANK", self.each(ranks)),
        };
        InnerLauncher { why, remedy }
    }

    fn of_node(&self, per_node: &str, by: By, ranks: u64, info: &ClusterInfo) -> InnerLauncher {
        let name = &self.name;
        let remedy = match by {
            By::Exec { .. } if info.launch_style() == LaunchStyle::PerNode => {
                format!("use `{per_node}`, which tells each node's {name} about the other nodes")
            }
            By::Exec { .. } => format!(
                "start the program without {name}, as in `mpienv exec -- python train.py`; or start one process on each node \
                 ({}) with `{per_node}`",
                info.launcher().advice().one_per_node
            ),
            By::Launch { .. } => format!(
                "start the program without {name}, as in `mpienv launch --nproc-per-node N -- python train.py`: launch \
                 starts the ranks of a node as {name} does"
            ),
        };
        let why = format!(
            "{}; {name} starts all ranks of a node itself and ignores RANK and WORLD_SIZE",
            self.each(ranks)
        );
        InnerLauncher { why, remedy }
    }

    fn each(&self, ranks: u64) -> String {
        let name = &self.name;
        format!(
            "each of the {ranks} ranks would start its own {name}, and each {name} would run a separate job"
        )
    }
}

impl Starts {
    /// Returns whether a launcher of its node's ranks is told about the other nodes.
    fn knows_other_nodes(self, environment: &Environment, words: &[OsString]) -> bool {
        let Starts::Node { options, variables, .. } = self else { return false };
        let tells = |word: &OsString| {
            let word = word.to_string_lossy().replace('_', "-");
            options.iter().any(|option| word.starts_with(option))
        };
        words.iter().any(tells) || variables.iter().any(|variable| environment.is_set(variable))
    }
}

/// Returns what to type instead of words that start a launcher of jobs: a line, or else advice.
pub(super) fn meant(words: &[OsString]) -> Option<Result<String, String>> {
    let found = find(words)?;
    let Starts::Job(options) = found.starts else { return None };
    Some(found.in_order(options))
}

fn remedy(order: Result<String, String>) -> String {
    order.map_or_else(|advice| advice, |line| format!("put mpienv after it: `{line}`"))
}

/// A launcher that is started.
struct Found<'a> {
    /// The name that the user typed.
    name: String,
    starts: Starts,
    /// The words up to its name.
    start: &'a [OsString],
    /// The words after it.
    words: &'a [OsString],
}

impl Found<'_> {
    /// Returns the line with the launcher before mpienv, or advice if it is unknown where the
    /// launcher's options end.
    fn in_order(&self, options: &str) -> Result<String, String> {
        // mpienv is in its place already.
        if self.words.iter().any(is_mpienv) {
            return Ok(format!("{} {}", words::line(self.start), words::line(self.words)));
        }
        let program = count::first(self.words).map(|(_, used)| self.words.split_at(used));
        let is_program = |word: &OsString| !word.as_encoded_bytes().starts_with(b"-");
        match program.filter(|(_, program)| program.first().is_some_and(is_program)) {
            Some((count, program)) => {
                let [start, count, program] = [self.start, count, program].map(words::line);
                Ok(format!("{start} {count} mpienv exec -- {program}"))
            }
            None => {
                let name = &self.name;
                Err(format!(
                    "put `mpienv exec --` before the program, as in `{name} {options} mpienv exec -- ...`"
                ))
            }
        }
    }
}

/// Returns the launcher that the words start.
fn find(all: &[OsString]) -> Option<Found<'_>> {
    let mut words = all.iter().map(|word| word.to_string_lossy());
    let mut first = words.next()?;
    if file_name(&first)? == "env" {
        first = words.find(|word| !word.contains('='))?;
    }
    let mut name = file_name(&first)?.to_owned();
    if name.starts_with("python") {
        // Only Python's own options may precede `-m`.
        words.find(|word| word == "-m" || !word.starts_with('-')).filter(|word| word == "-m")?;
        name = words.next()?.into_owned();
    }
    let is_in = |list: &str, word: &str| list.split(' ').any(|name| name == word);
    let inner = inner().find(|inner| is_in(inner.names, &name))?;
    if !inner.verbs.is_empty() {
        let verb = words.next().filter(|verb| is_in(inner.verbs, verb))?;
        name = format!("{name} {verb}");
    }
    let (start, words) = all.split_at(all.len() - words.len());
    Some(Found { name, starts: inner.starts, start, words })
}

fn is_mpienv(word: &OsString) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == "mpienv")
}

fn file_name(word: &str) -> Option<&str> {
    Path::new(word).file_name()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<String> {
        find(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).map(|found| found.name)
    }

    #[test]
    fn launchers_are_known_by_their_file_name_their_subcommand_or_their_module() {
        for (line, name) in [
            ("mpirun -n 2 ./solver", "mpirun"),
            ("/opt/mpich/bin/mpiexec.hydra -n 2 ./solver", "mpiexec.hydra"),
            ("env A=1 B=2 srun ./solver", "srun"),
            ("flux run -n 2 ./solver", "flux run"),
            ("horovodrun -np 2 python train.py", "horovodrun"),
            ("torchrun train.py", "torchrun"),
            ("python3 -u -m torch.distributed.run train.py", "torch.distributed.run"),
            ("accelerate launch train.py", "accelerate launch"),
            ("python -m paddle.distributed.launch train.py", "paddle.distributed.launch"),
            ("mlx.launch -n 2 train.py", "mlx.launch"),
        ] {
            assert_eq!(found(line).as_deref(), Some(name), "{line}");
        }
        for line in [
            "python train.py",
            "python train.py -m torch.distributed.run",
            "python -m torchrunner",
            "python",
            "python -m",
            "flux start ./script",
            "flux",
            "accelerate config",
            "env",
            "env A=1",
            "echo mpirun",
            "",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn every_launcher_of_processes_is_known() {
        use mpienv_core::seam::Starts;
        for launcher in
            Launcher::ALL.iter().filter(|launcher| launcher.starts() == Starts::Processes)
        {
            let start = launcher.advice().start;
            let command = start.split('`').nth(1).or(start.split("with ").nth(1));
            let is_known = command.is_some_and(|command| found(command).is_some());
            assert!(is_known || start.starts_with("set "), "{launcher}: {start}");
        }
    }
}
