//! What people type for launchers, and what is meant: the programs that start ranks, and their
//! options. A launcher as the command is rejected, because its ranks would get one rank's variables.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::{ClusterInfo, Environment, Finding, LaunchStyle, Launcher};
use clap::Args;
use mpienv_core::seam::Programs;

use super::{Failure, program};

/// The options of launchers for the number of processes. Here and below, words of a list have blanks
/// between them.
const COUNTS: &str = "-n -np --np --nproc --nprocs --ntasks --ranks --workers --num-workers \
                      --num-processes --num_processes";

/// The options of other launchers, chiefly torchrun's, with hyphens, and what is said of each.
const OPTIONS: &[(&str, &str)] = &[
    ("--standalone", "omit it: without other nodes, the workers of launch are a job of their own"),
    ("-m --module", "start Python yourself, as in `-- python -m MODULE`"),
    ("--no-python", "omit it: the command after `--` may be any program"),
    (
        "--rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf",
        "omit it: the launcher, MASTER_ADDR or --master-addr names where the ranks meet",
    ),
    (
        "--wait-for-master",
        "exec has this option; on several nodes, `launch --meet TIME` waits for all of them",
    ),
    (
        "--hostfile --machinefile -H --host --hosts --nodelist -w",
        "launch starts the workers of one node: start it on each host, as with ssh or pdsh, with --node-rank, --nnodes and \
         --master-addr; or let mpirun start the ranks, as in `mpirun --hostfile FILE mpienv exec -- CMD`",
    ),
    ("--for", "exec, launch and export have this option; `exec --dry-run` prints what it sets"),
    ("-v --ver", "for the version, type `mpienv --version`"),
    ("--tee --redirects", "for a file of each worker's output, use `launch --log-dir DIR`"),
];

/// The options of launchers for the shape of a job, with hyphens, beside those of `COUNTS`.
const SHAPES: &str =
    "-N --nnodes --num-nodes --ntasks-per-node --tasks-per-node --nproc-per-node --npernode";

/// Programs that start the ranks of their node. Those that start the ranks of a job are described
/// with their launcher.
const OF_A_NODE: &[Inner] = &[
    Inner {
        names: "torchrun torch.distributed.run torch.distributed.launch",
        verbs: "",
        example: "mpienv exec --per-node -- torchrun ...",
        knows: Some("--nnodes --node-rank --rdzv- PET_NNODES PET_RDZV_ENDPOINT"),
    },
    Inner {
        names: "deepspeed",
        verbs: "",
        example: "mpienv exec --template -- deepspeed --no_ssh --node_rank {node_rank} --master_addr {master_addr} ...",
        knows: Some("--no-ssh --node-rank"),
    },
    Inner {
        names: "accelerate",
        verbs: "launch",
        example: "mpienv exec --template -- accelerate launch --multi_gpu --num_machines {nnodes} --machine_rank {node_rank} ...",
        knows: Some("--num-machines --machine-rank --config-file"),
    },
    Inner {
        names: "paddle.distributed.launch",
        verbs: "",
        example: "mpienv exec --template -- python -m paddle.distributed.launch --rank {node_rank} --master {master_addr}:{master_port} ...",
        knows: Some("--nnodes --rank --master PADDLE_NNODES PADDLE_MASTER"),
    },
    Inner {
        names: "msrun",
        verbs: "",
        example: "mpienv exec --template -- msrun --node_rank {node_rank} --master_addr {master_addr} ...",
        knows: Some("--node-rank"),
    },
];

/// A program that starts ranks.
#[derive(Clone, Copy)]
struct Inner {
    /// File names and the names of Python modules, with blanks between them.
    names: &'static str,
    /// The subcommands that start ranks; empty if the program always does.
    verbs: &'static str,
    /// The options of a launcher of jobs, or how mpienv tells a node's launcher about the other
    /// nodes.
    example: &'static str,
    /// The options, written with hyphens, and the variables that show that a node's launcher knows
    /// the other nodes. `None` if it starts the ranks of a job, usually on several nodes.
    knows: Option<&'static str>,
}

/// Returns all programs that start ranks.
fn inner() -> impl Iterator<Item = Inner> {
    let of_launchers = Launcher::ALL.iter().filter_map(|launcher| launcher.spec().programs);
    let of_jobs = of_launchers.map(|Programs { names, verbs, options }| Inner {
        names,
        verbs,
        example: options,
        knows: None,
    });
    of_jobs.chain(OF_A_NODE.iter().copied())
}

