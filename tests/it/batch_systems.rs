//! Batch systems and launchers that run in their jobs, in the variables that each one sets.

use std::path::Path;

use super::platforms::{Pairs, error, read};
use crate::support::tool::clean;
use mpienv::collective::Group;
use mpienv::mpi::World;
use mpienv::{ClusterInfo, Launcher, Severity};

#[test]
fn openpbs_pbsdsh() {
    let task: Pairs = &[("PBS_JOBID", "8.a"), ("PBS_NODENUM", "1"), ("PBS_TASKNUM", "20000001")];
    let error = error(task);
    assert!(error.contains("PBS_TASKNUM=\"20000001\"") && error.contains("mpiexec"), "{error}");
    let script = read(&[("PBS_JOBID", "8.a"), ("PBS_NODENUM", "0"), ("PBS_TASKNUM", "1")]).unwrap();
    let [finding] = script.findings() else { panic!("{:?}", script.findings()) };
    assert_eq!((finding.code, finding.severity), ("pbs-not-a-task", Severity::Warning));
    assert!(
        finding.remedy.contains("mpirun") && finding.remedy.contains("MPIENV_LAUNCHER=alone"),
        "{finding}"
    );
    // Torque tells how many processes the job has; each of its numbers may be the only one above 1.
    for (vars, severity) in [
        (&[("PBS_NP", "1"), ("PBS_NUM_NODES", "1")][..], Severity::Note),
        (&[("PBS_NP", "8")], Severity::Warning),
        (&[("PBS_NUM_NODES", "2"), ("PBS_NUM_PPN", "1")], Severity::Warning),
        (&[("PBS_NUM_NODES", "1"), ("PBS_NP", "8"), ("PBS_NUM_PPN", "1")], Severity::Warning),
        // `nodes=1:ppn=8` is also how to ask for the cores of one multithreaded program.
        (&[("PBS_NUM_NODES", "1"), ("PBS_NP", "8"), ("PBS_NUM_PPN", "8")], Severity::Note),
    ] {
        let info = read(&[&[("PBS_JOBID", "8.a")], vars].concat()).unwrap();
        assert_eq!(
            (info.findings()[0].code, info.findings()[0].severity),
            ("pbs-not-a-task", severity),
            "{vars:?}"
        );
    }
}

