//! Which launcher mpienv uses, and what its variables mean, for cases that no recording covers.

use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Launcher};

type Vars<'a> = &'a [(&'a str, &'a str)];

fn read(parts: &[Vars]) -> ClusterInfo {
    ClusterInfo::from_vars(parts.concat()).unwrap()
}

const STEP: Vars = &[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")];
const PMI: Vars = &[("PMI_RANK", "1"), ("PMI_SIZE", "2")];
const HYDRA: Vars = &[("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];

#[test]
fn pmi_is_sruns_own_unless_mpiexec_has_set_a_local_rank() {
    assert_eq!(read(&[STEP, PMI]).launcher(), Launcher::Slurm);
    let inner = read(&[STEP, PMI, HYDRA]);
    assert_eq!(
        (inner.launcher(), inner.rank().index(), inner.local_rank()),
        (Launcher::Hydra, 1, Some(1))
    );
    let bare = read(&[PMI]);
    assert_eq!(
        (bare.launcher(), bare.rank().index(), bare.local_rank()),
        (Launcher::Hydra, 1, None)
    );
}

#[test]
fn half_a_pair_of_mvapich_names_the_other_half() {
    for (found, missing) in [
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ] {
        let error = ClusterInfo::from_vars([(found, "1")]).unwrap_err();
        assert_eq!(
            (error.launcher(), error.variable()),
            (Some(Launcher::Mvapich), Some(missing)),
            "{error}"
        );
    }
}

#[test]
fn flux_tells_the_local_size_by_its_nodes_where_they_leave_no_choice() {
    for (nodes, local_size) in [("1", Some(4)), ("4", Some(1)), ("2", None)] {
        let vars = [("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "4"), ("FLUX_TASK_LOCAL_ID", "0")];
        let info = read(&[&vars, &[("FLUX_JOB_NNODES", nodes)]]);
        assert_eq!(
            (info.launcher(), info.local_world_size()),
            (Launcher::Flux, local_size),
            "{nodes}"
        );
    }
}

#[test]
fn only_awss_main_node_may_lack_its_own_address() {
    let node =
        |index| read(&[&[("AWS_BATCH_JOB_NODE_INDEX", index), ("AWS_BATCH_JOB_NUM_NODES", "2")]]);
    assert_eq!(node("0").master_addr().unwrap().to_string(), "0.0.0.0");
    assert!(node("1").master_addr().is_err());
}

#[test]
fn another_launcher_that_disagrees_is_named_once() {
    // Two variables together identify Hydra.
    let mpirun = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let place = [("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let info = read(&[&mpirun, &place, PMI, HYDRA, &[("RANK", "1"), ("WORLD_SIZE", "9")]]);
    let found: Vec<_> =
        info.findings().iter().filter(|finding| finding.code == "launchers-disagree").collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].what.contains("Hydra says rank 1 of 2"), "{found:?}");
    assert!(found[1].what.contains("RANK and WORLD_SIZE say rank 1 of 9"), "{found:?}");
}

/// The only rank of a launcher's job.
const ONE_OF_MPIRUN: Vars = &[
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "1"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
];
const ONE_OF_SRUN: Vars =
    &[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
/// What `eval "$(mpienv export)"` in a batch script leaves for what the script starts later.
const EXPORTED: Vars = &[
    ("RANK", "0"),
    ("WORLD_SIZE", "1"),
    ("LOCAL_RANK", "0"),
    ("LOCAL_WORLD_SIZE", "1"),
    ("NODE_RANK", "0"),
    ("MASTER_ADDR", "127.0.0.1"),
];

#[test]
fn the_only_rank_of_a_job_warns_if_any_other_variable_shows_that_it_is_one_of_several() {
    for (place, more, shown) in [
        (ONE_OF_SRUN, &[("PMIX_RANK", "2"), ("PMIX_NAMESPACE", "prterun-a-1@1")][..], "PMIX_RANK"),
        (EXPORTED, &[("PMIX_RANK", "2")], "PMIX_RANK"),
        // `srun -N1 -n1 -w HOST` for each node.
        (ONE_OF_SRUN, &[("NODE_RANK", "2")], "NODE_RANK"),
        (ONE_OF_SRUN, &[("NODE_RANK", "2"), ("LOCAL_RANK", "1")], "NODE_RANK"),
        (ONE_OF_SRUN, &[("RANK", "2")], "RANK"),
        // The same loop, with the names that all nodes have in common.
        (
            ONE_OF_SRUN,
            &[("WORLD_SIZE", "2"), ("MASTER_ADDR", "n0"), ("SLURM_STEP_NODELIST", "n1")],
            "WORLD_SIZE",
        ),
        // A launcher's local rank or node, without its rank.
        (EXPORTED, &[("OMPI_COMM_WORLD_LOCAL_RANK", "2")], "OMPI_COMM_WORLD_LOCAL_RANK"),
        (EXPORTED, &[("SLURM_LOCALID", "2")], "SLURM_LOCALID"),
        (EXPORTED, &[("PALS_NODEID", "2")], "PALS_NODEID"),
        (ONE_OF_SRUN, &[("JAX_PROCESS_ID", "2")], "JAX_PROCESS_ID"),
        (ONE_OF_MPIRUN, &[("SLURM_PROCID", "3"), ("SLURM_STEP_ID", "0")], "SLURM_PROCID"),
        (
            ONE_OF_MPIRUN,
            &[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "5"), ("LOCAL_WORLD_SIZE", "8")],
            "RANK",
        ),
        (EXPORTED, &[("JOB_COMPLETION_INDEX", "3")], "JOB_COMPLETION_INDEX"),
        (ONE_OF_SRUN, &[("LOCAL_RANK", "3")], "LOCAL_RANK"),
        (ONE_OF_MPIRUN, &[("DMLC_WORKER_ID", "3"), ("DMLC_NUM_WORKER", "8")], "DMLC_WORKER_ID"),
        (EXPORTED, &[("SKYPILOT_NODE_RANK", "1")], "SKYPILOT_NODE_RANK"),
        (EXPORTED, &[("NNODES", "4")], "NNODES"),
        (EXPORTED, &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")], "SLURM_NTASKS"),
        (
            EXPORTED,
            &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "8")],
            "SLURM_STEP_NUM_TASKS",
        ),
        (EXPORTED, &[("ACME_RANK", "3"), ("ACME_SIZE", "4")], "ACME_RANK"),
    ] {
        let info = read(&[place, more]);
        let warnings = info.warnings();
        assert_eq!((info.rank().index(), info.world_size()), (0, 1), "{more:?}");
        let codes = ["launchers-disagree", "place-unknown", "slurm-not-a-task"];
        assert!(warnings.len() == 1 && codes.contains(&warnings[0].code), "{more:?}: {warnings:?}");
        assert!(warnings[0].what.contains(&format!("{shown}=")), "{}", warnings[0]);
    }
}

#[test]
fn the_only_rank_of_a_job_is_silent_if_it_is_one_on_purpose() {
    for (place, more) in [
        (EXPORTED, &[][..]),
        (EXPORTED, &[("NNODES", "1")]),
        (EXPORTED, &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "1"), ("SLURM_NNODES", "1")]),
        (EXPORTED, &[("CI_NODE_INDEX", "3"), ("CI_NODE_TOTAL", "4")]),
        (EXPORTED, &[("MPIENV_LAUNCHER", "user"), ("NNODES", "4")]),
        // Pods of an indexed job may each have an mpirun of their own, and a batch script one too.
        (ONE_OF_MPIRUN, &[("JOB_COMPLETION_INDEX", "3")]),
        (ONE_OF_MPIRUN, &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")]),
        (ONE_OF_SRUN, &[("PMIX_RANK", "0"), ("NODE_RANK", "0")]),
        (EXPORTED, &[("PMIX_RANK", "0"), ("NUM_NODES", "1"), ("JOB_COMPLETION_INDEX", "0")]),
        // DeepSpeed on one GPU, in a batch script of a job with more tasks.
        (
            EXPORTED,
            &[
                ("LOCAL_SIZE", "1"),
                ("CROSS_RANK", "0"),
                ("CROSS_SIZE", "1"),
                ("SLURM_JOB_ID", "7"),
                ("SLURM_NTASKS", "8"),
            ],
        ),
        // Sizes that a script sets for programs that it starts elsewhere.
        (ONE_OF_SRUN, &[("WORLD_SIZE", "8"), ("MASTER_ADDR", "a")]),
        (ONE_OF_MPIRUN, &[("WORLD_SIZE", "1"), ("JAX_NUM_PROCESSES", "1")]),
        // Workers of a data loader, a replica, and Open MPI's number among all jobs of the node.
        (ONE_OF_MPIRUN, &[("TASK_ID", "3"), ("NUM_WORKERS", "8"), ("NOMAD_ALLOC_INDEX", "2")]),
        (ONE_OF_MPIRUN, &[("SNOWFLAKE_JOB_INDEX", "1"), ("SNOWFLAKE_JOBS_COUNT", "2")]),
        (ONE_OF_MPIRUN, &[("OMPI_COMM_WORLD_NODE_RANK", "1")]),
        (EXPORTED, &[("PET_NODE_RANK", "0"), ("PET_NNODES", "1"), ("PET_MASTER_ADDR", "a")]),
        // torchrun in a pod of an indexed job.
        (
            EXPORTED,
            &[
                ("TORCHELASTIC_RUN_ID", "1"),
                ("GROUP_RANK", "0"),
                ("GROUP_WORLD_SIZE", "1"),
                ("JOB_COMPLETION_INDEX", "3"),
            ],
        ),
        (&[], &[("MPIENV_LAUNCHER", "alone"), ("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")]),
    ] {
        assert_eq!(read(&[place, more]).warnings(), [], "{place:?} {more:?}");
    }
}

#[test]
fn no_platform_or_launcher_of_one_process_contradicts_its_exported_place() {
    for builder in Job::of_each() {
        let Ok(job) = builder.counts([1]).build() else { continue };
        let exported = EXPORTED.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let vars = job.environment(0).unwrap().into_iter().chain(exported);
        let info = ClusterInfo::from_vars(vars).unwrap();
        assert_eq!(info.warnings(), [], "{}", job.launcher());
    }
}

#[test]
fn where_all_ranks_have_one_wrong_place_the_other_launchers_first_one_warns() {
    // Rank 1 of an mpirun starts four processes, which inherit its variables.
    for (rank, warns) in [("0", true), ("1", false), ("2", false), ("3", false)] {
        let place = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let local = [("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        let own = [("RANK", rank), ("WORLD_SIZE", "4"), ("LOCAL_RANK", rank)];
        let info = read(&[&place, &local, &own, &[("LOCAL_WORLD_SIZE", "4")]]);
        let codes: Vec<_> = info.warnings().iter().map(|warning| warning.code).collect();
        assert_eq!(codes == ["launchers-disagree"], warns, "{rank}: {codes:?}");
    }
}

#[test]
fn a_launcher_that_does_not_number_nodes_as_the_one_around_it_does_not_contradict_it() {
    // With c10d, torchrun sorts the nodes by their names: n10 comes before n9.
    let step: Vars = &[
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_GTIDS", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NODELIST", "n[9-10]"),
    ];
    let worker: Vars = &[
        ("TORCHELASTIC_RUN_ID", "1"),
        ("RANK", "4"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("GROUP_RANK", "1"),
        ("GROUP_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "n10"),
    ];
    let info = read(&[step, worker]);
    assert_eq!((info.rank().index(), info.warnings()), (4, vec![]));
    let other = read(&[step, &worker[..6], &[("GROUP_RANK", "1"), ("GROUP_WORLD_SIZE", "3")]]);
    assert_eq!(other.warnings()[0].code, "launchers-disagree");
    // mpirun of Open MPI 4, which a platform's first node has started.
    let job = Job::open_mpi().nodes(2).per_node(2).build().unwrap();
    let vars = job.environment(3).unwrap();
    let inside = [("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NUM_NODES", "2")];
    let vars = vars.into_iter().chain(inside.map(|(name, value)| (name.into(), value.into())));
    let info = ClusterInfo::from_vars(vars).unwrap();
    assert_eq!((info.rank().index(), info.node_count()), (3, Some(2)));
    assert_eq!(info.findings(), []);
}

#[test]
fn torchruns_workers_do_not_repeat_what_their_first_one_says() {
    for (rank, warns) in [("0", true), ("1", false)] {
        let outer = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let local = [("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        let own = [("RANK", rank), ("WORLD_SIZE", "4"), ("LOCAL_RANK", rank)];
        let more = [("LOCAL_WORLD_SIZE", "4"), ("TORCHELASTIC_RUN_ID", "1")];
        let of_node = [("GROUP_RANK", "0"), ("GROUP_WORLD_SIZE", "1"), ("MASTER_ADDR", "a")];
        let info = read(&[&outer, &local, &own, &more, &of_node]);
        assert_eq!((info.launcher(), info.rank().to_string()), (Launcher::Torchrun, rank.into()));
        assert_eq!(!info.warnings().is_empty(), warns, "{rank}: {:?}", info.warnings());
    }
}

#[test]
fn a_node_that_is_asked_for_is_not_another_one_than_the_launchers() {
    let task = |node| {
        let of_step =
            [("SLURM_PROCID", node), ("SLURM_STEP_ID", "2"), ("SLURM_STEP_NUM_TASKS", "2")];
        let of_node =
            [("SLURM_LOCALID", "0"), ("SLURM_NODEID", node), ("SLURM_STEP_NUM_NODES", "2")];
        [&of_step[..], &of_node, &[("MASTER_ADDR", "a")]].concat()
    };
    let of_mpirun = |local| {
        let place = [("OMPI_COMM_WORLD_RANK", local), ("OMPI_COMM_WORLD_SIZE", "2")];
        let local = [("OMPI_COMM_WORLD_LOCAL_RANK", local), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        [&place[..], &local, &[("MASTER_ADDR", "a")]].concat()
    };
    let node = mpienv::Rank::new(0, 2).unwrap();
    let asked = |vars: Vec<(&str, &str)>| ClusterInfo::builder().vars(vars).node(node).read();
    for right in [task("0"), of_mpirun("0")] {
        assert_eq!(asked(right).unwrap().rank(), node);
    }
    // srun may place rank 0 on another node than the first.
    let arbitrary = [task("1"), vec![("SLURM_PROCID", "1"), ("SLURM_NODEID", "0")]].concat();
    assert_eq!(asked(arbitrary).unwrap().rank(), node);
    // A batch script's shell has replaced $SLURM_NODEID before srun started.
    let error = asked(task("1")).unwrap_err().to_string();
    assert!(error.starts_with("Slurm: SLURM_PROCID=\"1\": node 0 of 2 is asked for"), "{error}");
    let error = asked(of_mpirun("1")).unwrap_err().to_string();
    assert!(error.starts_with("Open MPI: OMPI_COMM_WORLD_RANK=\"1\": node 0 of 2"), "{error}");
    // Other ranks than nodes: each node's first process may start the node's own.
    let four = [("OMPI_COMM_WORLD_SIZE", "4")];
    assert!(asked([of_mpirun("0"), four.to_vec()].concat()).is_ok());
    let error = asked([of_mpirun("1"), four.to_vec()].concat()).unwrap_err().to_string();
    assert!(error.starts_with("Open MPI: OMPI_COMM_WORLD_LOCAL_RANK=\"1\": node 0"), "{error}");
}

#[test]
fn a_slurm_job_is_known_by_any_of_its_sizes_and_lists() {
    for several in [
        ("SLURM_JOB_NUM_NODES", "4"),
        ("SLURM_JOB_NODELIST", "n[1-4]"),
        ("SLURM_NODELIST", "n1,n2"),
        ("SLURM_NPROCS", "4"),
    ] {
        for job in ["SLURM_JOB_ID", "SLURM_JOBID"] {
            let warnings = read(&[&[(job, "7"), several]]).warnings();
            assert_eq!(warnings[0].code, "slurm-not-a-task", "{several:?}");
            assert!(warnings[0].what.contains(several.0), "{}", warnings[0]);
        }
        let (name, _) = several;
        let one = if name.ends_with("NODELIST") { "n1" } else { "1" };
        assert_eq!(read(&[&[("SLURM_JOB_ID", "7"), (name, one)]]).warnings(), [], "{name}");
    }
}

#[test]
fn jsrun_also_sets_open_mpis_variables_and_names_the_first_host_after_the_launch_node() {
    let place = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"].into_iter().zip(["5", "8", "1", "4"]);
    let of = |prefix: &str| {
        let names = place.clone();
        names.map(|(name, number)| (format!("{prefix}_{name}"), number.to_owned())).collect()
    };
    let [jsm, spectrum]: [Vec<_>; 2] = [of("JSM_NAMESPACE"), of("OMPI_COMM_WORLD")];
    let read = |hosts: &str| {
        let hosts = ("LSB_MCPU_HOSTS".to_owned(), hosts.to_owned());
        ClusterInfo::from_vars(jsm.iter().chain(&spectrum).cloned().chain([hosts]))
    };
    let info = read("batch1 1 a01 42 a02 42").unwrap();
    assert_eq!((info.launcher(), info.rank().index()), (Launcher::Jsm, 5));
    assert_eq!(info.master_addr().unwrap().to_string(), "a01");
    assert_eq!(info.findings(), []);
    // Without a launch node, whose one slot shows it, rank 0's host is not known.
    let info = read("a01 42 a02 42").unwrap();
    assert!(info.master_addr().unwrap_err().to_string().starts_with("JSM: MASTER_ADDR: "));
}

#[test]
fn a_master_that_the_platform_does_not_name_is_a_warning_with_both() {
    let warned = |vars: Vars| {
        let warnings = read(&[vars]).warnings();
        warnings.into_iter().find(|finding| finding.code == "master-not-rank-0")
    };
    let pod = [("PET_NODE_RANK", "0"), ("PET_NNODES", "2"), ("PET_MASTER_ADDR", "t-node-0-0.t")];
    let found = warned(&[&pod[..], &[("MASTER_ADDR", "old-master-0")]].concat()).unwrap();
    assert_eq!(
        found.what,
        "MASTER_ADDR=old-master-0, but rank 0's host is t-node-0-0.t (PET_MASTER_ADDR)"
    );
    assert!(found.remedy.contains("MPIENV_MASTER_ADDR=old-master-0"), "{found}");
    for same in ["t-node-0-0", "T-node-0-0.t.ns.svc", "10.0.0.7", "127.0.0.1"] {
        assert_eq!(warned(&[&pod[..], &[("MASTER_ADDR", same)]].concat()), None, "{same}");
    }
    assert_eq!(warned(&[&pod[..], &[("MPIENV_MASTER_ADDR", "other")]].concat()), None);
}

#[test]
fn where_one_of_several_names_is_no_place_the_number_of_a_process_still_warns() {
    // A batch script of one task, whose note hides nothing.
    let script: Vars = &[("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "1"), ("SLURM_NNODES", "1")];
    for vars in [&[("LOCAL_RANK", "3")][..], &[("HOROVOD_LOCAL_RANK", "1")]] {
        assert_eq!(read(&[script, vars]).warnings()[0].code, "place-unknown", "{vars:?}");
    }
    assert_eq!(read(&[script, &[("LOCAL_RANK", "0")]]).warnings(), []);
    // One process with all devices.
    let neuron = ["NEURON_PJRT_PROCESS_INDEX", "NEURON_PJRT_PROCESSES_NUM_DEVICES"];
    assert_eq!(read(&[&[(neuron[0], "0"), (neuron[1], "32")]]).warnings(), []);
    // Platforms whose numbers have names of their own.
    for vars in [
        [("SNOWFLAKE_JOB_INDEX", "1"), ("SNOWFLAKE_JOBS_COUNT", "2")],
        [("ARNOLD_ID", "1"), ("ARNOLD_WORKER_NUM", "2")],
        [("NGC_ARRAY_INDEX", "1"), ("NGC_ARRAY_SIZE", "2")],
        [("MPIRANK", "0"), ("MPISIZE", "2")],
        [("MP_CHILD", "0"), ("MP_PROCS", "2")],
        [("PAI_TASK_INDEX", "1"), ("PAI_CURRENT_TASK_ROLE_TASK_COUNT", "2")],
        [("INDEX", "0"), ("NODE_IP_LIST", "10.0.0.1:8,10.0.0.2:8")],
        [("NEURON_PJRT_PROCESS_INDEX", "0"), ("NEURON_PJRT_PROCESSES_NUM_DEVICES", "32,32")],
    ] {
        assert_eq!(read(&[&vars]).warnings()[0].code, "place-unknown", "{vars:?}");
        let one = [vars[0], (vars[1].0, "1")];
        assert_eq!(read(&[&one]).warnings(), [], "{one:?}");
    }
}

#[test]
fn processes_that_a_task_or_a_pod_starts_beside_each_other_do_not_share_its_rank_in_silence() {
    // `srun --ntasks-per-node=1`, and a loop that sets LOCAL_RANK.
    let task: Vars = &[
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_GTIDS", "1"),
    ];
    let warnings = read(&[task, &[("LOCAL_RANK", "3")]]).warnings();
    assert!(warnings[0].what.ends_with("but LOCAL_RANK=\"3\" is set"), "{warnings:?}");
    assert_eq!(read(&[task, &[("LOCAL_RANK", "0")]]).warnings(), []);
    // A loop that starts processes with their node's rank, and a rank that contradicts its node.
    let by_hand = |vars: &[(&str, &str)]| {
        let own = [("WORLD_SIZE", "16"), ("MASTER_ADDR", "localhost")];
        let codes = read(&[&own, vars]).warnings().into_iter().map(|warning| warning.code);
        codes.collect::<Vec<_>>()
    };
    for (rank, node, local, warns) in [
        ("0", "0", "0", false),
        ("0", "0", "1", true),
        ("1", "1", "1", true),
        ("2", "1", "1", false),
        ("9", "1", "1", false),
        ("0", "1", "0", true),
    ] {
        let vars = [("RANK", rank), ("NODE_RANK", node), ("LOCAL_RANK", local)];
        let expected = if warns { &["launchers-disagree"][..] } else { &[] };
        assert_eq!(by_hand(&vars), expected, "{vars:?}");
    }
    assert_eq!(by_hand(&[("RANK", "0"), ("LOCAL_RANK", "1")]), ["launchers-disagree"]);
    // Lightning's children in a pod whose RANK is its number.
    let pod: Vars = &[("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("WORLD_SIZE", "16")];
    let child = |rank, node, local| {
        let own = [("RANK", rank), ("NODE_RANK", node), ("LOCAL_RANK", local)];
        ClusterInfo::from_vars([pod, &own, &[("MASTER_ADDR", "j-0")]].concat())
    };
    for (rank, node, local) in [("0", "0", "7"), ("1", "1", "1")] {
        let error = child(rank, node, local).unwrap_err().to_string();
        assert!(error.contains("RANK is the pod's number"), "{error}");
    }
    for (rank, node, local) in [("7", "0", "7"), ("9", "1", "1"), ("2", "1", "1")] {
        assert_eq!(child(rank, node, local).unwrap().rank().index().to_string(), rank);
    }
    // Programs may set LOCAL_RANK to the number of a device.
    let device = [("RANK", "0"), ("LOCAL_RANK", "4"), ("MASTER_ADDR", "j-0")];
    assert_eq!(read(&[pod, &device]).rank().index(), 0);
    // A pod with several processes, whose master is this host.
    for master in ["dev-0", "localhost", "dev-0.ns"] {
        let own = [("RANK", "3"), ("HOSTNAME", "dev-0"), ("MASTER_ADDR", master)];
        let info = read(&[pod, &own]);
        assert_ne!(info.local_world_size(), Some(1), "{master}");
    }
}

#[test]
fn hosts_or_pods_that_may_be_no_ranks_are_errors() {
    let groups = [("SM_INSTANCE_GROUPS", "[\"data\",\"train\"]"), ("SM_CURRENT_HOST", "algo-1")];
    let hosts = [("SM_HOSTS", "[\"algo-1\",\"algo-2\"]")];
    let error = ClusterInfo::from_vars(groups.into_iter().chain(hosts)).unwrap_err().to_string();
    assert!(error.starts_with("SageMaker: SM_INSTANCE_GROUPS="), "{error}");
    let one = [("SM_INSTANCE_GROUPS", "[\"train\"]"), ("SM_CURRENT_HOST", "algo-2")];
    assert_eq!(ClusterInfo::from_vars(one.into_iter().chain(hosts)).unwrap().rank().index(), 1);
    // WORLD_SIZE counts processes.
    let pod = [("JOB_COMPLETION_INDEX", "1"), ("WORLD_SIZE", "16"), ("NUM_NODES", "2")];
    let error = ClusterInfo::from_vars(pod).unwrap_err().to_string();
    assert!(error.starts_with("Kubernetes: WORLD_SIZE=\"16\": it counts pods here"), "{error}");
}

#[test]
fn the_only_rank_of_a_launcher_with_another_ones_number_above_0_warns() {
    let task = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
    ];
    let names = [
        "PMI_ID",
        "ALPS_APP_PE",
        "MPI_LOCALRANKID",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ];
    for name in names {
        for (number, is_warned) in [("0", false), ("1", true)] {
            let info = ClusterInfo::from_vars(task.into_iter().chain([(name, number)])).unwrap();
            let codes = info.warnings().into_iter().filter(|one| one.code == "launchers-disagree");
            assert_eq!(codes.count(), usize::from(is_warned), "{name}={number}");
            assert_eq!(info.require_place().is_err(), is_warned, "{name}={number}");
        }
    }
}

#[test]
fn one_node_is_refused_to_a_rank_other_than_the_first_and_on_its_own_it_is_not() {
    let task = |rank: &str| {
        [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", rank),
            ("SLURM_NODEID", rank),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let only = mpienv::Rank::new(0, 1).unwrap();
    let read = |rank: &str| ClusterInfo::builder().node(only).vars(task(rank));
    assert_eq!(read("0").read().unwrap().world_size(), 1);
    let error = read("1").read().unwrap_err().to_string();
    assert!(error.starts_with("Slurm: SLURM_PROCID=\"1\": node 0 of 1 is asked for"), "{error}");
    assert!(error.contains("MPIENV_LAUNCHER=alone for a job of its own"), "{error}");
    let alone = task("1").into_iter().chain([("MPIENV_LAUNCHER".to_owned(), "alone".to_owned())]);
    assert_eq!(ClusterInfo::builder().node(only).vars(alone).read().unwrap().world_size(), 1);
}
