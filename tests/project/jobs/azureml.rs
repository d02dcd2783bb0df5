//! AzureML: loaded by azure-ai-ml, and started on several hosts in the same way as by its mpirun.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{
    assert_trained, example, first_on_path, for_one_epoch, printed, python_without_torch,
    without_gpu_test,
};
use crate::support::gpu::with_gpus;
use crate::support::hosts::Hosts;
use crate::support::python::from_python;
use crate::support::tool::{clean, is_there};
use crate::support::trainer::with_trainer;

/// What AzureML's own package reads from a file; `outputs` is the folder that replaces each output.
fn loaded(file: &str, outputs: &Path) -> Option<Value> {
    let python = from_python("azureml", "python")?;
    let mut command = clean(python.to_str().unwrap());
    command.arg("tests/project/jobs/load_azureml.py").arg(example(file)).arg(outputs);
    let found: Value = serde_json::from_str(&printed(&mut command)).unwrap();
    assert_eq!(found["launcher"], "mpi", "{found}");
    // AzureML mounts each output as an existing folder.
    for output in ["run", "model_output"] {
        std::fs::create_dir(outputs.join(output)).unwrap();
    }
    Some(found)
}

/// Starts a job's command on two hosts, with the variables that AzureML sets.
fn run(tag: &str, command: &str, per_node: u64) -> Option<String> {
    run_with(tag, command, per_node, |_| Some(()))
}

/// The same on hosts with two GPUs each, without the test of the GPUs, which takes minutes on
/// stand-ins: the job file of Slurm runs it.
fn run_on_gpus(tag: &str, command: &str) -> Option<String> {
    let command = without_gpu_test(command);
    run_with(tag, &command, 2, |mpirun| {
        with_gpus(mpirun, &[])?.env("STAND_IN_DEVICES", "2");
        for name in ["LD_LIBRARY_PATH", "STAND_IN_SHARED", "STAND_IN_HEADER", "STAND_IN_DEVICES"] {
            mpirun.args(["-x", name]);
        }
        Some(())
    })
}

fn run_with(
    tag: &str,
    command: &str,
    per_node: u64,
    complete: impl FnOnce(&mut Command) -> Option<()>,
) -> Option<String> {
    if !is_there("mpirun") {
        return None;
    }
    let hosts = Hosts::up(tag, 2, &[])?;
    let python = python_without_torch();
    let mut mpirun = first_on_path(with_trainer(hosts.on("nodeA", "timeout"))?, python.path());
    mpirun.args(["3000", "mpirun", "-n", &(2 * per_node).to_string()]);
    mpirun.args(["-H", &format!("10.77.0.1:{per_node},10.77.0.2:{per_node}")]);
    complete(&mut mpirun)?;
    mpirun.args(["-x", "PATH", "-x", "AZ_BATCH_MASTER_NODE=10.77.0.1:6000", "bash"]);
    // Below ssh, bash would read the user's own settings, such as another PATH.
    mpirun.args(["--norc", "-c", command]);
    Some(printed(&mut mpirun))
}

/// A folder that all hosts see, like AzureML's outputs, which are on a disk that all nodes share.
fn outputs() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn azureml_starts_every_rank() {
    let folder = outputs();
    let Some(job) = loaded("azureml/per-process.yml", folder.path()) else { return };
    assert_eq!((&job["nodes"], &job["processes"]), (&2.into(), &4.into()));
    assert_eq!(job["dockerfile"], example("azureml/Dockerfile").to_str().unwrap());
    // Two ranks per node are enough on a small machine.
    let Some(text) = run("az1", job["command"].as_str().unwrap(), 2) else { return };
    assert_trained(&text);
    let metrics = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    assert!(metrics.lines().last().unwrap().contains("\"epoch\":9"), "{metrics}");
    assert!(folder.path().join("run/checkpoints").is_dir());
}

#[test]
fn azureml_starts_a_rank_for_each_gpu() {
    let folder = outputs();
    let Some(job) = loaded("azureml/gpu.yml", folder.path()) else { return };
    assert_eq!((&job["nodes"], &job["processes"]), (&2.into(), &4.into()));
    assert_eq!(job["dockerfile"], example("azureml/gpu.Dockerfile").to_str().unwrap());
    let command =
        format!("cd {} && {}", job["code"].as_str().unwrap(), job["command"].as_str().unwrap());
    let Some(text) = run_on_gpus("az4", &command) else { return };
    let met = "4 ranks on 2 hosts, started by Open MPI, met at 10.77.0.1:6105 ";
    assert!(text.lines().any(|line| line.starts_with(met)), "{text}");
    for rank in 0..2 {
        assert_eq!(
            text.lines().filter(|line| *line == format!("GPU {rank} of 4")).count(),
            2,
            "{text}"
        );
    }
}

#[test]
fn azureml_trains_mnist_on_each_gpu() {
    let folder = outputs();
    let Some(job) = loaded("azureml/mnist-gpu.yml", folder.path()) else { return };
    assert_eq!((&job["nodes"], &job["processes"]), (&2.into(), &4.into()));
    assert_eq!(job["dockerfile"], example("azureml/gpu.Dockerfile").to_str().unwrap());
    let command = for_one_epoch(job["command"].as_str().unwrap());
    let Some(text) = run_on_gpus("az5", &command) else { return };
    assert_eq!(text.matches("epoch: 0, train loss is ").count(), 1, "{text}");
    assert!(folder.path().join("run/checkpoints").is_dir());
}

#[test]
fn azureml_starts_one_process_on_each_node() {
    let folder = outputs();
    let Some(job) = loaded("azureml/per-node.yml", folder.path()) else { return };
    assert_eq!((&job["nodes"], &job["processes"]), (&2.into(), &1.into()));
    let command = job["command"].as_str().unwrap();
    assert!(command.contains("--nproc-per-node 4 "), "{command}");
    let Some(_) = run("az2", &command.replace("node 4", "node 2"), 1) else { return };
    let logs = folder.path().join("run/logs");
    assert_trained(&std::fs::read_to_string(logs.join("rank.0/stdout")).unwrap());
    assert!((1..4).all(|rank| logs.join(format!("rank.{rank}/stdout")).is_file()));
}

#[test]
fn azuremls_first_sdk_has_the_trainer_as_a_component() {
    let folder = outputs();
    let Some(component) = loaded("azureml/component.spec.yml", folder.path()) else { return };
    let command = component["command"].as_str().unwrap();
    assert!(command.contains("mnist --quiet  --epochs 10 --lr 0.01"), "{command}");
    let Some(text) = run("az3", command, 2) else { return };
    assert_trained(&text);
    assert!(std::fs::read_dir(folder.path().join("model_output")).unwrap().count() > 1);
}