#[test]
fn scripts_of_other_batch_systems() {
    let cases: [(Pairs, &str, Severity); 15] = [
        // `-pe smp 8` is also how to ask for the cores of one multithreaded program.
        (
            &[("PE_HOSTFILE", "/a"), ("NSLOTS", "8"), ("NHOSTS", "1")],
            "grid-engine-not-a-task",
            Severity::Note,
        ),
        (
            &[("PE_HOSTFILE", "/a"), ("NSLOTS", "8"), ("NHOSTS", "2")],
            "grid-engine-not-a-task",
            Severity::Warning,
        ),
        (&[("SGE_O_HOST", "a"), ("NSLOTS", "8")], "grid-engine-not-a-task", Severity::Warning),
        (
            &[("SGE_O_HOST", "a"), ("NSLOTS", "1"), ("NHOSTS", "1")],
            "grid-engine-not-a-task",
            Severity::Note,
        ),
        (&[("COBALT_JOBID", "7"), ("COBALT_JOBSIZE", "2")], "cobalt-not-a-task", Severity::Warning),
        (&[("COBALT_JOBID", "7"), ("COBALT_JOBSIZE", "1")], "cobalt-not-a-task", Severity::Note),
        (
            &[("PJM_JOBID", "7"), ("PJM_NODE", "1"), ("PJM_MPI_PROC", "4")],
            "pjm-not-a-task",
            Severity::Warning,
        ),
        (
            &[("PJM_JOBID", "7"), ("PJM_NODE", "4"), ("PJM_MPI_PROC", "1")],
            "pjm-not-a-task",
            Severity::Warning,
        ),
        (&[("PJM_JOBID", "7"), ("PJM_NODE", "1")], "pjm-not-a-task", Severity::Note),
        (&[("K_MPI_JOB_ROLE", "launcher")], "mpijob-not-a-task", Severity::Warning),
        (&[("K_MPI_JOB_ROLE", "worker")], "mpijob-not-a-task", Severity::Warning),
        (
            &[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "a 4"), ("LSF_PM_TASKID", "3")],
            "lsf-not-a-task",
            Severity::Warning,
        ),
        (&[("SLURM_JOB_ID", "7"), ("SLURM_NODEID", "1")], "slurm-not-a-task", Severity::Warning),
        (
            &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS_PER_NODE", "2")],
            "slurm-not-a-task",
            Severity::Warning,
        ),
        // A heterogeneous job, whose first component has one task.
        (
            &[
                ("SLURM_JOB_ID", "7"),
                ("SLURM_NTASKS", "1"),
                ("SLURM_NNODES", "1"),
                ("SLURM_HET_SIZE", "2"),
            ],
            "slurm-not-a-task",
            Severity::Warning,
        ),
    ];
    for (vars, code, severity) in cases {
        let info = read(vars).unwrap();
        let [finding] = info.findings() else { panic!("{vars:?}: {:?}", info.findings()) };
        assert_eq!((finding.code, finding.severity), (code, severity), "{vars:?}");
        let asked = read(&[vars, &[("MPIENV_LAUNCHER", "alone")]].concat()).unwrap();
        assert_eq!(asked.findings(), [], "{vars:?}");
        // A launcher inside the job gives the place.
        let ranks = [vars, &[("PMI_RANK", "1"), ("PMI_SIZE", "2")]].concat();
        assert_eq!(read(&ranks).unwrap().world_size(), 2, "{vars:?}");
    }
    // These names are too common to show Grid Engine.
    assert_eq!(read(&[("JOB_ID", "7"), ("NSLOTS", "8")]).unwrap().findings(), []);
}

#[test]
fn a_step_whose_two_sizes_differ_is_said_to_be_an_outer_one() {
    let step: Pairs = &[
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
    ];
    let codes = |size: &str| {
        let info = read(&[step, &[("SLURM_NTASKS", size)]].concat()).unwrap();
        assert_eq!(info.world_size(), 1);
        info.findings().iter().map(|finding| finding.code).collect::<Vec<_>>()
    };
    assert_eq!(codes("3"), ["slurm-sizes-differ"]);
    assert_eq!(codes("1"), [""; 0]);
}

#[test]
fn lsf_batch_script() {
    let script = read(&[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "batch1 1 a 42 b 42")]).unwrap();
    let [finding] = script.findings() else { panic!("{:?}", script.findings()) };
    assert_eq!((finding.code, finding.severity), ("lsf-not-a-task", Severity::Warning));
    assert!(
        finding.what.contains("LSB_MCPU_HOSTS=\"batch1 1 a 42 b 42\"")
            && finding.remedy.contains("jsrun")
    );
    let severity = |vars: Pairs| read(vars).unwrap().findings()[0].severity;
    // `-n 8 -R span[hosts=1]` is also how to ask for the cores of one multithreaded program.
    assert_eq!(severity(&[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "a 8")]), Severity::Note);
    // These slots may be on several hosts.
    assert_eq!(severity(&[("LSB_JOBID", "7"), ("LSB_DJOB_NUMPROC", "8")]), Severity::Warning);
    assert_eq!(severity(&[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "a 1")]), Severity::Note);
}

#[test]
fn horovod() {
    let vars: Pairs = &[
        ("HOROVOD_RANK", "2"),
        ("HOROVOD_SIZE", "4"),
        ("HOROVOD_LOCAL_RANK", "0"),
        ("HOROVOD_LOCAL_SIZE", "2"),
        ("HOROVOD_CROSS_RANK", "1"),
        ("HOROVOD_CROSS_SIZE", "2"),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"),
    ];
    let info = read(vars).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.local_rank()),
        (Launcher::Horovod, 2, Some(0))
    );
    assert_eq!((info.node_rank(), info.node_count()), (Some(1), Some(2)));
    // The driver's address is not rank 0's address.
    assert!(info.master_addr().is_err());
}

