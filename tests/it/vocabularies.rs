//! The variables of programs with a launcher of their own: what each says about a process.

use mpienv::{LaunchStyle, Launcher};

use crate::platforms::{Pairs, error, read};

/// What `msrun` sets for the second worker on one node (recorded).
const MSRUN: Pairs = &[
    ("MS_ROLE", "MS_WORKER"),
    ("RANK_ID", "1"),
    ("RANK_SIZE", "2"),
    ("MS_NODE_ID", "1"),
    ("MS_WORKER_NUM", "2"),
    ("DEVICE_ID", "1"),
    ("MS_SCHED_HOST", "127.0.0.1"),
    ("MS_SCHED_PORT", "8118"),
];

/// The same variables with other values.
fn with<'a>(vars: Pairs<'a>, more: Pairs<'a>) -> Vec<(&'a str, &'a str)> {
    [vars, more].concat()
}

#[test]
fn a_worker_of_msrun_on_one_node() {
    let info = read(MSRUN).unwrap();
    assert_eq!(info.launcher(), Launcher::Msrun);
    assert_eq!((info.rank().index(), info.world_size()), (1, 2));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), Some(2)));
    assert_eq!(info.master_addr().unwrap().to_string(), "127.0.0.1");
    assert_ne!(info.master_port().get(), 8118, "the scheduler listens there");
    assert_eq!(info.findings(), []);
}

#[test]
fn a_worker_of_msrun_on_the_second_of_two_nodes() {
    let vars = with(
        MSRUN,
        &[
            ("RANK_ID", "5"),
            ("RANK_SIZE", "8"),
            ("MS_NODE_ID", "5"),
            ("MS_WORKER_NUM", "8"),
            ("MS_SCHED_HOST", "10.0.0.4"),
        ],
    );
    let info = read(&vars).unwrap();
    assert_eq!((info.rank().index(), info.world_size()), (5, 8));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), None));
    assert_eq!((info.node_rank(), info.launch_style()), (None, LaunchStyle::Unknown));
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    // One task of a Slurm step on each node has started msrun.
    let step: Pairs = &[
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_GTIDS", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_NNODES", "2"),
        ("SLURM_STEP_NODELIST", "a,b"),
    ];
    let inside = read(&with(&vars, step)).unwrap();
    assert_eq!((inside.launcher(), inside.rank().index()), (Launcher::Msrun, 5));
    assert_eq!(inside.findings(), []);
    let other = read(&with(&with(&vars, step), &[("RANK_ID", "2"), ("MS_NODE_ID", "2")])).unwrap();
    assert_eq!(other.findings()[0].code, "launchers-disagree");
}

#[test]
fn a_scheduler_of_mindspore_and_numbers_that_contradict_each_other_are_errors() {
    for (more, expected) in [
        (
            &[("MS_ROLE", "MS_SCHED")][..],
            "msrun: MS_ROLE=\"MS_SCHED\": it does not determine the rank: the scheduler is not a rank; ",
        ),
        (
            &[("MS_ROLE", "MS_PSERVER")],
            "msrun: MS_ROLE=\"MS_PSERVER\": it does not determine the rank: only MS_WORKER is a rank; ",
        ),
        (&[("RANK_ID", "2")], "msrun: RANK_ID=\"2\": must be from 0 to 1"),
        (&[("RANK_ID", "one")], "msrun: RANK_ID=\"one\": not a whole number"),
        (&[("MS_WORKER_NUM", "4")], "msrun: RANK_SIZE=\"2\": it contradicts MS_WORKER_NUM=\"4\"; "),
        (
            &[("RANK_ID", ""), ("MS_NODE_ID", "worker_a")],
            "msrun: MS_NODE_ID=\"worker_a\": not a whole number",
        ),
        (&[("MS_SCHED_HOST", "a b")], "msrun: MS_SCHED_HOST=\"a b\": not a host"),
    ] {
        let error = error(&with(MSRUN, more));
        assert!(error.starts_with(expected), "{error}");
    }
    // The scheduler of a script has no number at all.
    let scheduler: Pairs = &[("MS_ROLE", "MS_SCHED"), ("MS_WORKER_NUM", "2")];
    assert!(error(scheduler).contains("the scheduler is not a rank"));
    // Where another launcher gives the rank, the cluster's variables do not.
    let of_slurm: Pairs = &[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")];
    let cluster: Pairs = &[("MS_ROLE", "MS_WORKER"), ("MS_WORKER_NUM", "2")];
    assert_eq!(read(&with(of_slurm, cluster)).unwrap().launcher(), Launcher::Slurm);
    let alone = read(cluster).unwrap();
    assert_eq!((alone.world_size(), alone.findings()[0].code), (1, "place-unknown"));
}

/// A file with this text.
fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Two servers with two devices each, of which the first has the higher ranks.
const TABLE: &str = r#"{"version": "1.0", "server_count": "2", "server_list": [
 {"server_id": "10.0.0.5", "device": [{"device_id": "4", "device_ip": "192.1.0.4", "rank_id": "2"},
                                      {"device_id": "5", "device_ip": "192.1.0.5", "rank_id": "3"}], "host_nic_ip": "reserve"},
 {"server_id": "10.0.0.4", "device": [{"device_id": "0", "device_ip": "192.1.1.0", "rank_id": "0"},
                                      {"device_id": "1", "device_ip": "192.1.1.1", "rank_id": "1"}]}], "status": "completed"}"#;

