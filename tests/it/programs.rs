//! Which variables a program gets: `--for` and `--per-node`.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::support::clock::SLACK;
use crate::support::script::script;
use crate::support::tool::clean;
use mpienv::{ClusterInfo, Environment, Target};

/// The first of two processes, with the variables that mpirun sets and one whose name no shell
/// accepts.
const RANK_0: [(&str, &str); 8] = [
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("PMIX_RANK", "0"),
    ("OMPI_x;touch /tmp/never", "1"),
    ("MASTER_ADDR", "fe::1"),
    ("MASTER_PORT", "7000"),
];

fn exports(set: Target, vars: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
    let environment = Environment::from_vars(vars.iter().copied());
    let info = ClusterInfo::from_environment(&environment).unwrap();
    let exports = info.exports_for(set).unwrap();
    exports.iter().map(|(name, value)| (name.to_owned(), value.map(str::to_owned))).collect()
}

#[test]
fn mindspore_has_msruns_variables_and_none_of_the_launchers() {
    let exports = exports(Target::MindSpore, &RANK_0);
    let expected = [
        ("MS_WORKER_NUM", Some("2")),
        ("MS_SCHED_HOST", Some("fe::1")),
        ("MS_SCHED_PORT", Some("7000")),
        ("MS_NODE_ID", Some("0")),
        ("MS_ROLE", Some("MS_WORKER")),
        ("RANK", Some("0")),
        ("OMPI_COMM_WORLD_RANK", None),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", None),
        ("PMIX_RANK", None),
    ];
    for (name, value) in expected {
        assert_eq!(exports[name].as_deref(), value, "{name}");
    }
    assert!(exports.keys().all(|name| !name.contains([';', ' '])), "{exports:?}");
    assert!(!exports.contains_key("PMI_RANK"), "what is not inherited need not be unset");
    assert!(!exports.contains_key("MPIENV_LAUNCHER"));
}

#[test]
fn who_reads_mindspores_variables_again_comes_to_the_same_place() {
    for asked in [None, Some(("MPIENV_LAUNCHER", "open-mpi"))] {
        let mut vars: BTreeMap<_, _> = RANK_0
            .iter()
            .copied()
            .chain(asked)
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect();
        let first = ClusterInfo::from_vars(vars.clone()).unwrap();
        let pairs: Vec<_> =
            vars.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        for (name, value) in exports(Target::MindSpore, &pairs) {
            match value {
                Some(value) => drop(vars.insert(name, value)),
                None => drop(vars.remove(&name)),
            }
        }
        let again = ClusterInfo::from_vars(vars).unwrap();
        assert_eq!((again.rank(), again.local_rank()), (first.rank(), first.local_rank()));
        assert_eq!(
            (again.master_addr(), again.master_port()),
            (first.master_addr(), first.master_port())
        );
    }
}

#[test]
fn jax_has_the_coordinators_address_with_ipv6_in_brackets() {
    assert_eq!(
        exports(Target::Jax, &RANK_0)["JAX_COORDINATOR_ADDRESS"].as_deref(),
        Some("[fe::1]:7000")
    );
    let one = exports(Target::Jax, &[("MASTER_ADDR", "node-0"), ("MASTER_PORT", "7001")]);
    assert_eq!(one["JAX_COORDINATOR_ADDRESS"].as_deref(), Some("node-0:7001"));
}

#[test]
fn torch_is_the_default() {
    let printed = |words: &[&str]| {
        clean("mpienv")
            .arg("export")
            .args(words)
            .env("MASTER_PORT", "29500")
            .output()
            .unwrap()
            .stdout
    };
    assert_eq!(printed(&[]), printed(&["--for", "torch"]));
    assert!(printed(&["--for", "jax"]).starts_with(&printed(&[])));
    let refused = clean("mpienv").args(["export", "--for", "tf"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .contains("[possible values: torch, jax, mindspore, ")
    );
}

#[test]
fn exec_runs_mindspores_scheduler_next_to_rank_0_and_stops_it_with_the_worker() {
    let script = "test $MS_ROLE = MS_WORKER || { echo scheduler $MS_WORKER_NUM ${MS_NODE_ID-none} \
                  ${OMPI_COMM_WORLD_RANK-none} > $FILE; exec sleep 3000; }; \
                  n=0; while ! test -s $FILE && test $((n += 1)) -lt 120000; do sleep 0.01; done; echo worker $MS_NODE_ID; exit 5";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scheduler");
    let start = Instant::now();
    let run = |rank: &str| {
        let mut command = clean("mpienv");
        command.args(["exec", "--for", "mindspore", "--", "sh", "-c", script]);
        command.envs(RANK_0).env("FILE", &file).env("OMPI_COMM_WORLD_RANK", rank).output().unwrap()
    };
    let output = run("0");
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "worker 0\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "scheduler 2 none none\n");
    // No other rank writes the file: its content is unchanged.
    std::fs::write(&file, "untouched").unwrap();
    let output = run("1");
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
        (Some(5), "worker 1\n")
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "untouched");
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
}

#[test]
fn launch_has_one_scheduler_which_may_end_by_itself() {
    let script = "test $MS_ROLE = MS_WORKER || { sleep 0.3; echo done; exit; }; echo $MS_NODE_ID of $MS_WORKER_NUM";
    let mut command = clean("mpienv");
    command.args([
        "launch",
        "--for",
        "mindspore",
        "--nproc-per-node",
        "2",
        "--grace",
        "3000",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 2", "[1] 1 of 2", "[scheduler] done"]);
}

#[test]
fn a_node_has_torchruns_variables_and_no_rank() {
    let output = clean("mpienv").args(["export", "--per-node"]).envs(RANK_0).output().unwrap();
    let lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    let expected = [
        "export NODE_RANK=0;",
        "export PET_NODE_RANK=0;",
        "export NNODES=2;",
        "export PET_NNODES=2;",
        "export MASTER_ADDR=fe::1;",
        "export PET_MASTER_ADDR=fe::1;",
        "export MASTER_PORT=7000;",
        "export PET_MASTER_PORT=7000;",
        "export NCCL_SOCKET_IFNAME='^docker0,lo';",
        "unset RANK;",
        "unset WORLD_SIZE;",
        "unset LOCAL_RANK;",
        "unset LOCAL_WORLD_SIZE;",
        "unset MPIENV_LAUNCHER;",
        "unset MPIENV_CONTEXT;",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_nodes_variables_are_refused_where_the_node_has_several_processes() {
    let mut command = clean("mpienv");
    command.args(["export", "--per-node"]).envs(RANK_0).env("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b"false;\n"[..]));
    let both = clean("mpienv").args(["export", "--per-node", "--for", "jax"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}

/// A folder with a torchrun that prints what it would read.
fn torchrun() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("torchrun");
    let said = "node $PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR:$PET_MASTER_PORT, rank ${RANK-none}";
    script(&path, format!("#!/bin/sh\necho \"{said}\" \"$@\"\n"));
    folder
}

#[test]
fn exec_per_node_gives_torchrun_its_node_and_no_rank() {
    let folder = torchrun();
    let torchrun = folder.path().join("torchrun");
    let mut command = clean("mpienv");
    command
        .args(["exec", "--per-node", "--"])
        .arg(&torchrun)
        .args(["--nproc-per-node", "2", "train.py"])
        .envs(RANK_0);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "node 0 of 2 at fe::1:7000, rank none --nproc-per-node 2 train.py\n");
    // If a node has several ranks, none of them may act for the node.
    let output = command.env("OMPI_COMM_WORLD_LOCAL_SIZE", "2").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
}
