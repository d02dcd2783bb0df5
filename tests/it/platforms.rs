//! Platforms that start one process on each node: the variables that each sets, and those that it
//! does not set.

use mpienv::simulate::{Job, Vars};
use mpienv::testing::any_shape;
use mpienv::{ClusterInfo, Error, LaunchStyle, Launcher, Rank};
use proptest::prelude::*;

pub(super) type Pairs<'a> = &'a [(&'a str, &'a str)];

pub(super) fn read(vars: Pairs) -> Result<ClusterInfo, Error> {
    ClusterInfo::from_vars(vars.iter().copied())
}

/// The launcher, the node's number, the number of nodes, and the master.
pub(super) fn node(vars: Pairs) -> (Launcher, u32, u32, String) {
    let info = read(vars).unwrap();
    assert_eq!(info.findings(), [], "{vars:?}");
    assert_eq!(info.launch_style(), LaunchStyle::PerNode, "{vars:?}");
    assert_eq!(
        (info.node_rank(), info.node_count()),
        (Some(info.rank().index()), Some(info.world_size())),
        "{vars:?}"
    );
    assert_eq!(info.workers(2).unwrap()[1].rank().index(), info.rank().index() * 2 + 1);
    let master = info.master_addr().unwrap().to_string();
    (info.launcher(), info.rank().index(), info.world_size(), master)
}

pub(super) fn error(vars: Pairs) -> String {
    read(vars).unwrap_err().to_string()
}

const TORCHRUN: Pairs = &[
    ("TORCHELASTIC_RUN_ID", "none"),
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "a"),
    ("MASTER_PORT", "29500"),
];

const LWS: Pairs =
    &[("LWS_LEADER_ADDRESS", "vllm-0.vllm.ns"), ("LWS_GROUP_SIZE", "2"), ("LWS_WORKER_INDEX", "1")];

#[test]
fn leader_worker_set() {
    assert_eq!(node(LWS), (Launcher::LeaderWorkerSet, 1, 2, "vllm-0.vllm.ns".into()));
    // Up to version 0.5, the pod's number is not set.
    let error = error(&LWS[..2]);
    assert!(
        error.contains("LWS_WORKER_INDEX is not set") && error.contains("version 0.6"),
        "{error}"
    );
    assert_eq!(
        read(&[("LWS_LEADER_ADDRESS", "a"), ("LWS_GROUP_SIZE", "1")]).unwrap().world_size(),
        1
    );
}

const SKYPILOT: Pairs = &[
    ("SKYPILOT_NODE_RANK", "1"),
    ("SKYPILOT_NUM_NODES", "2"),
    ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5\n"),
    ("SKYPILOT_NUM_GPUS_PER_NODE", "0"),
    ("SKYPILOT_TASK_ID", "sky-1"),
];

#[test]
fn skypilot() {
    assert_eq!(node(SKYPILOT), (Launcher::SkyPilot, 1, 2, "10.0.0.4".into()));
    let setup: Pairs =
        &[("SKYPILOT_SETUP_NODE_RANK", "1"), ("SKYPILOT_SETUP_NODE_IPS", "10.0.0.4\n10.0.0.5")];
    assert_eq!(node(setup), (Launcher::SkyPilot, 1, 2, "10.0.0.4".into()));
    // Its pods belong to indexed jobs, and its Slurm backend starts a step.
    assert_eq!(node(&[SKYPILOT, &[("JOB_COMPLETION_INDEX", "1")]].concat()).0, Launcher::SkyPilot);
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
    assert_eq!(node(&[SKYPILOT, step].concat()), (Launcher::Slurm, 1, 2, "a".into()));
}

#[test]
fn dstack() {
    let vars: Pairs = &[
        ("DSTACK_NODE_RANK", "1"),
        ("DSTACK_NODES_NUM", "2"),
        ("DSTACK_MASTER_NODE_IP", "10.0.0.4"),
        ("DSTACK_NODES_IPS", "10.0.0.4\n10.0.0.5"),
        ("DSTACK_GPUS_PER_NODE", "8"),
        ("DSTACK_GPUS_NUM", "16"),
        ("DSTACK_RUN_ID", "7c1f1fa5"),
    ];
    assert_eq!(node(vars), (Launcher::Dstack, 1, 2, "10.0.0.4".into()));
    let one = read(&[("DSTACK_NODE_RANK", "0"), ("DSTACK_NODES_NUM", "1")]).unwrap();
    assert_eq!((one.launcher(), one.rank()), (Launcher::Dstack, Rank::ALONE));
}

