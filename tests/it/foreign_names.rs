//! Names of launchers that mpienv does not know are reported, and those of a process by itself are
//! not.

use mpienv::{ClusterInfo, Launcher, Severity};
use proptest::prelude::*;

use super::platforms::{Pairs, read};
use crate::support::tool::clean;

/// Environments of processes by themselves.
const ENVIRONMENTS: &str = include_str!("../environments.txt");

/// The environments, each with its name and source.
fn environments() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    let sections = ENVIRONMENTS.split("\n## ").skip(1);
    sections
        .map(|section| {
            let (head, lines) = section.split_once('\n').unwrap();
            let pairs = lines.lines().filter(|line| !line.is_empty());
            (head, pairs.map(|line| line.split_once('=').unwrap()).collect())
        })
        .collect()
}

#[test]
fn environments_of_processes_by_themselves_give_no_warning() {
    let environments = environments();
    assert!(environments.len() >= 25, "{}", environments.len());
    for (head, vars) in environments {
        let (_, source) = head.split_once(": ").unwrap();
        assert!(source.starts_with("recorded, ") || source.contains("http"), "{head}");
        assert!(!vars.is_empty(), "{head}");
        let info = read(&vars).unwrap();
        assert_eq!(
            (info.launcher(), info.rank().index(), info.world_size()),
            (Launcher::Alone, 0, 1),
            "{head}"
        );
        let warned: Vec<_> =
            info.findings().iter().filter(|found| found.severity > Severity::Note).collect();
        assert!(warned.is_empty(), "{head}: {warned:?}");
    }
}

/// A vocabulary of a launcher, where it is set or read, and the variables of two processes.
const VOCABULARIES: &[(&str, [Pairs; 2])] = &[
    (
        "BytePS: bytedance/byteps, launcher/launch.py",
        [
            &[("DMLC_ROLE", "worker"), ("DMLC_WORKER_ID", "0"), ("DMLC_NUM_WORKER", "2")],
            &[("DMLC_ROLE", "worker"), ("DMLC_WORKER_ID", "1"), ("DMLC_NUM_WORKER", "2")],
        ],
    ),
    (
        "BytePS on a node: bytedance/byteps, launcher/launch.py",
        [
            &[("BYTEPS_LOCAL_RANK", "0"), ("BYTEPS_LOCAL_SIZE", "2")],
            &[("BYTEPS_LOCAL_RANK", "1"), ("BYTEPS_LOCAL_SIZE", "2")],
        ],
    ),
    (
        "Metaflow: Netflix/metaflow, metaflow/plugins/parallel_decorator.py",
        [
            &[("MF_PARALLEL_NODE_INDEX", "0"), ("MF_PARALLEL_NUM_NODES", "2")],
            &[("MF_PARALLEL_NODE_INDEX", "1"), ("MF_PARALLEL_NUM_NODES", "2")],
        ],
    ),
    (
        "vLLM: vllm-project/vllm, examples/offline_inference/data_parallel.py",
        [
            &[("VLLM_DP_RANK", "0"), ("VLLM_DP_SIZE", "2"), ("VLLM_DP_MASTER_IP", "127.0.0.1")],
            &[("VLLM_DP_RANK", "1"), ("VLLM_DP_SIZE", "2"), ("VLLM_DP_MASTER_IP", "127.0.0.1")],
        ],
    ),
    (
        "Beaker: TianhuaTao/beaker-toolbox, standby-download-code.sh",
        [
            &[("BEAKER_REPLICA_RANK", "0"), ("BEAKER_REPLICA_COUNT", "2")],
            &[("BEAKER_REPLICA_RANK", "1"), ("BEAKER_REPLICA_COUNT", "2")],
        ],
    ),
    (
        "StepMesh: stepfun-ai/StepMesh, docs/env.md",
        [
            &[("DMLC_NODE_RANK", "0"), ("DMLC_GROUP_SIZE", "8")],
            &[("DMLC_NODE_RANK", "1"), ("DMLC_GROUP_SIZE", "8")],
        ],
    ),
    (
        "TPUs on GKE: SinaChavoshi/GKESamples, dlrm-dncv2/tf_based/chavoshi-gke-dev/tpu_tfjob_worker.sh",
        [
            &[("TPU_WORKER_ID", "0"), ("TPU_WORKER_HOSTNAMES", "a-0.a,a-1.a")],
            &[("TPU_WORKER_ID", "1"), ("TPU_WORKER_HOSTNAMES", "a-0.a,a-1.a")],
        ],
    ),
];