/// Returns what is said of another launcher's option.
pub(super) fn option(name: &str) -> Option<&'static str> {
    let name = name.replace('_', "-");
    OPTIONS.iter().find(|(names, _)| has(names, &name)).map(|(_, said)| *said)
}

/// Returns what `simulate` says of another launcher's option.
pub(super) fn shape(name: &str) -> Option<&'static str> {
    let name = name.replace('_', "-");
    let is_known = has(SHAPES, &name) || has(COUNTS, &name);
    is_known.then_some("simulate takes the number of nodes and of ranks on each: --nodes N --ppn P")
}

/// Returns the number with which the words start, and how many words it takes: `-n 2`, `-n2` or
/// `-n=2`.
pub(super) fn count(words: &[OsString]) -> Option<(&OsStr, usize)> {
    let (word, rest) = words.split_first()?;
    if COUNTS.split(' ').any(|name| word == name) {
        let value = rest.first().filter(|value| !is_option(value))?;
        return Some((value, 2));
    }
    let joined = |name: &str| {
        let value = word.to_str()?.strip_prefix(name)?;
        let number = Some(value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        value.strip_prefix('=').or(number).filter(|value| !value.is_empty())
    };
    COUNTS.split(' ').find_map(joined).map(|value| (OsStr::new(value), 1))
}

/// Whether the command may be a launcher.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct LauncherOption {
    /// Start the command even if it is itself a launcher, such as mpirun, srun or torchrun
    ///
    /// Each rank that mpienv starts then starts a job of its own. The ranks of that job inherit one
    /// rank's RANK and WORLD_SIZE, and need `mpienv exec` to get their own:
    /// `mpienv launch --nproc-per-node 2 --allow-launcher -- mpirun -n 2 mpienv exec -- ./solver`.
    #[arg(long)]
    allow_launcher: bool,
}

/// Which command would start the launcher.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// With `--per-node`, a launcher of one node's ranks is what it is for.
    Exec { per_node: bool },
    /// Every worker would start the launcher.
    Launch { workers: u32 },
}

impl LauncherOption {
    /// Returns an error if the words start a launcher whose ranks would get one rank's variables.
    pub(super) fn check(
        self,
        info: &ClusterInfo,
        by: By,
        words: &[OsString],
    ) -> Result<(), Failure> {
        let Some(found) = find(words).filter(|_| !self.allow_launcher) else { return Ok(()) };
        let workers = if let By::Launch { workers } = by { workers } else { 1 };
        let ranks = u64::from(info.world_size()) * u64::from(workers);
        match (found.inner.knows, by) {
            // Each of its ranks gets its own variables.
            (None, By::Exec { .. }) if found.words.iter().any(is_mpienv) => Ok(()),
            (None, by) => Err(found.of_job(by, ranks, info)),
            // Alone, it starts its ranks as it does without mpienv.
            (Some(_), _) if ranks == 1 => Ok(()),
            (Some(_), By::Exec { per_node: true }) => found.check_nodes(ranks),
            (Some(known), _) if is_known(known, info.environment(), words) => Ok(()),
            (Some(_), by) => Err(found.of_node(by, ranks, info)),
        }
    }
}

/// Returns whether a word starts with one of these options, or one of these variables is set.
fn is_known(known: &str, environment: &Environment, words: &[OsString]) -> bool {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().replace('_', "-")).collect();
    let is_typed = |option: &str| words.iter().any(|word| word.starts_with(option));
    known.split(' ').any(|known| is_typed(known) || environment.is_set(known))
}

/// A launcher that is started.
pub(super) struct Found<'a> {
    /// The name that the user typed.
    name: String,
    inner: Inner,
    /// The words up to its name.
    start: &'a [OsString],
    /// The words after it.
    words: &'a [OsString],
}