#[test]
fn kubeflow_trainer_of_torch() {
    let vars: Pairs = &[
        ("PET_NODE_RANK", "1"),
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_MASTER_ADDR", "train-node-0-0.train"),
        ("PET_MASTER_PORT", "29400"),
        ("JOB_COMPLETION_INDEX", "1"),
    ];
    assert_eq!(node(vars), (Launcher::Kubernetes, 1, 2, "train-node-0-0.train".into()));
    assert_eq!(read(vars).unwrap().master_port().get(), 29400);
    assert_eq!(read(vars).unwrap().findings(), []);
    // A template that gives all pods one number.
    let other = read(&[&vars[1..5], &[("PET_NODE_RANK", "0"), vars[5]]].concat()).unwrap();
    let what = "PET_NODE_RANK=\"0\", but JOB_COMPLETION_INDEX=\"1\"";
    assert_eq!(other.warnings()[0].what, what);
    // A number that counts the pods of several jobs of a JobSet.
    let third = [&vars[1..5], &[("PET_NODE_RANK", "3"), ("PET_NNODES", "4"), vars[5]]].concat();
    assert_eq!(read(&third).unwrap().findings(), []);
    // Torchtune's entry point sets no master.
    let error = read(&vars[..3]).unwrap().exports().unwrap_err().to_string();
    assert!(error.contains("MASTER_ADDR"), "{error}");
}

#[test]
fn kubeflow_trainer_of_jax() {
    let vars: Pairs = &[
        ("JAX_PROCESS_ID", "1"),
        ("JAX_NUM_PROCESSES", "2"),
        ("JAX_COORDINATOR_ADDRESS", "train-node-0-0.train:6666"),
        ("JOB_COMPLETION_INDEX", "1"),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ];
    assert_eq!(node(vars), (Launcher::Jax, 1, 2, "train-node-0-0.train".into()));
    assert_eq!(read(vars).unwrap().master_port().get(), 6666);
    // Elsewhere, a user may start several processes on a node.
    assert_eq!(read(&vars[..4]).unwrap().local_rank(), None);
}

/// Node 1 of two in a PyTorchJob of version 1.7 or newer, with two workers on each.
const PYTORCHJOB: Pairs = &[
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("MASTER_ADDR", "master-0"),
    ("MASTER_PORT", "23456"),
    ("RANK", "1"),
    ("WORLD_SIZE", "4"),
    ("PET_NODE_RANK", "1"),
    ("PET_NPROC_PER_NODE", "2"),
];

#[test]
fn a_pytorchjob_counts_its_workers_in_world_size_and_its_pods_in_rank() {
    // An elastic job has a range of numbers of pods.
    for nodes in [&[("PET_NNODES", "2")][..], &[("PET_NNODES", "1:3")], &[]] {
        let vars = [PYTORCHJOB, nodes].concat();
        assert_eq!(node(&vars), (Launcher::User, 1, 2, "master-0".into()), "{nodes:?}");
        let info = read(&vars).unwrap();
        assert_eq!(info.workers_per_node(), Some(2));
        assert_eq!(info.workers(2).unwrap()[1].rank(), Rank::new(3, 4).unwrap());
    }
    // Other numbers of workers, and a script's own RANK and WORLD_SIZE.
    for (workers, nodes) in [("auto", "4"), ("gpu", "4"), ("2", "4"), ("1", "4")] {
        let vars = [("PET_NPROC_PER_NODE", workers), ("PET_NNODES", nodes)];
        assert_eq!(read(&[PYTORCHJOB, &vars].concat()).unwrap().node_count(), Some(4), "{vars:?}");
    }
    for (nodes, why) in [
        ("3", "it is not the product of PET_NNODES=\"3\" and PET_NPROC_PER_NODE=\"2\"; "),
        ("1:3", "it is not a multiple of PET_NPROC_PER_NODE=\"3\"; "),
    ] {
        let workers = [("PET_NPROC_PER_NODE", "3"), ("PET_NNODES", nodes)];
        let vars = [PYTORCHJOB, if nodes == "3" { &workers[1..] } else { &workers }].concat();
        let error = error(&vars);
        assert!(error.starts_with(&format!("WORLD_SIZE=\"4\": {why}")), "{error}");
    }
}