/// Vocabularies without a size: only a number above 0 is a sign.
const NUMBERS: &[(&str, Pairs)] = &[
    (
        "HPE's MPT: radical-cybertools/radical.pilot, src/radical/pilot/agent/launch_method/mpirun.py",
        &[("MPT_MPI_RANK", "1")],
    ),
    ("tt-run: tenstorrent/tt-metal, ttnn/ttnn/distributed/ttrun.py", &[("TT_MESH_HOST_RANK", "1")]),
    (
        "Cray's ALPS: STEllAR-GROUP/hpx, libs/full/parcelport_mpi/src/parcelport_mpi.cpp",
        &[("ALPS_APP_PE", "3")],
    ),
    (
        "Neuron: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/frameworks/jax/api-reference-guide/neuron-envvars.html",
        &[("NEURON_PJRT_PROCESS_INDEX", "1")],
    ),
    ("Nomad: hashicorp/nomad, client/taskenv/env.go", &[("NOMAD_ALLOC_INDEX", "2")]),
];

/// Asserts that the place is not decided, and what the warning names.
fn assert_reported(source: &str, vars: Pairs) -> mpienv::Finding {
    let info = read(vars).unwrap();
    assert_eq!((info.launcher(), info.world_size()), (Launcher::Alone, 1), "{source}");
    let found: Vec<_> = info.warnings();
    assert_eq!(found.len(), 1, "{source}: {found:?}");
    assert_eq!(found[0].code, "place-unknown", "{source}");
    assert!(found[0].remedy.contains("MPIENV_LAUNCHER=alone"), "{source}: {found:?}");
    let error = info.require_launcher().unwrap_err().to_string();
    assert!(error.contains(&found[0].what), "{source}: {error}");
    found[0].clone()
}

#[test]
fn vocabularies_that_no_launcher_file_knows_are_reported() {
    for (source, processes) in VOCABULARIES {
        for vars in processes {
            let found = assert_reported(source, vars);
            assert_eq!(found.what.matches("=\"").count(), 2, "{source}: {found:?}");
        }
    }
    for (source, vars) in NUMBERS {
        assert_reported(source, vars);
    }
    assert!(VOCABULARIES.len() + NUMBERS.len() >= 10);
}

#[test]
fn the_warning_names_the_variables_and_what_to_set() {
    let found = assert_reported("", &[("A_RANK", "0"), ("A_SIZE", "4")]);
    assert_eq!(
        found.what,
        "A_RANK=\"0\" and A_SIZE=\"4\" are set, and no launcher's variables that mpienv reads"
    );
    assert!(found.remedy.starts_with("set RANK, WORLD_SIZE, "), "{found}");
}

#[test]
fn one_of_one_and_numbers_of_other_things_are_no_signs() {
    let silent: &[Pairs] = &[
        &[("A_RANK", "0")],
        &[("A_RANK", "0"), ("A_SIZE", "1")],
        &[("TPU_WORKER_ID", "0"), ("TPU_WORKER_HOSTNAMES", "localhost")],
        &[("A_RANK", "high"), ("A_SIZE", "4")],
        &[("A_RANK", "0"), ("B_SIZE", "4")],
        &[("A_WORKER_ID", "3")],
        &[("A_PROCESS_ID", "4711"), ("A_NUM_PROCESSES", "4")],
        &[("A_WORKER_ID", "0"), ("A_CACHE_SIZE", "64"), ("A_RETRY_COUNT", "3")],
        &[("A_WORKER_ID", "0"), ("A_NUM_THREADS", "8"), ("A_NUM_GPUS", "2")],
        &[("FRANK", "3"), ("FRANK_SIZE", "4")],
        &[("a_rank", "1"), ("a_size", "4")],
        &[("LORA_RANK", "16")],
        &[("DECOMP_RANK", "2"), ("PAGE_RANK", "7")],
        &[("TENSOR_RANK", "3"), ("TENSOR_SIZE", "64"), ("TUCKER_RANK", "5"), ("TT_RANK", "5")],
        &[("FACTOR_RANK", "2"), ("BOND_RANK", "2"), ("KERNEL_RANK", "2"), ("EMBEDDING_RANK", "2")],
    ];
    for vars in silent {
        assert_eq!(read(vars).unwrap().findings(), [], "{vars:?}");
    }
}

#[test]
fn a_launchers_place_and_a_deliberate_one_go_first() {
    let foreign: Pairs = &[("A_RANK", "1"), ("A_SIZE", "4")];
    let user: Pairs = &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
    assert_eq!(read(&[foreign, user].concat()).unwrap().findings(), []);
    let alone: Pairs = &[("MPIENV_LAUNCHER", "alone")];
    assert_eq!(read(&[foreign, alone].concat()).unwrap().findings(), []);
    // A note about another variable does not hide the warning.
    let local: Pairs = &[("LOCAL_RANK", "0")];
    assert_eq!(
        read(&[foreign, local].concat()).unwrap().warnings()[0].what.matches("A_").count(),
        2
    );
}