impl Found<'_> {
    /// Returns whether it starts the ranks of a job, usually on several nodes.
    pub(super) fn starts_job(&self) -> bool {
        self.inner.knows.is_none()
    }

    /// Returns what is said of the line with the launcher before mpienv, or advice if it is unknown
    /// where the launcher's options end.
    pub(super) fn in_order(&self, say: fn(String) -> String) -> String {
        let line = program::line;
        // mpienv is in its place already.
        if self.words.iter().any(is_mpienv) {
            return say(format!("{} {}", line(self.start), line(self.words)));
        }
        let program = count(self.words).map(|(_, used)| self.words.split_at(used));
        match program.filter(|(_, words)| words.first().is_some_and(|word| !is_option(word))) {
            Some((count, program)) => {
                let [start, count, program] = [self.start, count, program].map(line);
                say(format!("{start} {count} mpienv exec -- {program}"))
            }
            None => format!(
                "put `mpienv exec --` before the program, as in `{} {} mpienv exec -- ...`",
                self.name, self.inner.example
            ),
        }
    }

    fn of_job(&self, by: By, ranks: u64, info: &ClusterInfo) -> Failure {
        let name = &self.name;
        let mut remedy = self.in_order(|line| format!("put mpienv after it: `{line}`"));
        if let Some(outer) = info.launcher().spec().programs.filter(|_| info.world_size() > 1) {
            let outer = outer.names.split(' ').next().unwrap_or_default();
            remedy += &format!(", without the outer {outer}");
        }
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
        Failure::InnerLauncher { why, remedy }
    }

    /// Returns an error if it ignores the other nodes, which `--per-node` passes to it.
    fn check_nodes(&self, nodes: u64) -> Result<(), Failure> {
        // Behind the script's name, it is the script's.
        let is_script = |word: &OsString| {
            word == "-m" || word == "--" || Path::new(word).extension() == Some("py".as_ref())
        };
        let own = self.words.iter().take_while(|word| !is_script(word));
        let own: Vec<_> = own.filter_map(|word| word.to_str()).collect();
        // Behind `--no-python`, other words may be the program's.
        let options = own.iter().take_while(|word| **word != "--no-python");
        let options: Vec<_> = options.flat_map(|word| word.split('=')).collect();
        let is_one = |words: &[&str]| words[0] == "--nnodes" && ["1", "1:1"].contains(&words[1]);
        let is_torchrun = self.inner.example.contains("torchrun");
        let option = if own.contains(&"--standalone") {
            "--standalone"
        } else if is_torchrun && options.windows(2).any(is_one) {
            "--nnodes 1"
        } else {
            return Ok(());
        };
        let name = &self.name;
        let why =
            format!("with {option}, {name} would run a separate job on each of the {nodes} nodes");
        let remedy = format!("omit it, because --per-node passes {name} the other nodes");
        Err(Failure::InnerLauncher { why, remedy })
    }

    fn of_node(&self, by: By, ranks: u64, info: &ClusterInfo) -> Failure {
        let (name, per_node) = (&self.name, self.inner.example);
        let remedy = match by {
            By::Exec { .. } if info.launch_style() == LaunchStyle::PerNode => {
                format!("use `{per_node}`, which tells each node's {name} about the other nodes")
            }
            By::Exec { .. } => format!(
                "start the program without {name}, as in `mpienv exec -- python train.py`; or start one process on each node \
                 ({}) with `{per_node}`",
                info.launcher().spec().one_per_node
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
        Failure::InnerLauncher { why, remedy }
    }

    fn each(&self, ranks: u64) -> String {
        let name = &self.name;
        format!(
            "each of the {ranks} ranks would start its own {name}, and each {name} would run a separate job"
        )
    }
}

/// Programs that start the program that follows their options.
const WRAPPERS: &str = "chrt env ionice ltrace ncu nice nohup nsys numactl nvprof perf prlimit \
                        rocprof setpriv setsid stdbuf strace taskset time timeout unshare valgrind \
                        vtune";

/// Subcommands of theirs that do.
const SUBCOMMANDS: &str = "profile record stat";

/// Options of theirs whose value is a name, which may be that of a launcher.
const NAMED: &str = "-C -o --output";

/// Returns the launcher that the words start, also behind a program such as `timeout` or `numactl`.
pub(super) fn find(all: &[OsString]) -> Option<Found<'_>> {
    find_at(all, start(all)?)
}

/// Reports a Python script that `--per-node` leaves without RANK, unless its name is that of a
/// launcher. A module, or a script of a shell, may start torchrun.
pub(super) fn script_of_node(info: &ClusterInfo, all: &[OsString]) -> Option<Finding> {
    let nodes = info.world_size();
    let at = start(all).filter(|_| nodes > 1 && find(all).is_none())?;
    let script = all[at + 1..].iter().find(|word| !is_option(word))?.to_str()?;
    let is_launcher = script.contains("launch") || file_name(script) == Some("run.py");
    let line = program::line(&all[at..=at]) + " " + script;
    let what =
        format!("`{line}` gets neither RANK nor WORLD_SIZE with --per-node, which is for torchrun");
    let why = format!(
        "unless it starts the ranks of its node itself, each of the {nodes} processes is rank 0 of 1"
    );
    let remedy = "omit --per-node, or start the script with torchrun or with `mpienv launch`";
    let is_probable = script.ends_with(".py") && !is_launcher;
    is_probable.then(|| Finding::warning("not-torchrun", what, why, remedy))
}

