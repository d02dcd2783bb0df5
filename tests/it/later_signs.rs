//! Signs of several processes below one that mpienv has placed: those that were set since are
//! reported, and those that were there before are not said again.

use crate::nesting::nested;
use crate::support::tool::clean;

#[test]
fn a_process_that_was_alone_and_has_started_several_is_not_rank_0_of_1_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, hosts: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, hosts).unwrap();
        path.display().to_string()
    };
    let (one, two) = (file("one", "a\n"), file("two", "a\nb\n"));
    let [pbs, oar] =
        [format!("PBS_JOBID=1 PBS_NODEFILE={two}"), format!("OAR_JOB_ID=1 OAR_NODEFILE={one}")];
    for (vars, said) in [
        // What `prterun` sets: mpienv asks its server, which this test does not have.
        ("PMIX_RANK=2 PMIX_NAMESPACE=prterun-a-1@1", "PMIx gave no answer"),
        ("SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID is not set"),
        ("SLURM_JOB_ID=7 SLURM_NTASKS=8", "[slurm-not-a-task]"),
        ("OMPI_COMM_WORLD_LOCAL_RANK=2", "[place-unknown]"),
        ("NODE_RANK=2", "NODE_RANK"),
        ("ACME_RANK=2 ACME_SIZE=4", "[place-unknown]"),
        ("NNODES=2", "NNODES=\"2\""),
        ("LSB_JOBID=7 LSB_MCPU_HOSTS='a 4 b 4'", "[lsf-not-a-task]"),
        ("TASK_INDEX=1 NUM_TASKS=4", "[place-unknown]"),
        ("INDEX=1 NODE_IP_LIST=a,b", "[place-unknown]"),
        ("PADDLE_TRAINERS_NUM=2", "[place-unknown]"),
        ("FLUX_ENCLOSING_ID=f1", "[flux-not-a-task]"),
        ("SLURM_JOBID=1 SLURM_JOB_NODELIST=a,b", "[slurm-not-a-task]"),
        (&pbs, "[pbs-not-a-task]"),
        (&oar, ""),
        ("PE_HOSTFILE=/x NHOSTS=1 NSLOTS=1", ""),
        ("ACME_COLOR=2", ""),
        ("NODE_INDEX=0", ""),
        ("WORLD_RANK=0", ""),
        ("SLURM_NTASKS=1", ""),
    ] {
        for around in ["", "mpienv exec -- ", "mpienv launch --nproc-per-node 1 -- "] {
            let words = format!("{around}env {vars} mpienv exec -- true");
            let output = nested(&words).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            // A worker of launch has a place, so that the text is another one.
            assert!(stderr.contains(said) || around.contains("launch"), "{words}: {stderr}");
            assert_eq!(stderr.is_empty(), said.is_empty(), "{words}: {stderr}");
        }
    }
    // Without mpienv around it, this is a place.
    let words = "mpienv exec -- env NODE_RANK=0 NNODES=2 MASTER_ADDR=127.0.0.1 mpienv exec -- true";
    let stderr = String::from_utf8(nested(words).output().unwrap().stderr).unwrap();
    assert!(stderr.contains("[place-unknown]"), "{stderr}");
    // Another job of the same size, and one of which only the numbers are new.
    for words in [
        "SLURM_JOB_ID=7 SLURM_NTASKS=8 mpienv exec -- env SLURM_JOB_ID=8 mpienv exec -- true",
        "ACME_RANK=1 ACME_SIZE=4 mpienv exec -- env ACME_RANK=2 mpienv exec -- true",
        "ACME_RANK=1 ACME_SIZE=4 mpienv exec -- env NUM_NODES=2 mpienv exec -- true",
        "LSB_JOBID=7 LSB_MCPU_HOSTS='a 4 b 4' mpienv exec -- env LSB_JOBID=8 mpienv exec -- true",
    ] {
        let stderr = String::from_utf8(nested(words).output().unwrap().stderr).unwrap();
        assert_eq!(stderr.matches("warning [").count(), 2, "{words}: {stderr}");
    }
}

#[test]
fn what_the_only_rank_of_a_job_or_a_process_alone_has_around_it_is_not_said_below_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "a\nb\n").unwrap();
    let pbs = format!("PBS_JOBID=1.a PBS_NODEFILE={}", hosts.display());
    let alone = "MPIENV_LAUNCHER=alone";
    let of_srun = "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_JOBID=7 \
                   SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NNODES=1 SLURM_STEP_NUM_NODES=1 SLURM_GTIDS=0";
    let of_hydra = "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1";
    for (place, around) in [
        (of_srun, "SLURM_NTASKS_PER_NODE=4"),
        (of_srun, "SLURM_JOB_NUM_NODES=2"),
        (of_hydra, &*pbs),
        (of_hydra, "FLUX_ENCLOSING_ID=f1"),
        (of_hydra, "CCL_LOCAL_RANK=0"),
        (alone, &pbs),
        (alone, "PBS_JOBID=1 PBS_TASKNUM=2"),
        (alone, "AZ_BATCH_IS_CURRENT_NODE_MASTER=false"),
        (alone, "CCL_LOCAL_RANK=2 CCL_LOCAL_SIZE=4"),
        (alone, "SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_NTASKS=8 SLURM_JOB_NUM_NODES=2"),
        (alone, "SNOWFLAKE_JOB_INDEX=1 SNOWFLAKE_JOBS_COUNT=4"),
        (alone, "ACME_RANK=2 ACME_SIZE=4"),
        (alone, "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NNODES=2"),
        // No context can hold such a name.
        (alone, "'ACME DATA_RANK=2'"),
    ] {
        for outer in ["exec --", "launch --nproc-per-node 1 --"] {
            // A user's number of tasks for a later srun makes no other job.
            let input = if place == alone { "env SLURM_NTASKS=2 " } else { "env MPI_RANK=0 " };
            let words = format!("env {place} {around} mpienv {outer} {input}mpienv exec -- true");
            let output = nested(&words).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            // What the outer one says of the process's place is its own matter.
            let inner = stderr.lines().filter(|line| line.contains("[0] warning"));
            let said = if outer == "exec --" { stderr.lines().count() } else { inner.count() };
            assert!(output.status.success() && said == 0, "{words}: {stderr}");
        }
    }
    // What was said once is not said again.
    let words = "ACME_RANK=2 ACME_SIZE=4 mpienv exec -- mpienv exec -- true";
    let stderr = String::from_utf8(nested(words).output().unwrap().stderr).unwrap();
    assert_eq!(stderr.matches("[place-unknown]").count(), 1, "{stderr}");
}

#[test]
fn workers_that_a_script_gives_a_device_each_and_local_rank_0_are_still_of_one_job() {
    let script = "CUDA_VISIBLE_DEVICES=$LOCAL_RANK LOCAL_RANK=0 mpienv check --timeout 60";
    let output = clean("mpienv")
        .args(["launch", "--nproc-per-node", "2", "--", "sh", "-c", script])
        .output()
        .unwrap();
    // They meet, so that rank 0 can say this.
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("ranks 0 and 1 are both local rank 0"), "{said}");
}
