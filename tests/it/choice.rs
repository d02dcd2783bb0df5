//! Which launcher mpienv uses, and what its variables mean, for cases that no recording covers.

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
        (ONE_OF_SRUN, &[("JAX_PROCESS_ID", "2")], "JAX_PROCESS_ID"),
        (ONE_OF_MPIRUN, &[("SLURM_PROCID", "3"), ("SLURM_STEP_ID", "0")], "SLURM_PROCID"),
        (
            ONE_OF_MPIRUN,
            &[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "5"), ("LOCAL_WORLD_SIZE", "8")],
            "RANK",
        ),
        (EXPORTED, &[("JOB_COMPLETION_INDEX", "3")], "JOB_COMPLETION_INDEX"),
        (EXPORTED, &[("JOB_COMPLETION_INDEX", "0")], "JOB_COMPLETION_INDEX"),
        (EXPORTED, &[("SKYPILOT_NODE_RANK", "1")], "SKYPILOT_NODE_RANK"),
        (EXPORTED, &[("NNODES", "4")], "NNODES"),
        (EXPORTED, &[("SM_HOSTS", "[\"a\",\"b\"]")], "SM_HOSTS"),
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
        assert_eq!(warnings[0].code, "launchers-disagree", "{more:?}: {warnings:?}");
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
        (&[], &[("MPIENV_LAUNCHER", "alone"), ("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")]),
    ] {
        assert_eq!(read(&[place, more]).warnings(), [], "{place:?} {more:?}");
    }
}

#[test]
fn ranks_that_inherit_a_request_to_be_alone_say_so_and_a_program_that_asks_does_not() {
    let ranks: Vars = &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let ranks = [ONE_OF_MPIRUN, ranks, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
    let asked = read(&[&ranks, &[("MPIENV_LAUNCHER", "alone")]]);
    let [warning] = &asked.warnings()[..] else { panic!("{:?}", asked.findings()) };
    assert_eq!(warning.code, "launchers-disagree");
    assert!(
        warning
            .what
            .starts_with("MPIENV_LAUNCHER=alone says rank 0 of 1; Open MPI says rank 1 of 2")
    );
    assert!(warning.remedy.starts_with("unset MPIENV_LAUNCHER"), "{warning}");
    let by_program = ClusterInfo::builder().vars(ranks).launcher(Launcher::Alone).read().unwrap();
    assert_eq!((by_program.world_size(), by_program.warnings()), (1, vec![]));
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
    // A batch script's shell has replaced $SLURM_NODEID before srun started.
    let error = asked(task("1")).unwrap_err().to_string();
    assert!(error.starts_with("Slurm: SLURM_NODEID=\"1\": node 0 of 2 is asked for"), "{error}");
    let error = asked(of_mpirun("1")).unwrap_err().to_string();
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
