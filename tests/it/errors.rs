//! Broken environments and the exact error message for each.

use crate::support::tool::clean;
use mpienv::{ClusterInfo, Host, Launcher, Rank};

const MPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("MASTER_ADDR", "node-0"),
];

/// The variables of a valid rank, with some changed. Those with the value "-" are removed.
pub(crate) fn changed(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut vars: Vec<(String, String)> =
        MPI.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    for (name, value) in changes {
        vars.retain(|(found, _)| found != name);
        if *value != "-" {
            vars.push((name.to_string(), value.to_string()));
        }
    }
    vars
}

/// The error for these variables: from reading them, or from exporting them.
fn error(changes: &[(&str, &str)]) -> String {
    match ClusterInfo::from_vars(changed(changes)).and_then(|info| info.exports()) {
        Ok(exports) => panic!("{changes:?} gave {exports:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_fault_names_launcher_variable_value_reason_and_remedy() {
    let start = "start the process with mpirun, or unset";
    let left = "if it is left from another job";
    let number = "not a whole number from 0 to 4294967295";
    let table: &[(&[(&str, &str)], String)] = &[
        (
            &[("OMPI_COMM_WORLD_SIZE", "-")],
            format!("Open MPI: OMPI_COMM_WORLD_SIZE is not set, although OMPI_COMM_WORLD_RANK=\"1\" is; {start} OMPI_COMM_WORLD_RANK"),
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", " ")],
            format!("Open MPI: OMPI_COMM_WORLD_RANK is not set, although OMPI_COMM_WORLD_SIZE=\"4\" is; {start} OMPI_COMM_WORLD_SIZE"),
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_SIZE", "-")],
            format!("Open MPI: OMPI_COMM_WORLD_LOCAL_SIZE is not set, although OMPI_COMM_WORLD_RANK=\"1\" is; {start} OMPI_COMM_WORLD_RANK"),
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", "-1")],
            format!("Open MPI: OMPI_COMM_WORLD_RANK=\"-1\": {number}; {start} OMPI_COMM_WORLD_RANK {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", "+1")],
            format!("Open MPI: OMPI_COMM_WORLD_RANK=\"+1\": {number}; {start} OMPI_COMM_WORLD_RANK {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_SIZE", "4294967296")],
            format!("Open MPI: OMPI_COMM_WORLD_SIZE=\"4294967296\": {number}; {start} OMPI_COMM_WORLD_SIZE {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_RANK", "one\u{1b}[31m")],
            format!("Open MPI: OMPI_COMM_WORLD_LOCAL_RANK=\"one\\u{{1b}}[31m\": {number}; {start} OMPI_COMM_WORLD_LOCAL_RANK {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", "4")],
            format!("Open MPI: OMPI_COMM_WORLD_RANK=\"4\": must be from 0 to 3, because the size is 4; {start} OMPI_COMM_WORLD_RANK {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_SIZE", "0")],
            format!("Open MPI: OMPI_COMM_WORLD_SIZE=\"0\": must be at least 1; {start} OMPI_COMM_WORLD_SIZE {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_RANK", "2")],
            format!("Open MPI: OMPI_COMM_WORLD_LOCAL_RANK=\"2\": must be from 0 to 1, because the size is 2; {start} OMPI_COMM_WORLD_LOCAL_RANK {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_SIZE", "5")],
            format!("Open MPI: OMPI_COMM_WORLD_LOCAL_SIZE=\"5\": this node has 5 processes, but the whole job has only 4; {start} OMPI_COMM_WORLD_LOCAL_SIZE {left}"),
        ),
        (
            &[("MASTER_ADDR", "-")],
            "Open MPI: MASTER_ADDR: the 4 ranks may be on several nodes, and no variable names rank 0's host; \
             give rank 0's host to all ranks: `mpirun -x MASTER_ADDR=HOST`"
                .to_owned(),
        ),
        (
            &[("MASTER_ADDR", "-"), ("AZ_BATCHAI_MPI_MASTER_NODE", "localhost")],
            "Open MPI: MASTER_ADDR: the 4 ranks may be on several nodes, and no variable names rank 0's host; \
             give rank 0's host to all ranks: `mpirun -x MASTER_ADDR=HOST`"
                .to_owned(),
        ),
        (
            &[("AZ_BATCH_MASTER_NODE", ":")],
            "AZ_BATCH_MASTER_NODE=\":\": not a host: the host is empty; correct AZ_BATCH_MASTER_NODE or unset it".to_owned(),
        ),
        (
            &[("AZ_BATCH_MASTER_NODE", "host:99999")],
            "AZ_BATCH_MASTER_NODE=\"host:99999\": not a host: \"99999\" after the colon is not a port from 1 to 65535; \
             correct AZ_BATCH_MASTER_NODE or unset it"
                .to_owned(),
        ),
        (
            &[("AZ_BATCH_MASTER_NODE", "$(reboot):6000")],
            "AZ_BATCH_MASTER_NODE=\"$(reboot):6000\": not a host: '$' cannot be part of a host name; \
             correct AZ_BATCH_MASTER_NODE or unset it"
                .to_owned(),
        ),
        (
            &[("MASTER_ADDR", "node/0")],
            "MASTER_ADDR=\"node/0\": not a host: '/' cannot be part of a host name; correct MASTER_ADDR or unset it".to_owned(),
        ),
        (
            &[("MASTER_ADDR", "10.0.0.4:29500")],
            "MASTER_ADDR=\"10.0.0.4:29500\": not a host: it has a port; give the host alone, and the port 29500 as MASTER_PORT; \
             correct MASTER_ADDR or unset it"
                .to_owned(),
        ),
        (
            &[("MPIENV_MASTER_ADDR", "http://node-0:80")],
            "MPIENV_MASTER_ADDR=\"http://node-0:80\": not a host: it is a URL; give only the host's name or address; \
             correct MPIENV_MASTER_ADDR or unset it"
                .to_owned(),
        ),
        (
            &[("MASTER_ADDR", "gpu[01-04]")],
            "MASTER_ADDR=\"gpu[01-04]\": not a host: it is a list of hosts; give only one, the host of rank 0; \
             correct MASTER_ADDR or unset it"
                .to_owned(),
        ),
        (
            &[("MASTER_ADDR", "1001")],
            "MASTER_ADDR=\"1001\": not a host: it looks like an IPv4 address but is not one; correct MASTER_ADDR or unset it".to_owned(),
        ),
        (
            &[("MASTER_ADDR", "[fd00::1]")],
            "MASTER_ADDR=\"[fd00::1]\": not a host: it is in brackets, which only an address with a port has: give it without \
             them; correct MASTER_ADDR or unset it"
                .to_owned(),
        ),
        (
            &[("MASTER_ADDR", "[fd00::1]:29500")],
            "MASTER_ADDR=\"[fd00::1]:29500\": not a host: it has a port; give the host alone, and the port 29500 as \
             MASTER_PORT; correct MASTER_ADDR or unset it"
                .to_owned(),
        ),
        (
            &[("MASTER_ADDR", "node-0:")],
            "MASTER_ADDR=\"node-0:\": not a host: \"\" after the colon is not a port from 1 to 65535; correct MASTER_ADDR or \
             unset it"
                .to_owned(),
        ),
        (
            &[("MASTER_PORT", "0")],
            "MASTER_PORT=\"0\": not a port from 1 to 65535; correct MASTER_PORT or unset it".to_owned(),
        ),
        (
            &[("MASTER_PORT", "65536")],
            "MASTER_PORT=\"65536\": not a port from 1 to 65535; correct MASTER_PORT or unset it".to_owned(),
        ),
        (
            &[("MASTER_PORT", "tcp://10.0.0.5:29500")],
            "MASTER_PORT=\"tcp://10.0.0.5:29500\": not a port from 1 to 65535; Kubernetes sets MASTER_PORT in all pods if a \
             Service has the name before its _PORT: set `enableServiceLinks: false` in the pods' template, or unset MASTER_PORT"
                .to_owned(),
        ),
        (
            &[("MPIENV_LAUNCHER", "srun")],
            "MPIENV_LAUNCHER=\"srun\": unknown launcher; its name is slurm".to_owned(),
        ),
        (
            &[("MPIENV_LAUNCHER", "Slrum")],
            "MPIENV_LAUNCHER=\"Slrum\": unknown launcher; did you mean slurm?".to_owned(),
        ),
        (
            &[("MPIENV_LAUNCHER", "sun")],
            format!(
                "MPIENV_LAUNCHER=\"sun\": unknown launcher; unset MPIENV_LAUNCHER or set it to one of {}",
                mpienv::Launcher::ALL.iter().map(|launcher| launcher.name()).collect::<Vec<_>>().join(", ")
            ),
        ),
        (
            &[("MPIENV_LAUNCHER", "user")],
            "MPIENV_LAUNCHER=\"user\": user (RANK and WORLD_SIZE) is selected, but its variables do not show that it \
             started this process; select the launcher that started this process, or unset MPIENV_LAUNCHER"
                .to_owned(),
        ),
        (
            &[("MPIENV_LAUNCHER", "slurm"), ("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "8")],
            "MPIENV_LAUNCHER=\"slurm\": slurm (Slurm) is selected, but its variables do not show that it started this \
             process; start the program with `srun`, which starts every task; or select the launcher that started this \
             process, or unset MPIENV_LAUNCHER"
                .to_owned(),
        ),
        (
            &[("MPIENV_LAUNCHER", "user"), ("RANK", "2")],
            "WORLD_SIZE is not set, although RANK=\"2\" is; \
             set RANK, WORLD_SIZE and the related variables together, or unset RANK"
                .to_owned(),
        ),
    ];
    for (changes, expected) in table {
        assert_eq!(error(changes), *expected, "{changes:?}");
    }
}