#[test]
fn kubeflow_pytorchjob_volcanos_pytorch_plugin_vertex_and_pai() {
    let vars: Pairs = &[
        ("MASTER_ADDR", "master-0"),
        ("MASTER_PORT", "23456"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
    ];
    assert_eq!(read(vars).unwrap().launch_style(), LaunchStyle::Unknown);
    for platform in ["KUBERNETES_SERVICE_HOST", "CLOUD_ML_JOB_ID", "VC_TASK_INDEX"] {
        let vars = [vars, &[(platform, "0")]].concat();
        assert_eq!(node(&vars), (Launcher::User, 1, 2, "master-0".into()), "{platform}");
        // A local rank belongs to a process, not to a node.
        let process = [&vars[..], &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]].concat();
        assert_eq!(read(&process).unwrap().local_rank(), Some(1), "{platform}");
    }
}

#[test]
fn the_masters_pod_may_call_its_own_address_localhost() {
    let pod = |rank, own, master: &str| {
        let vars = [("KUBERNETES_SERVICE_HOST", "1"), ("RANK", rank), ("WORLD_SIZE", "2")];
        node(&[&vars[..], &[("HOSTNAME", own), ("MASTER_ADDR", master)]].concat())
    };
    // As KubeDL sets it: the other pods connect to rank 0's, so it listens on every address.
    let master = pod("0", "train-master-0", "localhost");
    assert_eq!(master, (Launcher::User, 0, 2, "0.0.0.0".into()));
    for (rank, own, master) in [
        ("1", "train-worker-0", "train-master-0"),
        ("0", "train-master-0", "127.0.0.1"),
        ("0", "train-0", "localhost"),
    ] {
        assert_eq!(pod(rank, own, master).3, master, "{own}");
    }
}

#[test]
fn a_number_of_nodes_that_contradicts_world_size_is_an_error() {
    let vars: Pairs = &[("RANK", "1"), ("WORLD_SIZE", "16"), ("MASTER_ADDR", "m")];
    let pod = [vars, &[("KUBERNETES_SERVICE_HOST", "10.96.0.1")]].concat();
    for name in ["NNODES", "NUM_NODES", "PET_NNODES"] {
        let refused = error(&[&pod[..], &[(name, "2"), ("NPROC_PER_NODE", "8")]].concat());
        let why = format!("{name}=\"2\": WORLD_SIZE=\"16\" is the number of nodes here; set RANK");
        assert!(refused.starts_with(&why), "{refused}");
        // A range tells no number, and 1 is a default.
        for right in ["16", "1:16", "1"] {
            assert_eq!(node(&[&pod[..], &[(name, right)]].concat()).2, 16, "{name}={right}");
        }
        let asked = |nodes| {
            let vars = [vars, &[(name, nodes)]].concat();
            mpienv::ClusterInfo::builder().vars(vars).one_per_node().read()
        };
        assert_eq!(asked("16").unwrap().node_count(), Some(16));
        let refused = asked("2").unwrap_err().to_string();
        assert!(
            refused.starts_with(&format!("{name}=\"2\": one process on each node")),
            "{refused}"
        );
    }
}

const CLUSTER: &str = r#"{"cluster":{"workerpool0":["job-workerpool0-0:2222"],"workerpool1":["job-workerpool1-0:2222",
 "job-workerpool1-1:2222"]},"environment":"cloud","task":{"type":"workerpool1","index":1,"trial":""},
 "job":"{\"task\":{\"type\":\"workerpool0\",\"index\":0}}"}"#;