#[test]
fn ascends_rank_table_has_the_place_on_the_node() {
    let table = file(TABLE);
    let path = table.path().to_str().unwrap();
    let vars: Pairs =
        &[("RANK_TABLE_FILE", path), ("RANK_ID", "3"), ("RANK_SIZE", "4"), ("DEVICE_ID", "5")];
    let info = read(vars).unwrap();
    assert_eq!((info.launcher(), info.rank().index(), info.world_size()), (Launcher::Ascend, 3, 4));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), Some(2)));
    assert_eq!((info.node_rank(), info.node_count()), (Some(1), Some(2)));
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    assert_eq!(info.hosts().map(|hosts| hosts[1].to_string()), Some("10.0.0.5".to_owned()));
    assert_eq!(info.findings(), []);
    // Scripts without a table set the pair.
    let pair = read(&vars[1..3]).unwrap();
    assert_eq!((pair.launcher(), pair.rank().index()), (Launcher::Ascend, 3));
    // Clusters set the table for every process, and another launcher gives the rank.
    let table_alone = read(&vars[..1]).unwrap();
    assert_eq!((table_alone.world_size(), table_alone.findings()[0].code), (1, "place-unknown"));
    let of_slurm: Pairs = &[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")];
    assert_eq!(read(&with(of_slurm, &vars[..1])).unwrap().launcher(), Launcher::Slurm);
}