#[test]
fn exec_launch_export_and_check_show_it() {
    let run = |words: &[&str]| {
        let vars = [("DMLC_WORKER_ID", "1"), ("DMLC_NUM_WORKER", "2")];
        let output = clean("mpienv").args(words).envs(vars).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for words in [
        &["exec", "--", "true"][..],
        &["export"],
        &["launch", "--nproc-per-node", "1", "--", "true"],
    ] {
        let (code, stderr) = run(words);
        assert_eq!(code, Some(0), "{words:?}: {stderr}");
        let expected =
            "warning [place-unknown]: DMLC_WORKER_ID=\"1\" and DMLC_NUM_WORKER=\"2\" are set";
        assert_eq!(stderr.matches(expected).count(), 1, "{words:?}: {stderr}");
    }
    assert_eq!(run(&["check"]).0, Some(3));
}

/// The ends of a number's and a size's name, as launchers combine them.
const ENDS: &[(&str, &str)] = &[
    ("RANK", "SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("RANK_ID", "RANK_SIZE"),
    ("PROCID", "NPROCS"),
    ("PROCESS_ID", "NUM_PROCESSES"),
    ("PROCESS_INDEX", "PROCESS_COUNT"),
    ("WORKER_ID", "NUM_WORKERS"),
    ("WORKER_INDEX", "WORKER_COUNT"),
    ("NODE_INDEX", "NODE_TOTAL"),
    ("NODE_RANK", "NUM_NODES"),
    ("TASK_INDEX", "TASK_COUNT"),
    ("PE_ID", "NUM_PES"),
    ("ALLOC_INDEX", "ALLOC_COUNT"),
    ("REPLICA_INDEX", "REPLICAS"),
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // No launcher's own prefix begins with a Q, and no word that means a shard.
    #[test]
    fn a_pair_is_found_under_every_prefix(
        prefix in "Q[A-Z0-9]{1,8}(_Q[A-Z0-9]{1,5})?",
        ends in prop::sample::select(ENDS),
        (index, size) in (2u32..5000).prop_flat_map(|size| (0..size, Just(size))),
        hosts in any::<bool>(),
    ) {
        let rank = format!("{prefix}_{}", ends.0);
        let (name, value) = match hosts {
            true => (format!("{prefix}_HOSTS"), "a,b".to_owned()),
            false => (format!("{prefix}_{}", ends.1), size.to_string()),
        };
        let info = ClusterInfo::from_vars([(rank.clone(), index.to_string()), (name.clone(), value)]).unwrap();
        prop_assert_eq!(info.launcher(), Launcher::Alone);
        prop_assert_eq!(info.findings().len(), 1);
        let what = &info.findings()[0].what;
        prop_assert!(what.contains(&format!("{rank}=")) && what.contains(&format!("{name}=")), "{what}");
    }

    #[test]
    fn ordinary_names_are_never_found(
        vars in prop::collection::vec((ordinary_name(), ordinary_value()), 0..40)
    ) {
        let info = ClusterInfo::from_vars(vars).unwrap();
        prop_assert_eq!((info.launcher(), info.world_size()), (Launcher::Alone, 1));
        prop_assert_eq!(info.findings(), []);
    }
}

/// Names as programs and their users choose them.
fn ordinary_name() -> impl Strategy<Value = String> {
    let ends = [
        "HOME",
        "PATH",
        "PORT",
        "HOST",
        "URL",
        "TOKEN",
        "DIR",
        "ID",
        "PID",
        "SESSION_ID",
        "CACHE_SIZE",
        "BUFFER_SIZE",
        "BATCH_SIZE",
        "RETRY_COUNT",
        "NUM_THREADS",
        "NUM_GPUS",
        "VERSION",
        "LEVEL",
        "INDEX",
        "TIMEOUT",
        "WORKERS",
        "SERVICE_PORT",
        "INDEX_URL",
        "COUNT",
        "SIZE",
        "NUM",
        "HOSTS",
        "NODES",
        "NAME",
        "ADDR",
    ];
    let prefix = "[A-Z][A-Z0-9]{2,7}(_[A-Z]{2,6})?";
    (prefix, prop::sample::select(ends.to_vec()))
        .prop_map(|(prefix, end)| format!("{prefix}X_{end}"))
}

fn ordinary_value() -> impl Strategy<Value = String> {
    prop_oneof![(0u32..5000).prop_map(|n| n.to_string()), "[a-z,:/.]{0,20}", Just("a,b".to_owned())]
}
