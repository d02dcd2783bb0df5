//! `--for`: the variables of each program, value by value.

use std::collections::BTreeMap;

use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Launcher, Reason, Target};

type Exported = BTreeMap<String, Option<String>>;

fn exported(info: &ClusterInfo, set: Target) -> Exported {
    let exports = info.exports_for(set).unwrap();
    exports.iter().map(|(name, value)| (name.to_owned(), value.map(str::to_owned))).collect()
}

/// One rank of a job on two nodes.
fn rank(launcher: Launcher, per_node: u32, rank: u32) -> ClusterInfo {
    let job = Job::of(launcher).nodes(2).per_node(per_node).build().unwrap();
    let vars = job
        .environment(rank)
        .unwrap()
        .into_iter()
        .chain([("MASTER_PORT".to_owned(), "7000".to_owned())]);
    ClusterInfo::from_vars(vars).unwrap()
}

#[track_caller]
fn assert_has(exported: &Exported, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(exported.get(*name).cloned().flatten().as_deref(), Some(*value), "{name}");
    }
}

#[test]
fn lightning_reads_torchruns_variables_and_who_reads_again_comes_to_the_same_place() {
    for launcher in [Launcher::OpenMpi, Launcher::Slurm, Launcher::Hydra] {
        let job = Job::of(launcher).nodes(1).per_node(2).build().unwrap();
        let vars = job.environment(1).unwrap();
        let info = ClusterInfo::from_vars(vars.clone()).unwrap();
        let exported = exported(&info, Target::Lightning);
        assert_has(
            &exported,
            &[
                ("TORCHELASTIC_RUN_ID", "mpienv"),
                ("GROUP_RANK", "0"),
                ("NNODES", "1"),
                ("RANK", "1"),
            ],
        );
        let mut after: BTreeMap<_, _> = vars.into_iter().collect();
        after.extend(exported.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let again = ClusterInfo::from_vars(after).unwrap();
        assert_eq!(
            (again.rank(), again.local_rank(), again.master_port()),
            (info.rank(), info.local_rank(), info.master_port())
        );
        assert_eq!(again.launcher(), launcher, "a nested mpienv is not under torchrun");
    }
    let run_id =
        [("TORCHELASTIC_RUN_ID", "7"), ("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")];
    let vars = run_id.into_iter().chain([
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "1"),
    ]);
    let under_torchrun = ClusterInfo::from_vars(vars).unwrap();
    assert!(
        !exported(&under_torchrun, Target::Lightning).contains_key("TORCHELASTIC_RUN_ID"),
        "torchrun's own stays"
    );
}

#[test]
fn who_reads_the_variables_of_any_set_again_comes_to_the_same_place() {
    let mut read = 0;
    for builder in Job::of_each() {
        for (nodes, per_node) in [(1, 1), (2, 1), (2, 2)] {
            let Ok(job) = builder.clone().nodes(nodes).per_node(per_node).build() else { continue };
            for vars in job.environments() {
                let vars =
                    vars.into_iter().chain([("MPIENV_MASTER_ADDR".to_owned(), "node0".to_owned())]);
                let vars: BTreeMap<_, _> = vars.collect();
                let info = ClusterInfo::from_vars(vars.clone()).unwrap();
                let workers = info.workers(2).unwrap_or_default();
                for place in workers.into_iter().chain([info.clone(), info.marked()]) {
                    for &set in Target::ALL {
                        let Ok(exports) = place.exports_for(set) else { continue };
                        let mut after = vars.clone();
                        for (name, value) in exports.iter() {
                            match value {
                                Some(value) => {
                                    drop(after.insert(name.to_owned(), value.to_owned()))
                                }
                                None => drop(after.remove(name)),
                            }
                        }
                        let again = ClusterInfo::from_vars(after).unwrap();
                        let what = format!(
                            "{builder:?} {nodes} x {per_node}, rank {}, {set:?}",
                            place.rank()
                        );
                        assert_eq!(
                            (again.rank(), again.local_rank()),
                            (place.rank(), place.local_rank()),
                            "{what}"
                        );
                        assert_eq!(again.master_addr(), place.master_addr(), "{what}");
                        assert_eq!(again.master_port(), place.master_port(), "{what}");
                        read += 1;
                    }
                }
            }
        }
    }
    assert!(read > 1000, "only {read} were read");
}