#[test]
fn vertex_ai() {
    let vars: Pairs =
        &[("CLUSTER_SPEC", CLUSTER), ("CLOUD_ML_JOB_ID", "4711"), ("TF_CONFIG", "{}")];
    assert_eq!(node(vars), (Launcher::Vertex, 2, 3, "job-workerpool0-0".into()));
    let outside = CLUSTER.replacen("\"index\":1", "\"index\":2", 1);
    let error = error(&[("CLUSTER_SPEC", &outside)]);
    assert!(error.contains("the task is not in its worker pool"), "{error}");
    // A reduction server, beside the workers and as this process.
    let reduced =
        CLUSTER.replacen("},\"env", ",\"workerpool2\":[\"job-workerpool2-0:2222\"]},\"env", 1);
    let vars: Pairs = &[("CLUSTER_SPEC", &reduced)];
    assert_eq!(node(vars), (Launcher::Vertex, 2, 3, "job-workerpool0-0".into()));
    let server = reduced.replacen("\"workerpool1\",\"index\":1", "\"workerpool2\",\"index\":0", 1);
    let error = self::error(&[("CLUSTER_SPEC", &server)]);
    assert!(error.contains("the replicas of workerpool2 are parameter servers, "), "{error}");
    // Another program's variable with that name.
    assert_eq!(
        read(&[("CLUSTER_SPEC", "small"), ("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().launcher(),
        Launcher::User
    );
}

const VOLCANO: Pairs = &[
    ("VC_MASTER_HOSTS", "job-master-0.job"),
    ("VC_MASTER_NUM", "1"),
    ("VC_WORKER_HOSTS", "job-worker-0.job,job-worker-1.job"),
    ("VC_WORKER_NUM", "2"),
    ("VC_TASK_INDEX", "0"),
    ("VK_TASK_INDEX", "0"),
];

#[test]
fn volcano() {
    for (host, index, rank) in
        [("job-master-0", "0", 0), ("job-worker-0", "0", 1), ("job-worker-1", "1", 2)]
    {
        let vars = [VOLCANO, &[("HOSTNAME", host), ("VC_TASK_INDEX", index)]].concat();
        assert_eq!(node(&vars), (Launcher::Volcano, rank, 3, "job-master-0.job".into()), "{host}");
    }
    // With only one task, its number is the pod's, as on ModelArts.
    let one: Pairs =
        &[("VC_WORKER_HOSTS", "a-0.a,a-1.a"), ("VC_TASK_INDEX", "1"), ("MA_NUM_HOSTS", "2")];
    assert_eq!(node(one), (Launcher::Volcano, 1, 2, "a-0.a".into()));
    let unknown = error(&[VOLCANO, &[("HOSTNAME", "other")]].concat());
    assert!(unknown.contains("VC_TASK_INDEX") && unknown.contains("HOSTNAME"), "{unknown}");
    let servers = error(&[VOLCANO, &[("VC_PS_HOSTS", "job-ps-0.job")]].concat());
    assert!(servers.contains("VC_PS_HOSTS") && servers.contains("not all pods"), "{servers}");
    let bare = error(&[("VC_TASK_INDEX", "1")]);
    assert!(bare.contains("VC_TASK_INDEX=\"1\"") && bare.contains("svc: []"), "{bare}");
}

const RUNPOD: Pairs = &[
    ("NUM_NODES", "2"),
    ("NODE_RANK", "1"),
    ("PRIMARY_ADDR", "10.65.0.2"),
    ("MASTER_ADDR", "10.65.0.2"),
    ("MASTER_PORT", "29400"),
    ("NUM_TRAINERS", "8"),
    ("WORLD_SIZE", "16"),
];

#[test]
fn runpod() {
    // WORLD_SIZE counts all GPUs, and RANK is not set.
    assert_eq!(node(RUNPOD), (Launcher::RunPod, 1, 2, "10.65.0.2".into()));
    let error = error(&[("PRIMARY_ADDR", "10.65.0.2"), ("NUM_NODES", "2"), ("WORLD_SIZE", "16")]);
    assert!(error.contains("RunPod: NODE_RANK is not set"), "{error}");
    // A worker that a script has started on the node.
    let worker =
        [RUNPOD, &[("RANK", "9"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "8")]].concat();
    assert_eq!(read(&worker).unwrap().launcher(), Launcher::User);
}

#[test]
fn dgx_cloud_lepton() {
    let vars: Pairs = &[
        ("LEPTON_JOB_WORKER_INDEX", "1"),
        ("LEPTON_JOB_TOTAL_WORKERS", "2"),
        ("LEPTON_JOB_WORKER_PREFIX", "worker"),
        ("LEPTON_SUBDOMAIN", "env-job-98bw-job-svc"),
        ("LEPTON_RESOURCE_ACCELERATOR_NUM", "8"),
        ("LEPTON_JOB_FAILURE_COUNT", "0"),
        ("JOB_COMPLETION_INDEX", "1"),
    ];
    assert_eq!(node(vars), (Launcher::Lepton, 1, 2, "worker-0.env-job-98bw-job-svc".into()));
    assert_eq!(read(vars).unwrap().master_port().get(), 29400);
    let endpoint: Pairs = &[("LEPTON_SUBDOMAIN", "a"), ("LEPTON_RESOURCE_ACCELERATOR_NUM", "1")];
    assert_eq!(read(endpoint).unwrap().findings(), []);
}

#[test]
fn volcengine_mlp() {
    let vars: Pairs = &[
        ("MLP_ROLE", "WORKER"),
        ("MLP_ROLE_INDEX", "1"),
        ("MLP_WORKER_NUM", "2"),
        ("MLP_WORKER_0_HOST", "10.128.0.4"),
        ("MLP_WORKER_0_PORT", "9006"),
        ("MLP_WORKER_GPU", "8"),
    ];
    assert_eq!(node(vars), (Launcher::Mlp, 1, 2, "10.128.0.4".into()));
    assert_eq!(read(vars).unwrap().master_port().get(), 9006);
    let error = error(&[&[("MLP_ROLE", "PS")], &vars[1..]].concat());
    assert!(error.contains("MLP_ROLE=\"PS\""), "{error}");
}

#[test]
fn an_indexed_job() {
    let vars: Pairs =
        &[("JOB_COMPLETION_INDEX", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-0.svc")];
    assert_eq!(node(vars), (Launcher::Kubernetes, 1, 2, "job-0.svc".into()));
    // A JobSet's manifest may set NNODES; WORLD_SIZE then counts processes.
    let set: Pairs = &[vars[0], ("NNODES", "2"), vars[2]];
    assert_eq!(node(set), (Launcher::Kubernetes, 1, 2, "job-0.svc".into()));
    assert_eq!(
        node(&[set, &[("WORLD_SIZE", "16")]].concat()),
        (Launcher::Kubernetes, 1, 2, "job-0.svc".into())
    );
    let error = error(&vars[..1]);
    assert!(
        error.contains("JOB_COMPLETION_INDEX=\"1\"")
            && error.contains("set NNODES to the number of pods"),
        "{error}"
    );
    // In a JobSet of several jobs, the number that the user sets is the pod's.
    let own: Pairs = &[("NODE_RANK", "3"), ("NNODES", "4")];
    let of_jobs = [&[vars[0], vars[2]], own].concat();
    assert_eq!(node(&of_jobs), (Launcher::User, 3, 4, "job-0.svc".into()));
    let same: Pairs = &[("NODE_RANK", "1"), ("NNODES", "4")];
    let in_one_job = [&[vars[0], vars[2]], same].concat();
    assert_eq!(node(&in_one_job), (Launcher::Kubernetes, 1, 4, "job-0.svc".into()));
    let asked = read(&[vars[0], ("MPIENV_LAUNCHER", "alone")]).unwrap();
    assert_eq!((asked.launcher(), asked.findings()), (Launcher::Alone, &[][..]));
}

#[test]
fn a_second_node_that_the_local_size_leaves_no_rank_for_is_an_error_at_once() {
    let vars = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_SIZE", "2"),
        ("CROSS_RANK", "1"),
        ("CROSS_SIZE", "2"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
    ];
    let error = ClusterInfo::from_vars(vars).unwrap_err().to_string();
    assert!(
        error.starts_with("CROSS_RANK=\"1\": must be from 0 to 0, because the size is 1; "),
        "{error}"
    );
}

#[test]
fn deepspeeds_variables_fill_what_rank_and_world_size_leave_open() {
    let vars: Pairs = &[
        ("RANK", "2"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_SIZE", "2"),
        ("CROSS_RANK", "1"),
        ("CROSS_SIZE", "2"),
    ];
    let info = read(vars).unwrap();
    assert_eq!(
        (info.local_world_size(), info.node_rank(), info.node_count()),
        (Some(2), Some(1), Some(2))
    );
    // A single one of these names could belong to any program.
    let other = read(&[&vars[..3], &[("LOCAL_SIZE", "10G")]].concat()).unwrap();
    assert_eq!(other.local_world_size(), None);
}

#[test]
fn a_launcher_inside_a_platforms_node_is_the_inner_one() {
    for platform in [LWS, SKYPILOT, RUNPOD] {
        let info = read(&[platform, TORCHRUN].concat()).unwrap();
        assert_eq!(
            (info.launcher(), info.rank().index(), info.local_rank()),
            (Launcher::Torchrun, 5, Some(1))
        );
    }
}

#[test]
fn variables_that_do_not_mark_a_job_are_ignored() {
    let harmless: [Pairs; 8] = [
        &[
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
            ("HOSTNAME", "pod"),
        ],
        &[("SLURM_CONF", "/etc/slurm/slurm.conf"), ("SLURM_NTASKS", "4")],
        &[("JPY_PARENT_PID", "7"), ("COLAB_GPU", "1"), ("RUNPOD_POD_ID", "x")],
        &[("PBS_CONF_FILE", "/etc/pbs.conf"), ("FLUX_URI", "local:///run/flux")],
        &[("OMPI_MCA_btl", "tcp"), ("HOROVOD_FUSION_THRESHOLD", "1"), ("I_MPI_FABRICS", "shm")],
        &[("SKYPILOT_TASK_ID", "x"), ("DSTACK_RUN_ID", "y"), ("MLP_TASK_ID", "z")],
        &[("NUM_NODES_IN_MY_CLUSTER", "4"), ("LOCAL_SIZE", "10G")],
        &[("PET_NPROC_PER_NODE", "gpu"), ("JAX_PLATFORMS", "cpu")],
    ];
    for vars in harmless {
        let info = read(vars).unwrap();
        assert_eq!((info.launcher(), info.findings()), (Launcher::Alone, &[][..]), "{vars:?}");
    }
}

/// A platform's job on several nodes, with a part of each rank's variables.
fn part_of_a_job() -> impl Strategy<Value = Vec<Vars>> {
    let builders: Vec<_> =
        Job::of_each().filter(|builder| builder.clone().nodes(2).build().is_ok()).collect();
    let job = prop::sample::select(builders).prop_flat_map(any_shape);
    let jobs = job.prop_filter("several nodes", |job| job.counts().len() > 1);
    (jobs, any::<u32>()).prop_map(|(job, kept)| {
        let is_kept = |at: usize| kept >> (at % 32) & 1 == 1;
        let part = |vars: Vars| {
            // All tasks' lists come from one config map: without the others, it looks like a job of
            // one pod.
            let list = vars.iter().position(|(name, _)| name == "VC_MASTER_HOSTS");
            let at = move |at: usize, name: &str| {
                list.filter(|_| name == "VC_WORKER_HOSTS").unwrap_or(at)
            };
            vars.into_iter().enumerate().filter(move |(index, (name, _))| is_kept(at(*index, name)))
        };
        job.environments().map(|vars| part(vars).map(|(_, pair)| pair).collect()).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_part_of_a_job_counts_as_alone_in_silence(job in part_of_a_job()) {
        let signs: Vec<_> = Launcher::ALL.iter().flat_map(|launcher| {
            let outside = ["SLURM_NTASKS", "SLURM_NNODES", "SLURM_DISTRIBUTION", "LSB_MCPU_HOSTS", "LSB_JOBID", "SKYPILOT_TASK_ID",
                "SKYPILOT_NUM_GPUS_PER_NODE", "DSTACK_GPUS_PER_NODE", "DSTACK_RUN_ID", "LEPTON_JOB_WORKER_PREFIX",
                "LEPTON_SUBDOMAIN", "LEPTON_RESOURCE_ACCELERATOR_NUM", "MLP_ROLE", "MLP_WORKER_0_PORT", "MLP_WORKER_GPU",
                "MLP_TASK_ID", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE", "JAX_COORDINATOR_ADDRESS", "NNODES",
                "TORCHELASTIC_ERROR_FILE", "SM_NUM_GPUS", "MA_NUM_GPUS",
                "DEVICE_ID", "TRAINING_ROLE", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "NCCL_HOST_IP", "NCCL_PORT",
                "LAMELLAR_BACKEND", "LAMELLAR_JOB_ID", "TF_CONFIG", "RING_CONFIG", "MISTRALRS_MN_GLOBAL_WORLD_SIZE",
                "MISTRALRS_MN_LOCAL_WORLD_SIZE", "MISTRALRS_MN_HEAD_PORT"];
            launcher.variables().map(|variable| variable.name).filter(move |name| !outside.contains(name))
        }).collect();
        for vars in job {
            // Other names also exist in processes that are alone.
            if !vars.iter().any(|(name, _)| signs.contains(&name.as_str())) {
                continue;
            }
            if let Ok(info) = ClusterInfo::from_vars(vars.clone()) {
                prop_assert!(info.world_size() > 1 || !info.findings().is_empty(), "{:?}", vars);
            }
        }
    }
}
