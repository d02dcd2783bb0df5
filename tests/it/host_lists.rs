//! `ClusterInfo::hosts`: which launchers list a job's hosts, in which order, and when a list is
//! ignored.

use std::collections::BTreeSet;

use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Launcher};

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn read(vars: Pairs) -> ClusterInfo {
    ClusterInfo::from_vars(vars.iter().copied()).unwrap()
}

fn hosts(info: &ClusterInfo) -> Option<Vec<String>> {
    Some(info.hosts()?.iter().map(ToString::to_string).collect())
}

#[test]
fn every_launcher_that_lists_hosts_gives_them_in_the_order_of_the_nodes() {
    let mut listed = BTreeSet::new();
    for builder in Job::of_each() {
        let Ok(job) = builder.nodes(3).build() else { continue };
        let infos: Vec<_> =
            job.environments().map(|vars| ClusterInfo::from_vars(vars).unwrap()).collect();
        for info in &infos {
            assert_eq!(info.hosts(), infos[0].hosts(), "{}", job.launcher());
            let Some(hosts) = info.hosts() else { continue };
            assert_eq!(hosts.len(), 3, "{}", job.launcher());
            assert_eq!(info.master_addr().unwrap(), &hosts[0], "{}", job.launcher());
            listed.insert(job.launcher().name());
        }
    }
    // The guide names them, and a test compares it.
    assert!(listed.len() > 7, "only {listed:?} list hosts");
}

