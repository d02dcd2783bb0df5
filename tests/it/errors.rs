//! Broken environments and the exact words that each gets.

use mpienv::ClusterInfo;

const MPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("MASTER_ADDR", "node-0"),
];

/// The variables of a sound rank, with some changed and those of value "-" taken away.
fn changed(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut vars: Vec<(String, String)> = MPI.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    for (name, value) in changes {
        vars.retain(|(found, _)| found != name);
        if *value != "-" {
            vars.push((name.to_string(), value.to_string()));
        }
    }
    vars
}

/// What goes wrong with these variables: in reading them, or in exporting them.
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
            format!("Open MPI: OMPI_COMM_WORLD_SIZE: not set, though OMPI_COMM_WORLD_RANK=\"1\" is; {start} OMPI_COMM_WORLD_RANK"),
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", " ")],
            format!("Open MPI: OMPI_COMM_WORLD_RANK: not set, though OMPI_COMM_WORLD_SIZE=\"4\" is; {start} OMPI_COMM_WORLD_SIZE"),
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_SIZE", "-")],
            format!("Open MPI: OMPI_COMM_WORLD_LOCAL_SIZE: not set, though OMPI_COMM_WORLD_RANK=\"1\" is; {start} OMPI_COMM_WORLD_RANK"),
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
            format!("Open MPI: OMPI_COMM_WORLD_RANK=\"4\": ranks of a group of 4 are 0 to 3; {start} OMPI_COMM_WORLD_RANK {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_SIZE", "0")],
            format!("Open MPI: OMPI_COMM_WORLD_SIZE=\"0\": a group has at least one rank; {start} OMPI_COMM_WORLD_SIZE {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_RANK", "2")],
            format!("Open MPI: OMPI_COMM_WORLD_LOCAL_RANK=\"2\": ranks of a group of 2 are 0 to 1; {start} OMPI_COMM_WORLD_LOCAL_RANK {left}"),
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_SIZE", "5")],
            format!("Open MPI: OMPI_COMM_WORLD_LOCAL_SIZE=\"5\": a node of 5 processes cannot be part of a world of 4; {start} OMPI_COMM_WORLD_LOCAL_SIZE {left}"),
        ),
        (
            &[("MASTER_ADDR", "-")],
            "Open MPI: MASTER_ADDR: the 4 ranks are not known to be on one node, and nothing names rank 0's host; \
             give rank 0's host to all ranks: `mpirun -x MASTER_ADDR=HOST`, --master-addr HOST, MPIENV_MASTER_ADDR=HOST, or --ask-pmix"
                .to_owned(),
        ),
        (
            &[("MASTER_ADDR", "-"), ("AZ_BATCHAI_MPI_MASTER_NODE", "localhost")],
            "Open MPI: MASTER_ADDR: the 4 ranks are not known to be on one node, and nothing names rank 0's host; \
             give rank 0's host to all ranks: `mpirun -x MASTER_ADDR=HOST`, --master-addr HOST, MPIENV_MASTER_ADDR=HOST, or --ask-pmix"
                .to_owned(),
        ),
        (
            &[("AZ_BATCH_MASTER_NODE", ":")],
            "AZ_BATCH_MASTER_NODE=\":\": not a host: the host is empty; correct AZ_BATCH_MASTER_NODE or unset it".to_owned(),
        ),
        (
            &[("AZ_BATCH_MASTER_NODE", "host:99999")],
            "AZ_BATCH_MASTER_NODE=\"host:99999\": not a host: \"99999\" after the colon is no port from 1 to 65535; \
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
            &[("MASTER_ADDR", "1001")],
            "MASTER_ADDR=\"1001\": not a host: it reads as an IPv4 address and is none; correct MASTER_ADDR or unset it".to_owned(),
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
            &[("MPIENV_LAUNCHER", "mpirun")],
            format!(
                "MPIENV_LAUNCHER=\"mpirun\": no launcher has this name; unset MPIENV_LAUNCHER or set it to one of {}",
                mpienv::Launcher::ALL.iter().map(|launcher| launcher.name()).collect::<Vec<_>>().join(", ")
            ),
        ),
        (
            &[("MPIENV_LAUNCHER", "user")],
            "MPIENV_LAUNCHER=\"user\": RANK and WORLD_SIZE is asked for, and its variables are not set; \
             ask for the launcher that started this process, or for none (unset MPIENV_LAUNCHER)"
                .to_owned(),
        ),
        (
            &[("MPIENV_LAUNCHER", "user"), ("RANK", "2")],
            "RANK and WORLD_SIZE: WORLD_SIZE: not set, though RANK=\"2\" is; \
             set RANK, WORLD_SIZE and what goes with them as one set, or unset RANK"
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
        "Open MPI: workers are started by one process on each node, and this is not known to be such a process: \
         2 ranks of the job are on its node; \
         start one process on each node: `mpirun --map-by ppr:1:node`; on Azure process_count_per_node = 1"
    );
    let node = [("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
    let info = ClusterInfo::from_vars(changed(&node)).unwrap();
    for workers in [0, u32::MAX] {
        assert_eq!(
            info.workers(workers).unwrap_err().to_string(),
            format!(
                "4 nodes of {workers} workers are more than a world can have; start from 1 to 4294967295 workers in all"
            )
        );
    }
}

#[test]
fn two_sets_of_ranks_that_differ_are_a_finding_with_both() {
    let info = ClusterInfo::from_vars(changed(&[("RANK", "0"), ("WORLD_SIZE", "2")])).unwrap();
    assert_eq!((info.rank(), info.world_size()), (1, 4));
    let [finding] = info.findings() else { panic!("{:?}", info.findings()) };
    assert_eq!(finding.code, "launchers-disagree");
    assert_eq!(
        finding.what,
        "Open MPI says rank 1 of 4 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE); \
         RANK and WORLD_SIZE says rank 0 of 2 (RANK, WORLD_SIZE)"
    );
    let info = ClusterInfo::from_vars(changed(&[("RANK", "1"), ("WORLD_SIZE", "4")])).unwrap();
    assert_eq!(info.findings(), [], "exported twice is no disagreement");
}

#[test]
fn whoever_names_rank_0s_host_is_not_told_that_mpiruns_is_another() {
    let uri = |address: &str| format!("1.0;tcp://{address}:5000");
    let (mpirun, rank_0) = (uri("10.0.0.9"), uri("10.0.0.4"));
    let doubted = |master: &str| {
        let changes = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_MCA_orte_hnp_uri", &mpirun),
            ("OMPI_MCA_orte_local_daemon_uri", &rank_0),
            ("MASTER_ADDR", master),
        ];
        let info = ClusterInfo::from_vars(changed(&changes)).unwrap();
        info.findings().iter().any(|finding| finding.code == "master-not-rank-0")
    };
    assert!(doubted("-"));
    // Exported by a rank that derived it so.
    assert!(doubted("10.0.0.9"));
    assert!(!doubted("10.0.0.4"));
}

#[test]
fn more_nodes_than_ranks_are_not_believed() {
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_NNODES", "5")];
    let flux = [("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "4"), ("FLUX_JOB_NNODES", "0"), ("FLUX_TASK_LOCAL_ID", "0")];
    for vars in [slurm, flux] {
        let info = ClusterInfo::from_vars(vars).unwrap();
        assert_eq!((info.world_size(), info.node_count()), (4, None), "{vars:?}");
    }
    let info = ClusterInfo::from_vars([&slurm[..3], &[("SLURM_NNODES", "4")]].concat()).unwrap();
    assert_eq!(info.node_count(), Some(4));
}