#[test]
fn deepspeed_and_oneccl_have_what_their_launchers_set() {
    let info = rank(Launcher::Slurm, 2, 3);
    assert_has(
        &exported(&info, Target::DeepSpeed),
        &[("CROSS_RANK", "1"), ("CROSS_SIZE", "2"), ("LOCAL_SIZE", "2")],
    );
    let ccl = [("CCL_PROCESS_LAUNCHER", "none"), ("CCL_LOCAL_RANK", "1"), ("CCL_LOCAL_SIZE", "2")];
    assert_has(&exported(&info, Target::OneCcl), &ccl);
}

#[test]
fn mlx_has_the_place_and_both_backends_masters() {
    let expected = [
        ("MLX_RANK", "3"),
        ("MLX_WORLD_SIZE", "4"),
        ("NCCL_HOST_IP", "node0"),
        ("NCCL_PORT", "7000"),
        ("MLX_JACCL_COORDINATOR", "node0:7000"),
    ];
    let job = Job::of(Launcher::Slurm).nodes(2).per_node(2).build().unwrap();
    let own = [("MASTER_PORT", "7000"), ("MLX_HOSTFILE", "hosts.json")];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let vars = job.environment(3).unwrap().into_iter().chain(own);
    let exported = exported(&ClusterInfo::from_vars(vars).unwrap(), Target::Mlx);
    assert_has(&exported, &expected);
    assert!(!exported.contains_key("MLX_HOSTFILE"), "the user's own stays");
}

#[test]
fn lamellar_shares_memory_on_one_node_and_several_nodes_are_an_error() {
    let of = |nodes: u32, backend: Option<&str>| {
        let job = Job::of(Launcher::Slurm).nodes(nodes).per_node(2).build().unwrap();
        let mut vars = job.environment(1).unwrap();
        vars.push(("MASTER_PORT".to_owned(), "7000".to_owned()));
        vars.extend(backend.map(|name| ("LAMELLAR_BACKEND".to_owned(), name.to_owned())));
        ClusterInfo::from_vars(vars).unwrap()
    };
    let place = [("LAMELLAR_NUM_PES", "2"), ("LAMELLAR_PE_ID", "1"), ("LAMELLAR_JOB_ID", "7000")];
    let one = exported(&of(1, None), Target::Lamellar);
    assert_has(&one, &place);
    assert_has(&one, &[("LAMELLAR_BACKEND", "shmem")]);
    for backend in [None, Some("shmem")] {
        let error = of(2, backend).exports_for(Target::Lamellar).unwrap_err();
        assert_eq!(error.variable(), Some("LAMELLAR_BACKEND"));
        assert!(
            error.to_string().contains(
                "LAMELLAR_BACKEND: Lamellar needs all ranks on one node, where they share memory; "
            ),
            "{error}"
        );
    }
    let rofi = exported(&of(2, Some("rofi")), Target::Lamellar);
    assert!(!rofi.contains_key("LAMELLAR_BACKEND"), "the user's own stays");
}

#[test]
fn torchcomms_has_the_place_under_its_own_names() {
    let expected = [("TORCHCOMM_RANK", "3"), ("TORCHCOMM_SIZE", "4")];
    assert_has(&exported(&rank(Launcher::Slurm, 2, 3), Target::TorchComms), &expected);
}

#[test]
fn tensorflow_and_paddle_have_the_endpoint_of_every_rank_where_the_hosts_are_known() {
    let config =
        |info: &ClusterInfo| exported(info, Target::TensorFlow)["TF_CONFIG"].clone().unwrap();
    let node = rank(Launcher::SkyPilot, 1, 1);
    let text = r#"{"cluster": {"worker": ["10.0.0.1:7000", "10.0.0.2:7000"]}, "task": {"type": "worker", "index": 1}}"#;
    assert_eq!(config(&node), text);
    let worker = node.workers(2).unwrap().pop().unwrap();
    let workers = r#"["10.0.0.1:7000", "10.0.0.1:7001", "10.0.0.2:7000", "10.0.0.2:7001"]"#;
    let parsed: serde_json::Value = serde_json::from_str(&config(&worker)).unwrap();
    assert_eq!(
        parsed["cluster"]["worker"],
        serde_json::from_str::<serde_json::Value>(workers).unwrap()
    );
    assert_eq!(parsed["task"]["index"], 3);
    let expected = [
        ("PADDLE_TRAINER_ID", "3"),
        ("PADDLE_TRAINERS_NUM", "4"),
        ("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:7000,10.0.0.1:7001,10.0.0.2:7000,10.0.0.2:7001"),
        ("PADDLE_CURRENT_ENDPOINT", "10.0.0.2:7001"),
        ("PADDLE_MASTER", "10.0.0.1:7000"),
        ("PADDLE_RANK_IN_NODE", "1"),
        ("PADDLE_LOCAL_SIZE", "2"),
        ("FLAGS_selected_gpus", "1"),
    ];
    assert_has(&exported(&worker, Target::Paddle), &expected);
    let one_node = ClusterInfo::from_vars([
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "fe80::1"),
        ("MASTER_PORT", "65534"),
    ]);
    let text = r#"{"cluster": {"worker": ["[fe80::1]:65534", "[fe80::1]:65535"]}, "task": {"type": "worker", "index": 1}}"#;
    assert_eq!(config(&one_node.unwrap()), text);
}

