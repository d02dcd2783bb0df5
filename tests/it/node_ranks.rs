//! The number of a node with a local rank, as Lightning's own launcher and scripts set them: never
//! two processes with one rank.

use mpienv::{ClusterInfo, LaunchStyle, Launcher};
use proptest::prelude::*;

use super::platforms::{Pairs, error, node, read};
use crate::support::tool::clean;

/// The second process of the second of two nodes with two processes each.
const PROCESS: Pairs = &[
    ("NODE_RANK", "1"),
    ("NUM_NODES", "2"),
    ("MASTER_ADDR", "node0"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
];

/// The same set with one variable replaced, or added.
fn with<'a>(name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    let kept = PROCESS.iter().filter(|(other, _)| *other != name).copied();
    kept.chain([(name, value)]).collect()
}

fn without(names: &[&str]) -> Vec<(&'static str, &'static str)> {
    PROCESS.iter().filter(|(name, _)| !names.contains(name)).copied().collect()
}

#[test]
fn a_nodes_number_and_a_local_rank_are_a_rank() {
    let nodes = without(&["NUM_NODES"]);
    let no_local_size = without(&["LOCAL_WORLD_SIZE"]);
    for vars in [
        PROCESS.to_vec(),
        [&nodes[..], &[("NNODES", "2")]].concat(),
        [&nodes[..], &[("WORLD_SIZE", "4")]].concat(),
        [&no_local_size[..], &[("WORLD_SIZE", "4")]].concat(),
        [PROCESS, &[("NNODES", "2"), ("WORLD_SIZE", "4")]].concat(),
    ] {
        let info = read(&vars).unwrap();
        assert_eq!(info.launcher(), Launcher::User, "{vars:?}");
        assert_eq!((info.rank().index(), info.world_size()), (3, 4), "{vars:?}");
        assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), Some(2)), "{vars:?}");
        assert_eq!((info.node_rank(), info.node_count()), (Some(1), Some(2)), "{vars:?}");
        assert_eq!(info.launch_style(), LaunchStyle::PerProcess);
        assert_eq!(info.master_addr().unwrap().to_string(), "node0");
        assert_eq!(info.findings(), [], "{vars:?}");
    }
    assert_eq!(read(&with("LOCAL_RANK", "0")).unwrap().rank().index(), 2);
}

#[test]
fn a_missing_size_is_an_error_that_names_it() {
    for (vars, missing) in [
        (without(&["LOCAL_WORLD_SIZE"]), "LOCAL_WORLD_SIZE"),
        (without(&["NUM_NODES"]), "NUM_NODES"),
        (without(&["NUM_NODES", "LOCAL_WORLD_SIZE"]), "LOCAL_WORLD_SIZE"),
        (without(&["LOCAL_RANK"]), "LOCAL_RANK"),
    ] {
        let error = error(&vars);
        let expected = format!("{missing} is not set, although NODE_RANK=\"1\" is; ");
        assert!(error.contains(&expected), "{vars:?}: {error}");
        assert!(error.contains("RANK and WORLD_SIZE") || missing == "LOCAL_RANK", "{error}");
    }
}

#[test]
fn numbers_that_contradict_each_other_are_errors() {
    for (name, value, expected) in [
        ("LOCAL_RANK", "2", "LOCAL_RANK=\"2\": must be from 0 to 1, because the size is 2; "),
        ("NODE_RANK", "2", "NODE_RANK=\"2\": must be from 0 to 1, because the size is 2; "),
        (
            "WORLD_SIZE",
            "5",
            "WORLD_SIZE=\"5\": it is not the product of NUM_NODES=\"2\" and LOCAL_WORLD_SIZE=\"2\"; ",
        ),
        ("NNODES", "3", "NNODES=\"3\": it contradicts NUM_NODES=\"2\"; "),
        ("NNODES", "1:4", "NNODES=\"1:4\": not a whole number"),
        ("NUM_NODES", "0", "NUM_NODES=\"0\": must be at least 1; "),
        ("LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE=\"0\": must be at least 1; "),
        ("LOCAL_WORLD_SIZE", "4294967295", "NUM_NODES=\"2\": 4294967295 processes on each"),
    ] {
        let error = error(&with(name, value));
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains("if it is left from another job"), "{error}");
    }
    let of_ranks =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("NODE_RANK", "2"), ("MASTER_ADDR", "node0")];
    let outside = error(&of_ranks);
    assert!(outside.starts_with("NODE_RANK=\"2\": must be from 0 to 1, "), "{outside}");
    let no_local_size = without(&["LOCAL_WORLD_SIZE"]);
    let odd = error(&[&no_local_size[..], &[("WORLD_SIZE", "3")]].concat());
    assert!(
        odd.starts_with("WORLD_SIZE=\"3\": it is not a multiple of NUM_NODES=\"2\"; "),
        "{odd}"
    );
}

