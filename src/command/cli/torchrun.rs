//! A torchrun that would be given the variables of one rank, and start a job of its own.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::{ClusterInfo, Environment, LaunchStyle};

use super::Failure;

const PER_NODE: &str =
    "use `mpienv exec --per-node -- torchrun ...`, which tells each node's torchrun about the other nodes";
const PER_RANK: &str = "start the program without torchrun, as in `mpienv exec -- python train.py`; or start one process on \
                        each node (`mpirun --map-by ppr:1:node`) with `mpienv exec --per-node -- torchrun ...`";
const LAUNCH: &str = "start the program without torchrun, as in `mpienv launch --nproc-per-node 8 -- python train.py`: \
                      launch starts the ranks of a node as torchrun does";

/// `exec` of a torchrun by one of several ranks.
pub(super) fn check_exec(info: &ClusterInfo, environment: &Environment, words: &[OsString]) -> Result<(), Failure> {
    let remedy = if info.launch_style() == LaunchStyle::PerNode { PER_NODE } else { PER_RANK };
    check(info.world_size().into(), environment, words, remedy)
}

/// `launch` of a torchrun by every worker.
pub(super) fn check_launch(
    info: &ClusterInfo,
    environment: &Environment,
    workers: u32,
    words: &[OsString],
) -> Result<(), Failure> {
    check(u64::from(info.world_size()) * u64::from(workers), environment, words, LAUNCH)
}

fn check(ranks: u64, environment: &Environment, words: &[OsString], remedy: &'static str) -> Result<(), Failure> {
    // Options or variables that name the nodes show that this is on purpose.
    let variables = ["PET_NNODES", "PET_RDZV_ENDPOINT", "PET_STANDALONE"];
    let is_told = arguments(words).is_none_or(|rest| rest.iter().any(tells_nodes));
    if ranks == 1 || is_told || variables.iter().any(|name| environment.is_set(name)) {
        return Ok(());
    }
    Err(Failure::TorchrunByRank { ranks, remedy })
}

/// The words after the name of torchrun; `None` where this is another command.
fn arguments(words: &[OsString]) -> Option<&[OsString]> {
    let (command, rest) = words.split_first()?;
    let name = Path::new(command).file_name()?.to_str()?;
    let modules = ["torch.distributed.run", "torch.distributed.launch"];
    match rest {
        rest if name == "torchrun" => Some(rest),
        [m, module, rest @ ..] if name.starts_with("python") && m == "-m" => {
            modules.iter().any(|known| module == known).then_some(rest)
        }
        _ => None,
    }
}

fn tells_nodes(word: &OsString) -> bool {
    let word = OsStr::to_string_lossy(word).replace('_', "-");
    ["--nnodes", "--node-rank", "--rdzv-", "--standalone"].iter().any(|option| word.starts_with(option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torchrun_that_is_told_of_no_other_node_is_for_one_process_alone() {
        let none = Environment::default();
        let refused = |ranks, environment: &Environment, line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            check(ranks, environment, &words, LAUNCH).is_err()
        };
        for line in [
            "torchrun train.py",
            "/opt/bin/torchrun --nproc-per-node 2 train.py",
            "python3 -m torch.distributed.run train.py",
            "python -m torch.distributed.launch train.py",
        ] {
            assert!(refused(2, &none, line) && !refused(1, &none, line), "{line}");
            assert!(!refused(2, &Environment::from_vars([("PET_NNODES", "2")]), line), "{line}");
        }
        for line in [
            "torchrun --nnodes=2 --node_rank 1 train.py",
            "torchrun --rdzv_endpoint a:1 train.py",
            "torchrun --standalone train.py",
            "python train.py",
            "python -m torchrun",
            "sh torchrun",
        ] {
            assert!(!refused(2, &none, line), "{line}");
        }
    }
}