#[test]
fn a_set_that_needs_hosts_is_an_error_where_they_are_not_known() {
    let several = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ];
    let several =
        several.into_iter().chain([("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("MASTER_ADDR", "a")]);
    let info = ClusterInfo::from_vars(several).unwrap();
    for set in [Target::TensorFlow, Target::Paddle] {
        let error = info.exports_for(set).unwrap_err();
        assert!(matches!(error.reason(), Reason::HostsUnknown { world_size: 4, .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("needs the hosts of all 4 ranks, but the launcher does not provide them"),
            "{error}"
        );
    }
    let vars = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_PORT", "65535"),
    ];
    let error = ClusterInfo::from_vars(vars).unwrap().exports_for(Target::TensorFlow).unwrap_err();
    assert!(
        error.to_string().contains("a port for each rank of a node, and 65535 + 1 is above 65535"),
        "{error}"
    );
}

#[test]
fn mistralrs_has_a_head_and_workers_of_each_node() {
    let of = |index: u32, gpus: Option<&str>, master: Option<&str>| {
        let job = Job::of(Launcher::SkyPilot).nodes(3).build().unwrap();
        let mut vars = job.environment(index).unwrap();
        vars.push(("MASTER_PORT".to_owned(), "7000".to_owned()));
        vars.extend(master.map(|host| ("MPIENV_MASTER_ADDR".to_owned(), host.to_owned())));
        vars.extend(gpus.map(|gpus| ("MISTRALRS_MN_LOCAL_WORLD_SIZE".to_owned(), gpus.to_owned())));
        ClusterInfo::from_vars(vars).unwrap()
    };
    let head = exported(&of(0, Some("8"), None), Target::MistralRs);
    let global = ("MISTRALRS_MN_GLOBAL_WORLD_SIZE", "24");
    assert_has(
        &head,
        &[global, ("MISTRALRS_MN_HEAD_NUM_WORKERS", "2"), ("MISTRALRS_MN_HEAD_PORT", "7000")],
    );
    assert!(!head.keys().any(|name| name.starts_with("MISTRALRS_MN_WORKER")));
    let worker = exported(&of(2, Some("8"), None), Target::MistralRs);
    let server = ("MISTRALRS_MN_WORKER_SERVER_ADDR", "10.0.0.1:7000");
    assert_has(&worker, &[global, server, ("MISTRALRS_MN_WORKER_ID", "1")]);
    assert!(!worker.keys().any(|name| name.starts_with("MISTRALRS_MN_HEAD")));
    for (gpus, master, text) in [
        (
            None,
            None,
            "mistral.rs needs MISTRALRS_MN_LOCAL_WORLD_SIZE, the number of GPUs of each node",
        ),
        (Some("two"), None, "MISTRALRS_MN_LOCAL_WORLD_SIZE=\"two\": not a whole number"),
        (
            Some("8"),
            Some("node0"),
            "mistral.rs needs the address of the first node, and node0 is a name",
        ),
    ] {
        let error = of(2, gpus, master).exports_for(Target::MistralRs).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert!(
        rank(Launcher::Slurm, 2, 3).exports_for(Target::MistralRs).is_err(),
        "one process on each node"
    );
}

#[test]
fn a_local_rank_that_is_not_known_is_an_error_that_names_the_program() {
    let vars = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "a")];
    let info = ClusterInfo::from_vars(vars).unwrap();
    for (set, program) in
        [(Target::Lightning, "Lightning"), (Target::OneCcl, "oneCCL"), (Target::Jax, "JAX")]
    {
        let error = info.exports_for(set).unwrap_err();
        let reason = error.reason();
        let is_it = |named: &str| named == program && error.launcher() == Some(Launcher::Hydra);
        assert!(matches!(reason, Reason::NoLocalRank { program, .. } if is_it(program)), "{error}");
    }
}