#[test]
fn several_nodes_without_the_number_of_this_one_are_an_error_outside_of_batch_scripts() {
    let pod: Pairs = &[("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("MASTER_ADDR", "node0")];
    let array: Pairs = &[("BATCH_TASK_INDEX", "1"), ("BATCH_TASK_COUNT", "2")];
    let one_task: Pairs = &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "1")];
    for vars in [&[][..], pod, array, one_task, &[("LOCAL_RANK", "0")]] {
        for nodes in ["2", "1:2"] {
            let error = error(&[vars, &[("NNODES", nodes)]].concat());
            let expected = format!(
                "NNODES=\"{nodes}\": neither NODE_RANK nor JOB_COMPLETION_INDEX nor RANK is set, "
            );
            assert!(error.starts_with(&expected), "{error}");
            let remedy =
                "a Kubernetes Job needs `completionMode: Indexed`; elsewhere set NODE_RANK";
            assert!(error.contains(remedy), "{error}");
            assert!(
                error.ends_with("or set MPIENV_LAUNCHER=alone for a process by itself"),
                "{error}"
            );
        }
    }
    // The pods of an elastic PyTorchJob have no numbers.
    for nodes in ["2", "2:3"] {
        let error = error(&[pod, &[("PET_NNODES", nodes), ("PET_RDZV_BACKEND", "c10d")]].concat());
        let expected = format!(
            "PET_NNODES=\"{nodes}\": PET_NODE_RANK is not set, so the number of this node is not known; in the pods of an \
             elastic PyTorchJob start torchrun without mpienv, or as `torchrun --no-python mpienv exec -- CMD`; "
        );
        assert!(error.starts_with(&expected), "{error}");
    }
    let error = error(&[("PET_NODE_RANK", "0"), ("PET_NNODES", "1:2")]);
    let expected = "PET_NNODES=\"1:2\": it is a range, of which torchrun chooses the number of nodes; in the pods";
    assert!(error.contains(expected), "{error}");
    for nodes in ["1", "1:1", "0"] {
        let info = read(&[pod, &[("NNODES", nodes)]].concat()).unwrap();
        assert_eq!((info.world_size(), info.findings()), (1, &[][..]), "{nodes}");
    }
    let several = [("NNODES", "2")];
    let asked = read(&[&several[..], &[("MPIENV_LAUNCHER", "alone")]].concat()).unwrap();
    assert_eq!((asked.world_size(), asked.findings()), (1, &[][..]));
    // A launcher's place counts, whatever number of nodes is left.
    let task: Pairs = &[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "1")];
    assert_eq!(read(&[task, &several].concat()).unwrap().launcher(), Launcher::Slurm);
    // A script of several nodes runs once.
    let script: Pairs = &[("SLURM_JOB_ID", "7"), ("SLURM_NNODES", "2")];
    let info = read(&[script, &several].concat()).unwrap();
    assert_eq!(info.findings()[0].code, "slurm-not-a-task");
}

/// What Lightning sets for the processes that it starts.
fn of_lightning<'a>(node: &'a str, local: &'a str, master: &'a str) -> [(&'a str, &'a str); 5] {
    [
        ("NODE_RANK", node),
        ("LOCAL_RANK", local),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", master),
        ("MASTER_PORT", "41231"),
    ]
}

#[test]
fn lightnings_processes_on_one_node_are_placed_and_on_others_they_lack_a_size() {
    let info = read(&of_lightning("0", "3", "127.0.0.1")).unwrap();
    assert_eq!((info.rank().index(), info.world_size()), (3, 4));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(3), Some(4)));
    assert_eq!(info.launch_style(), LaunchStyle::SingleNode);
    // On the first of several nodes, the rank is known and the local size is not.
    let first = read(&of_lightning("0", "1", "node0")).unwrap();
    assert_eq!((first.rank().index(), first.world_size()), (1, 4));
    assert_eq!((first.local_rank(), first.local_world_size()), (Some(1), None));
    let other = error(&of_lightning("1", "1", "node0"));
    assert!(other.contains("LOCAL_WORLD_SIZE is not set, although NODE_RANK=\"1\" is"), "{other}");
    let outside = error(&of_lightning("0", "4", "node0"));
    assert!(outside.starts_with("LOCAL_RANK=\"4\": must be from 0 to 3"), "{outside}");
}

