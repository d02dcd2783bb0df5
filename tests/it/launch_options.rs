//! What `mpienv launch` prints about options and places that it cannot use.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::root::is_root;
use crate::support::tool::{clean, is_there};
use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Launcher};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_number_of_workers_that_is_not_one_says_what_is_expected() {
    for (number, text) in [
        ("xpu", "expected a whole number from 1 to 65536, or auto, gpu or cpu"),
        ("two", "expected a whole number from 1 to 65536"),
        ("0", "expected a whole number from 1 to 65536"),
        ("-1", "expected a whole number from 1 to 65536"),
        ("4294967295", "expected a whole number from 1 to 65536"),
    ] {
        let output = clean("mpienv")
            .args(["launch", "--nproc-per-node", number, "--", "true"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{number}");
        assert!(said(&output).contains(text), "{number}: {}", said(&output));
    }
}

#[test]
fn the_remedy_for_several_processes_on_a_node_is_the_launchers_own() {
    for (launcher, words, other) in [
        (Launcher::Slurm, "`srun -n \"$SLURM_NNODES\" --ntasks-per-node=1`", "mpirun"),
        (Launcher::OpenMpi, "`mpirun --map-by ppr:1:node`", "srun"),
        (Launcher::Hydra, "`mpiexec -ppn 1`", "mpirun"),
        (Launcher::Pals, "`mpiexec --ppn 1`", "mpirun"),
        (Launcher::Torchrun, "`torchrun --nproc-per-node 1`", "mpirun"),
    ] {
        let job = Job::of(launcher).nodes(2).per_node(2).build().unwrap();
        let info = ClusterInfo::from_vars(job.environment(0).unwrap()).unwrap();
        let error = info.workers(2).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains(other), "{error}");
    }
}

#[test]
fn a_log_that_is_not_a_regular_file_is_left_as_it_is() {
    if !is_there("mkfifo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rank = folder.path().join("rank.0");
    fs::create_dir(&rank).unwrap();
    let launch = || {
        let mut command = clean("mpienv");
        command
            .args(["launch", "--nproc-per-node", "1", "--log-dir"])
            .arg(folder.path())
            .args(["--", "echo", "x"]);
        command.output().unwrap()
    };
    let refuses = |log: &Path, why: &str| {
        let output = launch();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let text = format!("cannot write {log:?}: {why}; remove it, or choose another folder");
        assert!(said(&output).contains(&text), "{}", said(&output));
        fs::remove_file(log).unwrap();
    };
    let [out, err] = ["stdout", "stderr"].map(|name| rank.join(name));
    assert!(Command::new("mkfifo").arg(&out).status().unwrap().success());
    refuses(&out, "it exists and is not a regular file");
    std::os::unix::fs::symlink("/dev/null", &err).unwrap();
    refuses(&err, "it is a symbolic link, which mpienv does not follow here");
    let precious = folder.path().join("precious");
    fs::write(&precious, "kept").unwrap();
    fs::remove_file(&out).unwrap();
    fs::hard_link(&precious, &out).unwrap();
    refuses(&out, "it has another name (a hard link), whose content would be replaced too");
    assert_eq!(fs::read_to_string(precious).unwrap(), "kept");
    assert!(launch().status.success());
    assert_eq!(fs::read_to_string(out).unwrap(), "x\n");
    if is_root() {
        std::os::unix::fs::chown(&rank, Some(12_345), None).unwrap();
        let output = said(&launch());
        let text = format!("cannot write {rank:?}: it belongs to another user, who could read");
        assert!(output.contains(&text), "{output}");
    }
}

#[cfg(unix)]
#[test]
fn no_link_below_the_folder_of_logs_leads_the_output_elsewhere() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let target = other.join("stdout");
    for (planted, restarts) in [
        ("rank.0/stdout", "0"),
        ("rank.0/stderr", "0"),
        ("rank.0", "0"),
        ("attempt_0", "1"),
        ("attempt_0/rank.0", "1"),
        ("attempt_0/rank.0/stdout", "1"),
    ] {
        let logs = folder.path().join("logs");
        let link = logs.join(planted);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        fs::write(&target, "kept\n").unwrap();
        symlink(if planted.contains("/std") { &target } else { &other }, &link).unwrap();
        let mut command = clean("mpienv");
        command
            .args(["launch", "--nproc-per-node", "1", "--max-restarts", restarts, "--log-dir"])
            .arg(&logs);
        let output = command.args(["--", "echo", "x"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{planted}: {}", said(&output));
        let text = format!(
            "cannot write {link:?}: it is a symbolic link, which mpienv does not follow here; remove it"
        );
        assert!(said(&output).contains(&text), "{planted}: {}", said(&output));
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept\n", "{planted}");
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1, "{planted}");
        fs::remove_dir_all(&logs).unwrap();
    }
    // The folder that the user names may be a link.
    let named = folder.path().join("named");
    symlink(&other, &named).unwrap();
    let mut command = clean("mpienv");
    command
        .args(["launch", "--nproc-per-node", "1", "--log-dir"])
        .arg(&named)
        .args(["--", "echo", "x"]);
    assert!(command.output().unwrap().status.success());
    assert_eq!(fs::read_to_string(other.join("rank.0/stdout")).unwrap(), "x\n");
    let left = fs::read_dir(&other).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| name == "rank.0" || name == "stdout"));
}