#[test]
fn a_list_is_read_in_the_form_of_its_platform() {
    let cluster = r#"{"cluster":{"workerpool0":["a:2222"],"workerpool1":["b:2222","c:2222"]},
        "task":{"type":"workerpool1","index":1}}"#;
    let cases: &[(Pairs, &str)] = &[
        (
            &[
                ("SKYPILOT_NODE_RANK", "1"),
                ("SKYPILOT_NUM_NODES", "2"),
                ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5\n"),
            ],
            "10.0.0.4 10.0.0.5",
        ),
        (
            &[("SKYPILOT_SETUP_NODE_RANK", "1"), ("SKYPILOT_SETUP_NODE_IPS", "10.0.0.4\n10.0.0.5")],
            "10.0.0.4 10.0.0.5",
        ),
        (
            &[
                ("DSTACK_NODE_RANK", "0"),
                ("DSTACK_NODES_NUM", "2"),
                ("DSTACK_MASTER_NODE_IP", "10.0.0.9"),
                ("DSTACK_NODES_IPS", "10.0.0.9\n10.0.0.4"),
            ],
            "10.0.0.9 10.0.0.4",
        ),
        (&[("SM_HOSTS", r#"["algo-1","algo-2"]"#), ("SM_CURRENT_HOST", "algo-2")], "algo-1 algo-2"),
        (&[("CLUSTER_SPEC", cluster)], "a b c"),
        (
            &[
                ("VC_MASTER_HOSTS", "m-0.m"),
                ("VC_WORKER_HOSTS", "w-0.m,w-1.m"),
                ("VC_TASK_INDEX", "1"),
                ("HOSTNAME", "w-1"),
            ],
            "m-0.m w-0.m w-1.m",
        ),
        (
            &[
                ("MLP_ROLE_INDEX", "1"),
                ("MLP_WORKER_NUM", "2"),
                ("MLP_WORKER_0_HOST", "10.0.0.4"),
                ("MLP_WORKER_1_HOST", "10.0.0.5"),
            ],
            "10.0.0.4 10.0.0.5",
        ),
        (
            &[
                ("LEPTON_JOB_WORKER_INDEX", "1"),
                ("LEPTON_JOB_TOTAL_WORKERS", "2"),
                ("LEPTON_JOB_WORKER_PREFIX", "worker"),
                ("LEPTON_SUBDOMAIN", "svc"),
            ],
            "worker-0.svc worker-1.svc",
        ),
        (
            &[
                ("SLURM_PROCID", "2"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_NTASKS", "3"),
                ("SLURM_NNODES", "3"),
                ("SLURM_STEP_NODELIST", "gpu[09-10],login"),
            ],
            "gpu09 gpu10 login",
        ),
    ];
    for (vars, expected) in cases {
        assert_eq!(hosts(&read(vars)).unwrap().join(" "), *expected, "{vars:?}");
    }
}

#[test]
fn a_list_that_contradicts_the_job_does_not_count_and_the_source_says_why() {
    let sky: Pairs = &[
        ("SKYPILOT_NODE_RANK", "1"),
        ("SKYPILOT_NUM_NODES", "3"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
    ];
    let dstack: Pairs = &[
        ("DSTACK_NODE_RANK", "1"),
        ("DSTACK_NODES_NUM", "2"),
        ("DSTACK_MASTER_NODE_IP", "10.0.0.5"),
        ("DSTACK_NODES_IPS", "10.0.0.4\n10.0.0.5"),
    ];
    let arbitrary: Pairs = &[
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_NNODES", "2"),
        ("SLURM_STEP_NODELIST", "a,b"),
        ("SLURM_DISTRIBUTION", "arbitrary"),
    ];
    let strange: Pairs = &[
        ("SKYPILOT_NODE_RANK", "1"),
        ("SKYPILOT_NUM_NODES", "2"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4\na b"),
    ];
    for (vars, why) in [
        (sky, "SKYPILOT_NODE_IPS has 2 hosts, and the job has 3 nodes"),
        (dstack, "DSTACK_NODES_IPS begins with 10.0.0.4, and rank 0's host is 10.0.0.5"),
        (arbitrary, "SLURM_STEP_NODELIST may be in another order: slurm-arbitrary-distribution"),
        (strange, "SKYPILOT_NODE_IPS has \"a b\": ' ' cannot be part of a host name"),
    ] {
        let info = read(vars);
        assert_eq!((hosts(&info), &*info.provenance().hosts), (None, why));
    }
    let none = read(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")]);
    assert_eq!((hosts(&none), &*none.provenance().hosts), (None, "not provided by the launcher"));
}

#[test]
fn a_master_that_is_asked_for_does_not_change_the_list() {
    let sky: Pairs = &[
        ("SKYPILOT_NODE_RANK", "0"),
        ("SKYPILOT_NUM_NODES", "2"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
    ];
    let info = read(&[sky, &[("MASTER_ADDR", "head.example.org")]].concat());
    assert_eq!(info.master_addr().unwrap().to_string(), "head.example.org");
    assert_eq!(hosts(&info).unwrap(), ["10.0.0.4", "10.0.0.5"]);
}

#[test]
fn all_ranks_on_this_node_have_one_host() {
    let info = read(&[]);
    assert_eq!(
        (info.launcher(), hosts(&info).unwrap()),
        (Launcher::Alone, vec!["127.0.0.1".to_owned()])
    );
    let local: Pairs =
        &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!(hosts(&read(local)).unwrap(), ["127.0.0.1"]);
    let named: Pairs = &[
        ("SKYPILOT_NODE_RANK", "0"),
        ("SKYPILOT_NUM_NODES", "1"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4"),
    ];
    assert_eq!(hosts(&read(named)).unwrap(), ["10.0.0.4"]);
}

#[test]
fn the_workers_of_a_node_have_the_hosts_of_the_job() {
    let sky: Pairs = &[
        ("SKYPILOT_NODE_RANK", "1"),
        ("SKYPILOT_NUM_NODES", "2"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
    ];
    let info = read(sky);
    for worker in info.workers(2).unwrap() {
        assert_eq!(worker.hosts(), info.hosts());
        assert_eq!(
            worker.hosts().unwrap()[worker.node_rank().unwrap() as usize].to_string(),
            "10.0.0.5"
        );
    }
}

#[test]
fn a_list_longer_than_any_cluster_is_not_expanded() {
    let vars: Pairs = &[
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NTASKS", "4294967295"),
        ("SLURM_NNODES", "4294967295"),
        ("SLURM_STEP_NODELIST", "n[1-4294967295]"),
    ];
    let info = read(vars);
    assert_eq!(
        (hosts(&info), &*info.provenance().hosts),
        (None, "SLURM_STEP_NODELIST has more than 65536 hosts")
    );
}