#[test]
fn only_runpods_own_names_show_runpod() {
    let pair: Pairs = &[("NODE_RANK", "1"), ("NUM_NODES", "2"), ("MASTER_ADDR", "node0")];
    assert_eq!(node(pair), (Launcher::User, 1, 2, "node0".into()));
    assert_eq!(read(pair).unwrap().platform(), None);
    let counted: Pairs = &[("NODE_RANK", "1"), ("NNODES", "2"), ("MASTER_ADDR", "node0")];
    assert_eq!(node(counted), (Launcher::User, 1, 2, "node0".into()));
    for own in [("RUNPOD_POD_ID", "x"), ("NUM_TRAINERS", "8"), ("PRIMARY_ADDR", "node0")] {
        let vars = [pair, &[own]].concat();
        assert_eq!(node(&vars), (Launcher::RunPod, 1, 2, "node0".into()), "{own:?}");
    }
    // RunPod counts all GPUs, and Lightning starts a process for each.
    let worker: Pairs = &[("RUNPOD_POD_ID", "x"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "3")];
    let info = read(&[pair, worker].concat()).unwrap();
    assert_eq!((info.launcher(), info.rank().index()), (Launcher::User, 11));
    assert_eq!(info.platform(), Some(Launcher::RunPod));
    // The nodes that a platform numbers are its own.
    let sky: Pairs = &[("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NUM_NODES", "2")];
    assert_eq!(read(&[sky, pair].concat()).unwrap().launcher(), Launcher::SkyPilot);
    let odd = error(&[pair, &[("WORLD_SIZE", "3")]].concat());
    assert!(odd.starts_with("WORLD_SIZE=\"3\": it is not a multiple"), "{odd}");
}

#[test]
fn a_platforms_node_is_not_the_place_of_its_second_process() {
    let sky: Pairs = &[("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NUM_NODES", "2")];
    let error = error(&[sky, &[("LOCAL_RANK", "1")]].concat());
    assert!(error.starts_with("SkyPilot: LOCAL_RANK=\"1\": the other variables"), "{error}");
    assert!(error.contains("NODE_RANK, NUM_NODES and LOCAL_WORLD_SIZE"), "{error}");
    assert_eq!(read(&[sky, &[("LOCAL_RANK", "0")]].concat()).unwrap().rank().index(), 1);
}

#[test]
fn numbers_of_0_alone_are_those_of_a_program_that_requires_them() {
    let info = read(&[("NODE_RANK", "0"), ("LOCAL_RANK", "0")]).unwrap();
    assert_eq!((info.launcher(), info.findings().len()), (Launcher::Alone, 1));
    assert!(read(&[("NODE_RANK", "0"), ("LOCAL_RANK", "1")]).is_err());
}

#[test]
fn show_prints_the_rank_and_what_it_follows_from() {
    let output = clean("mpienv").arg("show").envs(PROCESS.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<_> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in [
        "launcher user NODE_RANK=\"1\"",
        "rank 3 NODE_RANK, LOCAL_WORLD_SIZE and LOCAL_RANK",
        "world size 4 NUM_NODES times LOCAL_WORLD_SIZE",
    ] {
        assert!(rows.iter().any(|found| found == row), "{row}: {text}");
    }
}

/// A job's processes with all variables of this page, as pairs of name and value.
fn job(nodes: u32, per_node: u32) -> Vec<Vec<(&'static str, u32)>> {
    let place = |rank: u32| {
        vec![
            ("LOCAL_RANK", rank % per_node),
            ("NODE_RANK", rank / per_node),
            ("NUM_NODES", nodes),
            ("NNODES", nodes),
            ("LOCAL_WORLD_SIZE", per_node),
            ("WORLD_SIZE", nodes * per_node),
        ]
    };
    (0..nodes * per_node).map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_missing_no_two_processes_have_one_rank_in_silence(
        nodes in 1u32..5, per_node in 1u32..5, kept in any::<[bool; 5]>(), order in any::<u32>(),
    ) {
        let mut ranks = Vec::new();
        for vars in job(nodes, per_node) {
            // The local rank distinguishes the processes of a node.
            let is_kept = |at: usize| at == 0 || kept[at - 1];
            let mut vars: Vec<_> = vars
                .into_iter()
                .enumerate()
                .filter(|(at, _)| is_kept(*at))
                .map(|(_, (name, value))| (name, value.to_string()))
                .collect();
            let middle = order as usize % vars.len();
            vars.rotate_left(middle);
            match ClusterInfo::from_vars(vars.clone()) {
                Ok(info) if info.launcher() == Launcher::Alone => {
                    prop_assert!(!info.findings().is_empty(), "{:?}", vars);
                }
                Ok(info) => {
                    prop_assert_eq!(info.world_size(), nodes * per_node);
                    ranks.push(info.rank().index());
                }
                Err(error) => prop_assert!(!error.remedy().is_empty()),
            }
        }
        if kept == [true; 5] {
            prop_assert_eq!(ranks.len() as u32, nodes * per_node);
        }
        ranks.sort_unstable();
        let all = ranks.len();
        ranks.dedup();
        prop_assert_eq!(ranks.len(), all);
    }
}