#[test]
fn submitits_local_executor() {
    let vars: Pairs = &[
        ("SUBMITIT_LOCAL_GLOBALID", "1"),
        ("SUBMITIT_LOCAL_NTASKS", "2"),
        ("SUBMITIT_LOCAL_LOCALID", "1"),
        ("SUBMITIT_LOCAL_NODEID", "0"),
    ];
    let info = read(vars).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.local_rank()),
        (Launcher::SubmititLocal, 1, Some(1))
    );
    assert_eq!(info.master_addr().unwrap().to_string(), "127.0.0.1");
}

#[test]
fn a_script_of_a_job_that_calls_itself_rank_0_of_1_has_no_launcher_unless_it_is_alone_on_purpose() {
    let script = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8"), ("SLURM_NNODES", "2")];
    let with = |others: &[(&'static str, &'static str)]| {
        ClusterInfo::from_vars(script.iter().chain(others).copied()).unwrap().require_launcher()
    };
    let by_image = [("RANK", "0"), ("WORLD_SIZE", "1")];
    let error = with(&by_image).unwrap_err().to_string();
    assert!(error.contains("srun did not start this process"), "{error}");
    assert!(error.contains("MPIENV_LAUNCHER=user for a process by itself"), "{error}");
    assert!(with(&[("MPIENV_LAUNCHER", "alone")]).is_ok());
    assert!(with(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "n0")]).is_ok());
    assert!(ClusterInfo::from_vars(by_image).unwrap().require_launcher().is_ok());
}

#[test]
fn a_variable_refuses_rank_0_of_1_without_a_launcher_in_every_program() {
    const REQUIRED: (&str, &str) = ("MPIENV_REQUIRE_LAUNCHER", "1");
    let read = |vars: &[(&'static str, &'static str)]| {
        ClusterInfo::from_vars([REQUIRED].iter().chain(vars).copied())
    };
    let error = read(&[]).unwrap_err().to_string();
    assert!(error.starts_with("MPIENV_REQUIRE_LAUNCHER=\"1\": no launcher gives"), "{error}");
    let script = read(&[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")]).unwrap_err().to_string();
    assert!(script.contains("srun did not start this process"), "{script}");
    let task = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")];
    for placed in
        [&task[..], &[("RANK", "0"), ("WORLD_SIZE", "1")], &[("MPIENV_LAUNCHER", "alone")]]
    {
        assert!(read(placed).is_ok(), "{placed:?}");
    }
    assert!(ClusterInfo::from_vars([("MPIENV_REQUIRE_LAUNCHER", "0")]).is_ok());

    for (words, refused) in [
        ("exec -- true", true),
        ("launch --nproc-per-node 1 -- true", true),
        ("launch --nnodes 1 --nproc-per-node 1 -- mpienv exec -- true", false),
        ("simulate --nodes 1 --ppn 2 --launcher slurm -- mpienv exec -- true", false),
        ("exec --launcher alone -- mpienv exec -- mpienv exec -- true", false),
    ] {
        let output = clean("mpienv").args(words.split(' ')).envs([REQUIRED]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.contains("MPIENV_REQUIRE_LAUNCHER=\"1\": "), refused, "{words}: {said}");
        assert_eq!(output.status.code(), Some(i32::from(refused)), "{words}: {said}");
        let is_hinted = said.ends_with("; or pass --nnodes 1 if this is the job's only node\n");
        assert_eq!(is_hinted, refused && words.starts_with("launch"), "{words}: {said}");
    }
}

#[test]
fn a_job_that_another_jobs_script_submits_has_as_many_tasks_as_slurm_says_and_a_prolog_is_no_task()
{
    let severity = |others: &[(&'static str, &'static str)]| {
        let job = [("SLURM_JOB_ID", "8"), ("SLURM_NNODES", "1")];
        let info = ClusterInfo::from_vars(job.into_iter().chain(others.iter().copied())).unwrap();
        info.findings()[0].severity
    };
    let inherited = ("SLURM_NTASKS_PER_NODE", "2");
    assert_eq!(severity(&[inherited]), Severity::Warning);
    let tasks = |number| ("SLURM_TASKS_PER_NODE", number);
    assert_eq!(severity(&[inherited, ("SLURM_NTASKS", "1"), tasks("1")]), Severity::Note);
    assert_eq!(severity(&[inherited, ("SLURM_NTASKS", "1"), tasks("2")]), Severity::Warning);
    assert_eq!(severity(&[("SLURM_NTASKS", "8")]), Severity::Warning);
    let prolog = ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd");
    assert_eq!(severity(&[("SLURM_NTASKS", "8"), prolog]), Severity::Note);
}

#[test]
fn the_only_rank_of_one_launcher_that_is_another_ranks_place_by_the_other_has_no_sure_launcher() {
    let of_slurm = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "a"),
    ];
    let of_open_mpi = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "1"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    let info = ClusterInfo::from_vars(of_slurm.into_iter().chain(of_open_mpi)).unwrap();
    assert_eq!((info.launcher(), info.world_size()), (Launcher::OpenMpi, 1));
    let error = info.require_launcher().unwrap_err().to_string();
    assert!(error.contains("Open MPI says rank 0 of 1"), "{error}");
    assert!(error.contains("MPIENV_LAUNCHER=open-mpi"), "{error}");
    assert!(ClusterInfo::from_vars(of_open_mpi).unwrap().require_launcher().is_ok());
}