#[test]
fn a_very_long_value_is_cut_in_the_text_and_whole_in_the_error() {
    let long = "9".repeat(100_000);
    let error = ClusterInfo::from_vars(changed(&[("OMPI_COMM_WORLD_RANK", &long)])).unwrap_err();
    assert_eq!(error.value(), Some(long.as_str()));
    assert!(error.to_string().len() < 400, "{error}");
}

#[test]
fn workers_are_refused_where_the_node_has_other_ranks() {
    let info = ClusterInfo::from_vars(changed(&[])).unwrap();
    assert_eq!(
        info.workers(2).unwrap_err().to_string(),
        "Open MPI: this process cannot start workers, because it must be the job's only process on its node: \
         2 ranks of the job are on its node; \
          start one process on each node: `mpirun --map-by ppr:1:node`; on Azure `process_count_per_instance: 1`; \
          to start an independent job, set MPIENV_LAUNCHER=alone"
    );
    let node = [("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
    let info = ClusterInfo::from_vars(changed(&node)).unwrap();
    for workers in [0, u32::MAX] {
        assert_eq!(
            info.workers(workers).unwrap_err().to_string(),
            format!(
                "a job cannot have 4 nodes with {workers} workers on each; start 1 to 65536 workers on each node, \
                 and at most 4294967295 in all"
            )
        );
    }
}

#[test]
fn a_setting_that_is_empty_or_no_value_of_its_variable_is_refused_with_what_it_may_be() {
    let error = |name: &str, value: &str| {
        let vars = changed(&[("MASTER_ADDR", "-"), (name, value)]);
        ClusterInfo::from_vars(vars).and_then(|info| info.exports()).unwrap_err().to_string()
    };
    for (name, value, why) in [
        ("MPIENV_ASK", "maybe", "\"maybe\": not a whole number from 0"),
        ("MPIENV_QUIET", "maybe", "\"maybe\": not 0 or 1 (silences warnings)"),
        ("MPIENV_REQUIRE_LAUNCHER", "yes", "\"yes\": not 0 or 1 (refuses a process"),
        (
            "MPIENV_PORT_RANGE",
            "30000-20000",
            "the range runs backwards: the lower port comes first",
        ),
        ("MASTER_ADDR", "", "MASTER_ADDR is set but empty, and the 4 ranks may be on several"),
        ("MPIENV_MASTER_ADDR", " ", "MPIENV_MASTER_ADDR is set but empty"),
    ] {
        let error = error(name, value);
        assert!(error.contains(name) && error.contains(why), "{error}");
    }
}

/// Rank 0 of four in a step on two nodes.
const STEP: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "5"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "0"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "0"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "gpu1,gpu10"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
];

#[test]
fn numbers_of_a_step_that_contradict_each_other_are_refused_with_both() {
    let read = |vars: &[(&str, &str)]| {
        ClusterInfo::from_vars(STEP.iter().chain(vars).copied()).map_err(|error| error.to_string())
    };
    for (vars, one, other) in [
        (&[("SLURM_STEP_NUM_NODES", "3")][..], "NUM_NODES=\"3\"", "NODELIST=\"gpu1,gpu10\""),
        (&[("SLURM_LOCALID", "1")], "SLURM_LOCALID=\"1\"", "SLURM_PROCID=\"0\""),
        (&[("SLURM_PROCID", "3")], "SLURM_PROCID=\"3\"", "TASKS_PER_NODE=\"2(x2)\""),
        (
            &[("SLURM_PROCID", "3"), ("SLURM_NODEID", "1"), ("SLURM_GTIDS", "2,3")],
            "SLURM_PROCID=\"3\"",
            "SLURM_GTIDS=\"2,3\"",
        ),
    ] {
        let error = read(vars).unwrap_err();
        assert!(error.contains(one) && error.contains(other), "{error}");
        assert!(error.contains("start the process with srun, or unset"), "{error}");
    }
    for [rank, local, node] in [["1", "0", "1"], ["2", "1", "0"], ["2", "0", "1"], ["3", "1", "1"]]
    {
        let place = [("SLURM_PROCID", rank), ("SLURM_LOCALID", local), ("SLURM_NODEID", node)];
        read(&place).unwrap();
    }
}

#[test]
fn a_task_of_several_that_has_lost_its_rank_is_refused_in_a_step_only() {
    let read = |step: &str, size: &str| {
        let kept = STEP.iter().copied().filter(|(name, _)| *name != "SLURM_PROCID");
        ClusterInfo::from_vars(
            kept.chain([("SLURM_STEP_ID", step), ("SLURM_STEP_NUM_TASKS", size)]),
        )
    };
    let error = read("0", "2").unwrap_err();
    assert_eq!((error.launcher(), error.variable()), (Some(Launcher::Slurm), Some("SLURM_PROCID")));
    assert_eq!(
        error.to_string(),
        "Slurm: SLURM_PROCID is not set, although SLURM_STEP_NUM_TASKS=\"2\" is; start the process with srun, and do not \
         unset SLURM_PROCID; or set MPIENV_LAUNCHER=alone for a process by itself"
    );
    // The only task of a step, and the shell of salloc, which has the number of no ordinary step.
    let task = read("0", "1").unwrap();
    let finding = &task.findings()[0];
    assert_eq!((task.world_size(), finding.code), (1, "place-unknown"));
    assert_eq!(finding.what, "SLURM_STEP_NUM_TASKS=\"1\" is set, but SLURM_PROCID of Slurm is not");
    let shell = read("4294967290", "2").unwrap();
    assert_eq!((shell.world_size(), shell.findings()[0].code), (1, "slurm-not-a-task"));
}

#[test]
fn a_pod_whose_variables_count_something_else_than_pods_is_refused_with_both() {
    let pod = |node: Option<[u32; 2]>, vars: &[(&str, &str)]| {
        let builder = ClusterInfo::builder().vars(vars.iter().copied());
        let asked = |[rank, nodes]: [u32; 2]| Rank::new(rank, nodes).unwrap();
        let builder = node.map(asked).into_iter().fold(builder, |builder, node| builder.node(node));
        builder.read().map_err(|error| error.to_string())
    };
    let [index, first] = ["1", "0"].map(|number| ("JOB_COMPLETION_INDEX", number));
    let [two, four] = ["2", "4"].map(|size| ("WORLD_SIZE", size));
    let [local, nodes] = [("LOCAL_WORLD_SIZE", "2"), ("NNODES", "4")];
    for (node, vars, one, other) in [
        (None, &[first, two, nodes][..], "NNODES=\"4\"", "WORLD_SIZE=\"2\""),
        (None, &[index, four, local], "WORLD_SIZE=\"4\"", "LOCAL_WORLD_SIZE=\"2\""),
        (Some([0, 4]), &[index, four], "JOB_COMPLETION_INDEX=\"1\"", "node 0 of 4"),
        (Some([0, 2]), &[index], "JOB_COMPLETION_INDEX=\"1\"", "node 0 of 2"),
    ] {
        let error = pod(node, vars).unwrap_err();
        assert!(error.contains(one) && error.contains(other) && error.contains("; "), "{error}");
    }
    // Processes of several on each pod, and the second of two groups of two pods.
    let info = pod(None, &[index, ("WORLD_SIZE", "8"), local, nodes]).unwrap();
    assert_eq!(info.rank(), Rank::new(1, 4).unwrap());
    assert_eq!(pod(Some([3, 4]), &[index, two]).unwrap().rank(), Rank::new(3, 4).unwrap());
}

#[test]
fn a_slurm_step_without_its_list_of_hosts_names_the_variable_that_is_missing() {
    let info = ClusterInfo::from_vars([("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4")]).unwrap();
    let error = info.master_addr().unwrap_err().to_string();
    assert!(error.contains("rank 0's host: SLURM_STEP_NODELIST is not set; give"), "{error}");
}

#[test]
fn a_master_that_the_list_of_hosts_contradicts_is_a_warning_with_rank_0s_host() {
    let warned = |master: &str| {
        let vars = STEP.iter().copied().chain([("MASTER_ADDR", master)]);
        let warnings = ClusterInfo::from_vars(vars).unwrap().warnings();
        warnings.into_iter().find(|finding| finding.code == "master-not-rank-0")
    };
    for (master, remedy) in [
        ("oldnode", "set MPIENV_MASTER_ADDR=oldnode"),
        ("gpu10", "unset MASTER_ADDR: mpienv then uses gpu1"),
        ("GPU10-ib0.cluster", "unset MASTER_ADDR"),
    ] {
        let found = warned(master).unwrap_or_else(|| panic!("{master}"));
        let what = format!(
            "MASTER_ADDR={}, but rank 0 runs on gpu1, the first host of SLURM_STEP_NODELIST",
            master.parse::<Host>().unwrap()
        );
        assert_eq!(found.what, what);
        assert!(found.remedy.contains(remedy), "{found}");
    }
    for own in ["gpu1", "GPU1.cluster.example", "gpu1-ib0", "gpu1ib", "ib-gpu1", "10.0.0.7"] {
        assert_eq!(warned(own), None, "{own}");
    }
    // Slurm's list is not in the order of the ranks, and an override is deliberate.
    for vars in [
        [("SLURM_DISTRIBUTION", "arbitrary"), ("MASTER_ADDR", "gpu10")],
        [("MPIENV_MASTER_ADDR", "oldnode"), ("MASTER_ADDR", "gpu10")],
    ] {
        let info = ClusterInfo::from_vars(STEP.iter().copied().chain(vars)).unwrap();
        assert!(info.warnings().iter().all(|finding| finding.code != "master-not-rank-0"));
    }
}

#[test]
fn two_sets_of_ranks_that_differ_are_a_finding_with_both() {
    let info = ClusterInfo::from_vars(changed(&[("RANK", "0"), ("WORLD_SIZE", "2")])).unwrap();
    assert_eq!(info.rank(), Rank::new(1, 4).unwrap());
    let [finding] = info.findings() else { panic!("{:?}", info.findings()) };
    assert_eq!(finding.code, "launchers-disagree");
    assert_eq!(
        finding.what,
        "Open MPI says rank 1 of 4 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE); \
         RANK and WORLD_SIZE say rank 0 of 2 (RANK, WORLD_SIZE)"
    );
    let info = ClusterInfo::from_vars(changed(&[("RANK", "1"), ("WORLD_SIZE", "4")])).unwrap();
    assert_eq!(info.findings(), [], "exporting twice is not a disagreement");
}

#[test]
fn an_override_of_rank_0s_host_is_not_compared_with_mpiruns() {
    let uri = |address: &str| format!("1.0;tcp://{address}:5000");
    let (mpirun, rank_0) = (uri("10.0.0.9"), uri("10.0.0.4"));
    let read = |master: &str| {
        let changes = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_MCA_orte_hnp_uri", &mpirun),
            ("OMPI_MCA_orte_local_daemon_uri", &rank_0),
            ("MASTER_ADDR", master),
        ];
        ClusterInfo::from_vars(changed(&changes)).unwrap()
    };
    let doubted = |master: &str| {
        read(master).findings().iter().any(|finding| finding.code == "master-not-rank-0")
    };
    let error = read("-").master_addr().unwrap_err().to_string();
    assert!(
        error.contains("rank 0 is on another one, whose daemon is 1.0;tcp://10.0.0.4"),
        "{error}"
    );
    assert!(doubted("10.0.0.9"));
    assert!(!doubted("10.0.0.4"));
}