/// Returns where the words start a launcher or Python.
fn start(all: &[OsString]) -> Option<usize> {
    let mut before = String::new();
    for (at, word) in all.iter().enumerate() {
        let word = word.to_string_lossy();
        let name = file_name(&word).unwrap_or_default();
        let is_named = word.contains('=') || has(NAMED, &before);
        if !is_named && (name.starts_with("python") || find_at(all, at).is_some()) {
            return Some(at);
        }
        // Numbers are durations, cores and priorities.
        let is_of_option = before.starts_with('-') && before != "--" || has(SUBCOMMANDS, name);
        let is_own =
            |first: char| is_named || is_of_option || first == '-' || first.is_ascii_digit();
        if !has(WRAPPERS, name) && (at == 0 || !word.starts_with(is_own)) {
            return None;
        }
        before = word.into_owned();
    }
    None
}

/// Returns the launcher that the words start from this one on.
fn find_at(all: &[OsString], at: usize) -> Option<Found<'_>> {
    let mut words = all[at..].iter().map(|word| word.to_string_lossy());
    let mut name = file_name(&words.next()?)?.to_owned();
    if name.starts_with("python") {
        // Only Python's own options may precede `-m`.
        words.find(|word| word == "-m" || !word.starts_with('-')).filter(|word| word == "-m")?;
        name = words.next()?.into_owned();
    }
    let inner = inner().find(|inner| has(inner.names, &name))?;
    if !inner.verbs.is_empty() {
        let verb = words.next().filter(|verb| has(inner.verbs, verb))?;
        name = format!("{name} {verb}");
    }
    let (start, words) = all.split_at(all.len() - words.len());
    Some(Found { name, inner, start, words })
}

/// Returns whether a word is in a list of words with blanks between them.
fn has(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

/// Returns whether a word is an option.
pub(super) fn is_option(word: &OsString) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
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
            ("env PYTHON=/bin/python3 srun ./solver", "srun"),
            ("env -u A nice -n 5 srun ./solver", "srun"),
            ("/usr/bin/timeout 60 mpirun -n 2 ./solver", "mpirun"),
            ("numactl --membind 0 python3 -m torch.distributed.run x.py", "torch.distributed.run"),
            ("nsys profile -o python-x torchrun train.py", "torchrun"),
            ("timeout -s KILL 60 taskset -c 0-3 mpirun ./solver", "mpirun"),
            ("env -i mpirun ./solver", "mpirun"),
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
            "timeout 60 ./solver",
            "env A=/bin/mpirun ./solver",
            "timeout 60 python train.py mpirun",
            "timeout",
            "timeout 60 which mpirun",
            "timeout 5 ls /tmp/deepspeed",
            "nohup ./solver --launcher srun",
            "env A=1 bash run.sh mpirun",
            "env -C /tmp/deepspeed true",
            "nsys profile -o torchrun python train.py",
            "perf stat -e cycles ./solver",
            "",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn every_launcher_of_processes_is_known() {
        use mpienv_core::seam::Starts;
        for launcher in
            Launcher::ALL.iter().filter(|launcher| launcher.spec().starts == Starts::Processes)
        {
            let start = launcher.spec().start;
            let command = start.split('`').nth(1).or(start.split("with ").nth(1));
            let is_known = command.is_some_and(|command| found(command).is_some());
            assert!(is_known || start.starts_with("set "), "{launcher}: {start}");
        }
    }

    #[test]
    fn a_number_of_processes_is_known_in_every_spelling() {
        for (line, expected) in [
            ("-n 2 x", Some(("2", 2))),
            ("-n auto", Some(("auto", 2))),
            ("-n2", Some(("2", 1))),
            ("-n=2", Some(("2", 1))),
            ("-np4 x", Some(("4", 1))),
            ("--ntasks=8", Some(("8", 1))),
            ("-n", None),
            ("-n -x", None),
            ("-n=", None),
            ("-nx", None),
            ("x -n 2", None),
            ("--hosts 2", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(
                count(&words),
                expected.map(|(value, used)| (OsStr::new(value), used)),
                "{line}"
            );
        }
    }
}