/// The stdout and stderr of `launch --nproc-per-node auto` with these variables.
fn auto(vars: &[(&str, &str)], options: &[&str]) -> (String, String) {
    let mut command = clean("mpienv");
    command.envs(vars.iter().copied()).args(["launch", "--nproc-per-node", "auto"]).args(options);
    let output = command
        .args(["--", "sh", "-c", "test $LOCAL_RANK != 0 || echo $WORLD_SIZE"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{vars:?}: {}", said(&output));
    (String::from_utf8_lossy(&output.stdout).into_owned(), said(&output))
}

#[test]
fn the_number_of_workers_comes_from_the_platform_or_this_node_and_is_said_once() {
    let sky = [
        ("SKYPILOT_NODE_RANK", "1"),
        ("SKYPILOT_NUM_NODES", "2"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
    ];
    let three = [&sky[..], &[("SKYPILOT_NUM_GPUS_PER_NODE", "3"), ("CUDA_VISIBLE_DEVICES", "0,1")]]
        .concat();
    let (stdout, stderr) = auto(&three, &[]);
    assert_eq!(stdout, "[3] 6\n");
    // The platform's number and the list do not fit together.
    let expected = "mpienv: 3 workers on this node: SKYPILOT_NUM_GPUS_PER_NODE=3\n\
                    warning [visible-devices]: ";
    assert!(stderr.starts_with(expected), "{stderr}");
    assert_eq!(auto(&three, &["-q"]), (stdout, String::new()));
    // Without GPUs the platform's number is 0. Then a node counts, which several nodes compare.
    let devices = [
        ("SKYPILOT_NODE_RANK", "0"),
        ("SKYPILOT_NUM_NODES", "1"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4"),
        ("SKYPILOT_NUM_GPUS_PER_NODE", "0"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
    ];
    let expected = (
        "[0] 2\n".to_owned(),
        "mpienv: 2 workers on this node: CUDA_VISIBLE_DEVICES=0,1\n".to_owned(),
    );
    assert_eq!(auto(&devices, &[]), expected);
    let cores = std::thread::available_parallelism().unwrap().get();
    let (stdout, stderr) = auto(&[("CUDA_VISIBLE_DEVICES", "")], &[]);
    assert_eq!(stdout, format!("[0] {cores}\n"));
    assert!(
        stderr.ends_with("one for each core that they may use, because no device is visible\n"),
        "{stderr}"
    );
}

#[test]
fn a_platforms_number_that_cannot_be_used_is_an_error_with_its_variable() {
    let mut command = clean("mpienv");
    command.envs([
        ("NODE_RANK", "0"),
        ("NUM_NODES", "1"),
        ("PRIMARY_ADDR", "10.0.0.4"),
        ("NUM_TRAINERS", "all"),
    ]);
    let output =
        command.args(["launch", "--nproc-per-node", "auto", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = "NUM_TRAINERS=\"all\": not a whole number from 0 to 4294967295; correct NUM_TRAINERS, or give the number";
    assert!(said(&output).contains(text), "{}", said(&output));
}

#[test]
fn each_platforms_own_number_of_workers_is_read() {
    for (platform, variable) in [
        (Launcher::SkyPilot, "SKYPILOT_NUM_GPUS_PER_NODE"),
        (Launcher::Dstack, "DSTACK_GPUS_PER_NODE"),
        (Launcher::Kubernetes, "PET_NPROC_PER_NODE"),
        (Launcher::RunPod, "NUM_TRAINERS"),
        (Launcher::Lepton, "LEPTON_RESOURCE_ACCELERATOR_NUM"),
        (Launcher::Mlp, "MLP_WORKER_GPU"),
        (Launcher::SageMaker, "SM_NUM_GPUS"),
        (Launcher::Volcano, "MA_NUM_GPUS"),
    ] {
        let mut vars = Job::of(platform).nodes(2).build().unwrap().environment(1).unwrap();
        vars.retain(|(name, _)| name != variable);
        assert_eq!(
            ClusterInfo::from_vars(vars.clone()).unwrap().workers_per_node(),
            None,
            "{platform}"
        );
        vars.push((variable.to_owned(), "5".to_owned()));
        let info = ClusterInfo::from_vars(vars.clone()).unwrap();
        assert_eq!(info.workers_per_node(), Some(5), "{platform}");
        // torchrun reads it under its own name; a value that is already set is kept.
        let exported =
            info.per_node_exports().unwrap().get("PET_NPROC_PER_NODE").map(str::to_owned);
        assert_eq!(
            exported.as_deref(),
            (variable != "PET_NPROC_PER_NODE").then_some("5"),
            "{platform}"
        );
        vars.push(("PET_NPROC_PER_NODE".to_owned(), "2".to_owned()));
        assert_eq!(
            ClusterInfo::from_vars(vars)
                .unwrap()
                .per_node_exports()
                .unwrap()
                .get("PET_NPROC_PER_NODE"),
            None
        );
    }
    let pod = [
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "a"),
    ];
    for variable in ["NPROC_PER_NODE", "PET_NPROC_PER_NODE"] {
        let vars = [&pod[..], &[(variable, "4")]].concat();
        assert_eq!(ClusterInfo::from_vars(vars).unwrap().workers_per_node(), Some(4), "{variable}");
    }
}