#[test]
fn a_group_and_mpis_world_refuse_a_process_that_is_probably_one_of_several() {
    let script = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")];
    let info = ClusterInfo::from_vars(script).unwrap();
    for error in [
        Group::builder(&info).quiet(true).connect().unwrap_err().to_string(),
        World::init(&info).unwrap_err().to_string(),
    ] {
        assert!(error.contains("srun did not start this process"), "{error}");
        assert!(error.contains("MPIENV_LAUNCHER=alone for a process by itself"), "{error}");
    }
    for chosen in [
        ClusterInfo::from_vars(script.into_iter().chain([("MPIENV_LAUNCHER", "alone")])).unwrap(),
        ClusterInfo::builder().vars(script).launcher(Launcher::Alone).read().unwrap(),
    ] {
        assert_eq!(Group::connect(&chosen).unwrap().size(), 1);
    }
}

#[test]
fn below_exec_and_launch_a_group_check_and_a_meeting_are_refused_for_what_these_have_found() {
    let script = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")];
    let mpienv = env!("CARGO_BIN_EXE_mpienv");
    let group = Path::new(mpienv).with_file_name("examples/collective_twice");
    let programs = [
        &[group.to_str().unwrap()][..],
        &[mpienv, "check"],
        &[mpienv, "exec", "--meet", "9s", "--", "true"],
    ];
    // Each mpienv that sees what is new to it warns once, and the last one refuses.
    for (start, said) in [
        ("exec mpienv exec -- \"$@\"", 2),
        ("eval \"$(mpienv export)\"; exec mpienv exec -- \"$@\"", 3),
        ("exec mpienv exec --launcher alone -- \"$@\"", 0),
        // What was not said has been found all the same.
        ("exec mpienv exec -q -- \"$@\"", 1),
        ("exec mpienv launch --nproc-per-node 1 -- \"$@\"", 2),
    ] {
        for program in programs {
            let words = [&["-c", start, "sh"], program].concat();
            let output = clean("sh").args(&words).envs(script).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), said == 0, "{words:?}: {stderr}");
            if start.contains("launch") {
                // It also prints the worker's last lines.
                continue;
            }
            for part in ["srun did not start this process", "start the program with `srun`"] {
                assert_eq!(stderr.matches(part).count(), said, "{words:?}: {stderr}");
            }
        }
    }
}
