//! Rejects a torchrun that would get the variables of one rank and start a separate job.

use std::ffi::OsString;
use std::path::Path;

use crate::{ClusterInfo, Environment, LaunchStyle};

use super::Failure;

const PER_NODE: &str =
    "use `mpienv exec --per-node -- torchrun ...`, which tells each node's torchrun about the other nodes";
const LAUNCH: &str = "start the program without torchrun, as in `mpienv launch --nproc-per-node N -- python train.py`: \
                      launch starts the ranks of a node as torchrun does";

/// Rejects `exec` of a torchrun by one of several ranks.
pub(super) fn check_exec(info: &ClusterInfo, environment: &Environment, words: &[OsString]) -> Result<(), Failure> {
    let remedy = match info.launch_style() {
        LaunchStyle::PerNode => PER_NODE.to_owned(),
        _ => format!(
            "start the program without torchrun, as in `mpienv exec -- python train.py`; or start one process on each node \
             ({}) with `mpienv exec --per-node -- torchrun ...`",
            info.launcher().spec().advice.one_per_node
        ),
    };
    check(info.world_size().into(), environment, words, remedy)
}

/// Rejects `launch` of a torchrun by every worker.
pub(super) fn check_launch(
    info: &ClusterInfo,
    environment: &Environment,
    workers: u32,
    words: &[OsString],
) -> Result<(), Failure> {
    check(u64::from(info.world_size()) * u64::from(workers), environment, words, LAUNCH.to_owned())
}

fn check(ranks: u64, environment: &Environment, words: &[OsString], remedy: String) -> Result<(), Failure> {
    // Options or variables that name the nodes show that this is intended.
    let variables = ["PET_NNODES", "PET_RDZV_ENDPOINT"];
    let words = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let has_node_options = arguments(words).is_none_or(|rest| rest.iter().any(|word| tells_nodes(word)));
    if ranks == 1 || has_node_options || variables.iter().any(|name| environment.is_set(name)) {
        return Ok(());
    }
    Err(Failure::TorchrunByRank { ranks, remedy })
}

/// The maximum number of commands around a torchrun.
const DEPTH: usize = 8;

/// Commands that run another command, and their options that take the next word.
const WRAPPERS: &[(&str, &[&str])] = &[
    ("env", &["-u", "--unset", "-C", "--chdir"]),
    ("ionice", &["-c", "--class", "-n", "--classdata"]),
    ("nice", &["-n", "--adjustment"]),
    ("nohup", &[]),
    (
        "numactl",
        &["-C", "-N", "-i", "-m", "-p", "--cpunodebind", "--interleave", "--membind", "--physcpubind", "--preferred"],
    ),
    ("setsid", &[]),
    ("stdbuf", &["-e", "-i", "-o"]),
    ("time", &["-f", "-o"]),
];

const SHELLS: &[&str] = &["bash", "dash", "ksh", "sh", "zsh"];

/// Returns the words after the name of torchrun, even if other commands start it, or `None` without torchrun.
fn arguments(mut words: Vec<String>) -> Option<Vec<String>> {
    for _ in 0..DEPTH {
        let name = Path::new(words.first()?).file_name()?.to_str()?.to_owned();
        let rest = words.split_off(1);
        words = if let Some((_, taking)) = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name) {
            wrapped(rest, taking)
        } else if SHELLS.contains(&name.as_str()) {
            script(&rest)?
        } else if name == "exec" {
            rest
        } else {
            return of_torchrun(&name, rest);
        };
    }
    None
}

fn of_torchrun(name: &str, rest: Vec<String>) -> Option<Vec<String>> {
    let modules = ["torch.distributed.run", "torch.distributed.launch"];
    if name == "torchrun" {
        return Some(rest);
    }
    let module = rest.iter().position(|word| word == "-m")?;
    // Only Python's own options may precede `-m`.
    let is_python = name.starts_with("python") && rest.iter().take(module).all(|word| word.starts_with('-'));
    (is_python && rest.get(module + 1).is_some_and(|name| modules.contains(&name.as_str())))
        .then(|| rest.into_iter().skip(module + 2).collect())
}

/// Returns the command that follows a wrapper's options and, for env, assignments.
fn wrapped(words: Vec<String>, taking: &[&str]) -> Vec<String> {
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next_if(|word| word.starts_with('-') || word.contains('=')) {
        if taking.contains(&word.as_str()) {
            words.next();
        }
    }
    words.collect()
}

/// Returns the first command of a shell's `-c`.
fn script(words: &[String]) -> Option<Vec<String>> {
    let option =
        words.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'))?;
    let text = words.get(option + 1)?;
    let command = text.split([';', '&', '|', '\n']).next()?;
    // Assignments may precede a command, as with env.
    let words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned()).collect();
    Some(wrapped(words, &[]))
}

fn tells_nodes(word: &str) -> bool {
    let word = word.replace('_', "-");
    ["--nnodes", "--node-rank", "--rdzv-"].iter().any(|option| word.starts_with(option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torchrun_without_node_options_is_refused_if_several_processes_start_it() {
        let none = Environment::default();
        let refused = |ranks, environment: &Environment, words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            check(ranks, environment, &words, LAUNCH.to_owned()).is_err()
        };
        let of = |line: &'static str| line.split(' ').collect::<Vec<_>>();
        for words in [
            of("torchrun train.py"),
            of("/opt/bin/torchrun --nproc-per-node 2 train.py"),
            of("torchrun --standalone train.py"),
            of("python3 -m torch.distributed.run train.py"),
            of("python -u -m torch.distributed.launch train.py"),
            of("env -u A B=1 torchrun train.py"),
            of("nice -n 5 numactl -N 0 --localalloc /opt/bin/torchrun train.py"),
            vec!["sh", "-c", "torchrun train.py"],
            vec!["bash", "-lc", "A=1 exec torchrun --standalone train.py && echo done"],
            vec!["env", "A=1", "sh", "-c", "nice torchrun train.py"],
        ] {
            assert!(refused(2, &none, &words) && !refused(1, &none, &words), "{words:?}");
            assert!(!refused(2, &Environment::from_vars([("PET_NNODES", "2")]), &words), "{words:?}");
        }
        for words in [
            of("torchrun --nnodes=2 --node_rank 1 train.py"),
            of("torchrun --rdzv_endpoint a:1 train.py"),
            of("python train.py"),
            of("python train.py -m torch.distributed.run"),
            of("python -m torchrun"),
            of("sh torchrun"),
            of("env"),
            of("env -u"),
            of("sh -c"),
            vec!["sh", "-c", ""],
            vec!["sh", "-c", "torchrun --nnodes $N --node-rank $R train.py"],
            vec!["sh", "-c", "echo torchrun"],
            vec!["nice"; 100],
        ] {
            assert!(!refused(2, &none, &words), "{words:?}");
        }
    }
}