#[test]
fn more_nodes_than_ranks_are_not_believed() {
    let slurm = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_NNODES", "5"),
    ];
    let flux = [
        ("FLUX_TASK_RANK", "0"),
        ("FLUX_JOB_SIZE", "4"),
        ("FLUX_JOB_NNODES", "0"),
        ("FLUX_TASK_LOCAL_ID", "0"),
    ];
    for vars in [slurm, flux] {
        let info = ClusterInfo::from_vars(vars).unwrap();
        assert_eq!((info.world_size(), info.node_count()), (4, None), "{vars:?}");
    }
    let info = ClusterInfo::from_vars([&slurm[..3], &[("SLURM_NNODES", "4")]].concat()).unwrap();
    assert_eq!(info.node_count(), Some(4));
}

#[test]
fn a_script_that_evaluates_an_invalid_export_stops() {
    let output = clean("sh")
        .args(["-c", "set -e; eval \"$(mpienv export --fro jax)\"; echo went on"])
        .output()
        .unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    for words in [&["launch"][..], &["exprt"], &["help", "exprt"], &["--version"]] {
        let output = clean("mpienv").args(words).output().unwrap();
        assert!(
            !String::from_utf8_lossy(&output.stdout).contains("false"),
            "{words:?}: {output:?}"
        );
    }
}