#[test]
fn sagemakers_file_has_the_hosts_where_its_toolkit_is_not() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let base = folder.path().to_str().unwrap();
    let vars: Pairs = &[("TRAINING_JOB_ARN", "arn:aws:1"), ("SAGEMAKER_BASE_DIR", base)];
    let file = format!("{base}/input/config/resourceconfig.json");
    let unreadable = format!("{file} cannot be read: No such file or directory");
    assert!(error(vars).starts_with("SageMaker: TRAINING_JOB_ARN=\"arn:aws:1\": "));
    assert!(error(vars).contains(&unreadable), "{}", error(vars));

    std::fs::create_dir_all(format!("{base}/input/config")).unwrap();
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(r#"{"current_host": "algo-2", "hosts": ["algo-1", "algo-2", "algo-3"]}"#);
    let info = read(vars).unwrap();
    assert_eq!((info.launcher(), info.rank().index()), (Launcher::SageMaker, 1));
    assert_eq!((info.world_size(), info.local_world_size()), (3, Some(1)));
    assert_eq!(info.master_addr().unwrap().to_string(), "algo-1");
    assert_eq!(info.findings(), []);
    // The toolkit's variables count first.
    let toolkit: Pairs = &[("SM_HOSTS", r#"["algo-1"]"#), ("SM_CURRENT_HOST", "algo-1")];
    assert_eq!(read(&with(vars, toolkit)).unwrap().world_size(), 1);
    assert_eq!(read(toolkit).unwrap().world_size(), 1);

    for (text, expected) in [
        ("{", "resourceconfig.json is not JSON: the text ends too early"),
        (r#"{"current_host": "algo-1"}"#, "json does not list hosts, like [\"algo-1\",\"algo-2\"]"),
        (r#"{"hosts": ["algo-1"], "current_host": "b"}"#, "does not list this host, \"b\""),
        (r#"{"hosts": ["a"]}"#, "resourceconfig.json has no current_host; start the process"),
        (
            r#"{"hosts": ["a"], "current_host": "a", "instance_groups": [{}, {}]}"#,
            "it does not determine the rank: the hosts of a group may not be ranks",
        ),
    ] {
        write(text);
        assert!(error(vars).contains(expected), "{}", error(vars));
    }
}

#[test]
fn a_rank_table_that_is_absent_unreadable_or_of_another_job_is_an_error() {
    let error_of = |text: &str, more: Pairs| {
        let table = file(text);
        let path = table.path().to_str().unwrap();
        error(&with(&[("RANK_TABLE_FILE", path), ("RANK_ID", "3"), ("RANK_SIZE", "4")], more))
    };
    for (text, more, expected) in [
        (
            TABLE,
            &[("RANK_SIZE", "8")][..],
            "the table has 4 ranks, but RANK_SIZE=\"8\"; set RANK_ID, RANK_SIZE and RANK_TABLE_FILE together, or unset",
        ),
        (
            TABLE,
            &[("RANK_ID", "4"), ("RANK_SIZE", "")],
            "Ascend: RANK_ID=\"4\": must be from 0 to 3",
        ),
        (
            TABLE,
            &[("RANK_TABLE_FILE", "/nowhere/table.json")],
            "Ascend: RANK_TABLE_FILE=\"/nowhere/table.json\": the file cannot be read: No such file",
        ),
        (TABLE, &[("RANK_TABLE_FILE", "/dev/null")], "the file cannot be read: not a file"),
        ("{", &[], "the file is not JSON: the text ends too early"),
        ("[]", &[], "the table has no server_list, so it is not of version 1"),
        (
            r#"{"status": "initializing"}"#,
            &[],
            "the table is not complete: its status is \"initializing\"",
        ),
        (
            &TABLE.replace("\"rank_id\": \"3\"", "\"rank_id\": \"7\""),
            &[],
            "the table's ranks are not 0, 1, 2, ...",
        ),
        (&TABLE.replace("server_id", "server"), &[], "a server in the table has no server_id"),
    ] {
        let error = error_of(text, more);
        assert!(error.contains(expected), "{error}");
    }
}

/// What `paddle.distributed.launch` sets for the second trainer on the second of two nodes.
const PADDLE: Pairs = &[
    ("PADDLE_TRAINER_ID", "3"),
    ("PADDLE_TRAINERS_NUM", "4"),
    ("PADDLE_RANK_IN_NODE", "1"),
    ("PADDLE_LOCAL_SIZE", "2"),
    ("PADDLE_NNODES", "2"),
    ("PADDLE_MASTER", "10.0.0.4:40433"),
    ("PADDLE_CURRENT_ENDPOINT", "10.0.0.5:40435"),
    ("PADDLE_TRAINER_ENDPOINTS", "10.0.0.4:40434,10.0.0.4:40435,10.0.0.5:40434,10.0.0.5:40435"),
];

#[test]
fn a_trainer_of_paddles_launcher() {
    let info = read(PADDLE).unwrap();
    assert_eq!((info.launcher(), info.rank().index(), info.world_size()), (Launcher::Paddle, 3, 4));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), Some(2)));
    assert_eq!((info.node_rank(), info.node_count()), (Some(1), Some(2)));
    let master = info.master_addr().unwrap().with_port(info.master_port());
    assert_eq!((&*master, info.hosts().unwrap().len()), ("10.0.0.4:40433", 2));
    assert_eq!(info.findings(), []);
    for (more, expected) in [
        (("PADDLE_TRAINER_ID", "4"), "PaddlePaddle: PADDLE_TRAINER_ID=\"4\": must be from 0 to 3"),
        (("PADDLE_TRAINERS_NUM", ""), "PaddlePaddle: PADDLE_TRAINERS_NUM is not set"),
        (("PADDLE_MASTER", "a b"), "PaddlePaddle: PADDLE_MASTER=\"a b\": not a host"),
        (
            ("TRAINING_ROLE", "PSERVER"),
            "PaddlePaddle: TRAINING_ROLE=\"PSERVER\": it does not determine the rank: only a trainer is a rank",
        ),
    ] {
        let error = error(&with(PADDLE, &[more]));
        assert!(error.starts_with(expected), "{error}");
    }
    let of_platform = read(&[("PADDLE_TRAINERS_NUM", "2"), ("PADDLE_NNODES", "2")]).unwrap();
    assert_eq!((of_platform.world_size(), of_platform.findings()[0].code), (1, "place-unknown"));
}

#[test]
fn a_task_of_tf_config() {
    let config = |task: &str| {
        format!(
            r#"{{"cluster": {{"worker": ["b:2222", "b:2223"], "chief": ["a:2222"], "ps": ["c:1"], "evaluator": ["d:1"]}}, "task": {task}}}"#
        )
    };
    let of = |text: &str| read(&[("TF_CONFIG", text)]);
    for (task, rank, local) in [
        (r#"{"type": "chief", "index": 0}"#, 0, (0, 1)),
        (r#"{"type": "worker", "index": 0}"#, 1, (0, 2)),
        (r#"{"type": "worker", "index": "1"}"#, 2, (1, 2)),
    ] {
        let info = of(&config(task)).unwrap();
        assert_eq!(
            (info.launcher(), info.rank().index(), info.world_size()),
            (Launcher::TfConfig, rank, 3)
        );
        assert_eq!((info.local_rank().unwrap(), info.local_world_size().unwrap()), local);
        let master = info.master_addr().unwrap().with_port(info.master_port());
        assert_eq!((&*master, info.node_count(), info.findings()), ("a:2222", Some(2), &[][..]));
    }
    let one =
        of(r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}"#).unwrap();
    assert_eq!((one.launcher(), one.rank().index(), one.world_size()), (Launcher::TfConfig, 0, 1));
    assert_eq!((&*one.provenance().rank, one.findings()), ("TF_CONFIG", &[][..]));
    // TensorFlow takes a configuration without a cluster for a process by itself.
    for text in ["{}", r#"{"cluster": {}, "task": {"type": "worker", "index": 0}}"#] {
        let info = of(text).unwrap();
        assert_eq!((info.launcher(), info.findings()), (Launcher::Alone, &[][..]), "{text}");
    }
    // Kubeflow's dynamic workers list only themselves.
    for text in [
        r#"{"sparseCluster": {"worker": {"1": "b:1"}}, "task": {"type": "worker", "index": 1}}"#,
        r#"{"task": {"type": "worker", "index": 1}}"#,
    ] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.contains("not an object of JSON with the object cluster"), "{error}");
    }
    for (text, expected) in [
        (
            config(r#"{"type": "ps", "index": 0}"#),
            "it does not determine the rank: a task of type ps is not a rank; start processes of this role without mpienv",
        ),
        (config(r#"{"type": "evaluator", "index": 0}"#), "a task of type evaluator is not a rank"),
        (config(r#"{"type": "worker", "index": 2}"#), "worker 2 is not in the cluster"),
        (config(r#"{"type": "worker"}"#), "no task with a type and an index"),
        (config("7").replace("b:2222", "b c"), "no task with a type and an index"),
        (
            config(r#"{"type": "chief", "index": 0}"#).replace("b:2222", "b c"),
            "\"b c\" is not a host",
        ),
        (
            config("0").replace("0}", ""),
            "not JSON: the text ends too early; set TF_CONFIG to the process's own task, or unset TF_CONFIG",
        ),
        ("[]".to_owned(), "not an object of JSON with the object cluster"),
        ("{'cluster': 1}".to_owned(), "not JSON: no name at byte 1"),
    ] {
        let error = of(&text).unwrap_err().to_string();
        assert!(error.starts_with("TF_CONFIG: TF_CONFIG=") && error.contains(expected), "{error}");
    }
}

#[test]
fn jax_has_its_own_name() {
    let vars: Pairs = &[
        ("JAX_PROCESS_ID", "1"),
        ("JAX_NUM_PROCESSES", "2"),
        ("JAX_COORDINATOR_ADDRESS", "[fe::1]:1234"),
    ];
    let info = read(vars).unwrap();
    assert_eq!((info.launcher(), info.rank().index(), info.world_size()), (Launcher::Jax, 1, 2));
    assert_eq!((info.local_rank(), info.findings()), (None, &[][..]));
    assert_eq!(info.master_addr().unwrap().with_port(info.master_port()), "[fe::1]:1234");
    let one_node = read(&with(vars, &[("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1234")])).unwrap();
    assert_eq!((one_node.local_rank(), one_node.local_world_size()), (Some(1), Some(2)));
    assert!(error(&vars[1..]).starts_with("JAX: JAX_PROCESS_ID is not set, although"));
    assert!(error(&with(vars, &[("JAX_PROCESS_ID", "2")])).contains("must be from 0 to 1"));
}

#[test]
fn mlx_has_a_size_in_a_variable_or_a_file() {
    let ring = file(
        "[[\"10.0.0.4:5000\", \"10.1.0.4:5000\"], [\"10.0.0.5:5000\"], [\"10.0.0.5:5001\"]]\n",
    );
    let path = ring.path().to_str().unwrap();
    let vars: Pairs = &[("MLX_RANK", "2"), ("MLX_HOSTFILE", path)];
    let info = read(vars).unwrap();
    assert_eq!((info.launcher(), info.rank().index(), info.world_size()), (Launcher::Mlx, 2, 3));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), Some(2)));
    assert_eq!((info.node_rank(), info.node_count()), (Some(1), Some(2)));
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    let devices = file("[[null, \"rdma_en5\"], [\"rdma_en5\", null]]");
    let jaccl: Pairs = &[
        ("MLX_RANK", "1"),
        ("MLX_IBV_DEVICES", devices.path().to_str().unwrap()),
        ("MLX_JACCL_COORDINATOR", "10.0.0.4:32323"),
    ];
    let info = read(jaccl).unwrap();
    assert_eq!((info.rank().index(), info.world_size(), info.local_rank()), (1, 2, None));
    assert_eq!(info.master_addr().unwrap().with_port(info.master_port()), "10.0.0.4:32323");
    for (vars, expected) in [
        (with(vars, &[("MLX_WORLD_SIZE", "2")]), "the file has 3 ranks, but MLX_WORLD_SIZE=\"2\""),
        (with(vars, &[("MLX_RANK", "3")]), "MLX: MLX_RANK=\"3\": must be from 0 to 2"),
        (
            with(vars, &[("MLX_HOSTFILE", "/nowhere")]),
            "MLX: MLX_HOSTFILE=\"/nowhere\": the file cannot be read",
        ),
        (vec![("MLX_RANK", "1")], "MLX: MLX_WORLD_SIZE is not set, although MLX_RANK=\"1\" is"),
    ] {
        let error = error(&vars);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn mistralrs_gives_a_node_its_place_and_a_rank_of_its_ring_a_file() {
    let head: Pairs = &[("MISTRALRS_MN_HEAD_NUM_WORKERS", "2"), ("MISTRALRS_MN_HEAD_PORT", "7000")];
    let info = read(head).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.world_size()),
        (Launcher::MistralRs, 0, 3)
    );
    assert_eq!(info.master_port().get(), 7000);
    let worker: Pairs = &[
        ("MISTRALRS_MN_WORKER_ID", "1"),
        ("MISTRALRS_MN_WORKER_SERVER_ADDR", "10.0.0.4:7000"),
        ("MISTRALRS_MN_GLOBAL_WORLD_SIZE", "24"),
        ("MISTRALRS_MN_LOCAL_WORLD_SIZE", "8"),
    ];
    let info = read(worker).unwrap();
    assert_eq!((info.rank().index(), info.world_size(), info.local_rank()), (2, 3, Some(0)));
    assert_eq!(info.master_addr().unwrap().with_port(info.master_port()), "10.0.0.4:7000");
    assert_eq!(info.workers_per_node(), Some(8));
    for (more, expected) in [
        (
            ("MISTRALRS_MN_WORKER_ID", "2"),
            "mistral.rs: MISTRALRS_MN_WORKER_ID=\"2\": there are 3 nodes",
        ),
        (
            ("MISTRALRS_MN_GLOBAL_WORLD_SIZE", "20"),
            "it is not a multiple of MISTRALRS_MN_LOCAL_WORLD_SIZE=\"8\"",
        ),
        (
            ("MISTRALRS_MN_LOCAL_WORLD_SIZE", "0"),
            "it is not a multiple of MISTRALRS_MN_LOCAL_WORLD_SIZE=\"0\"",
        ),
        (
            ("MISTRALRS_MN_LOCAL_WORLD_SIZE", ""),
            "mistral.rs: MISTRALRS_MN_LOCAL_WORLD_SIZE is not set",
        ),
    ] {
        let error = error(&with(worker, &[more]));
        assert!(error.contains(expected), "{error}");
    }
    let ring = file(
        r#"{"master_ip": "10.0.0.4", "master_port": 7000, "port": 7001, "rank": 1, "world_size": 4}"#,
    );
    let vars: Pairs = &[("RING_CONFIG", ring.path().to_str().unwrap()), ("MISTRALRS_NO_NCCL", "1")];
    let info = read(vars).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.world_size()),
        (Launcher::MistralRs, 1, 4)
    );
    assert_eq!(info.master_addr().unwrap().with_port(info.master_port()), "10.0.0.4:7000");
    assert_eq!(read(&vars[..1]).unwrap().launcher(), Launcher::Alone, "the name is any program's");
}

#[test]
fn lamellar_and_torchcomms_have_a_rank_and_a_size() {
    let lamellar: Pairs = &[
        ("LAMELLAR_PE_ID", "1"),
        ("LAMELLAR_NUM_PES", "2"),
        ("LAMELLAR_JOB_ID", "7000"),
        ("LAMELLAR_BACKEND", "shmem"),
    ];
    let info = read(lamellar).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.world_size()),
        (Launcher::Lamellar, 1, 2)
    );
    assert_eq!((info.local_rank(), info.local_world_size()), (None, Some(2)));
    assert_eq!(read(&lamellar[..3]).unwrap().local_world_size(), None);
    let comms: Pairs = &[("TORCHCOMM_RANK", "1"), ("TORCHCOMM_SIZE", "2")];
    let info = read(comms).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.world_size()),
        (Launcher::TorchComms, 1, 2)
    );
    assert_eq!(info.findings()[0].code, "master-unknown");
    for (vars, expected) in [
        (
            with(lamellar, &[("LAMELLAR_PE_ID", "2")]),
            "Lamellar: LAMELLAR_PE_ID=\"2\": must be from 0 to 1",
        ),
        (comms[..1].to_vec(), "torchcomms: TORCHCOMM_SIZE is not set"),
    ] {
        let error = error(&vars);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn variables_of_oneccl_alone_do_not_tell_the_rank() {
    let vars: Pairs =
        &[("CCL_PROCESS_LAUNCHER", "none"), ("CCL_LOCAL_RANK", "0"), ("CCL_LOCAL_SIZE", "2")];
    let text = error(vars);
    assert!(
        text.starts_with("CCL_LOCAL_SIZE=\"2\": oneCCL's variables give the place on this node, and neither the rank nor the world size; "),
        "{text}"
    );
    assert!(error(&[("CCL_LOCAL_RANK", "1")]).contains("neither the rank nor the world size"));
    let only = read(&[("CCL_LOCAL_RANK", "0"), ("CCL_LOCAL_SIZE", "1")]).unwrap();
    assert_eq!((only.world_size(), only.findings()[0].code), (1, "place-unknown"));
    let asked = read(&with(vars, &[("MPIENV_LAUNCHER", "alone")])).unwrap();
    assert_eq!((asked.world_size(), asked.findings()), (1, &[][..]));
    let mpi: Pairs = &[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MASTER_ADDR", "a")];
    assert_eq!(read(&with(vars, mpi)).unwrap().rank().index(), 1);
}
