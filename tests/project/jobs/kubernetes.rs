//! Kubernetes: checked against the schemas of its objects, with each container's command run as in
//! a pod.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{assert_trained, example, for_one_epoch, printed, succeeded};
use crate::support::gpu::with_gpus;
use crate::support::hosts::Hosts;
use crate::support::python::from_python;
use crate::support::tool::{clean, is_there};
use crate::support::trainer::with_trainer;

/// One container of a job.
struct Container {
    role: String,
    command: Vec<String>,
    variables: Vec<(String, String)>,
}

/// The containers of a file that conforms to the schemas.
fn checked(file: &str) -> Option<Vec<Container>> {
    let python = from_python("kubernetes", "python")?;
    let mut command = clean(python.to_str().unwrap());
    command.arg("tests/project/jobs/check_kubernetes.py").arg(example("kubernetes").join(file));
    let found: Vec<Value> = serde_json::from_str(&printed(&mut command)).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let containers = found.iter().map(|container| Container {
        role: text(&container["role"]),
        command: container["command"].as_array().unwrap().iter().map(text).collect(),
        variables: container["env"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), text(value)))
            .collect(),
    });
    Some(containers.collect())
}

/// A container's command with its variables.
fn command(container: &Container) -> Option<Command> {
    let mut command = with_trainer(clean("timeout"))?;
    command.arg("3000").args(&container.command).envs(container.variables.iter().cloned());
    Some(command)
}

/// Runs commands at the same time, and returns their output.
fn together(commands: Vec<Command>) -> String {
    let start = |mut command: Command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = commands.into_iter().map(start).collect();
    children.into_iter().map(|child| succeeded(&child.wait_with_output().unwrap())).collect()
}

#[test]
fn a_pytorchjob_trains() {
    let Some(containers) = checked("pytorchjob.yaml") else { return };
    let roles: Vec<_> = containers.iter().map(|container| container.role.as_str()).collect();
    assert_eq!(roles, ["Master", "Worker"]);
    let commands: Option<Vec<_>> = containers.iter().map(command).collect();
    let Some(mut commands) = commands else { return };
    // The variables that the operator sets.
    for (rank, command) in commands.iter_mut().enumerate() {
        command.envs([
            ("WORLD_SIZE", "2"),
            ("RANK", ["0", "1"][rank]),
            ("MASTER_ADDR", "127.0.0.1"),
        ]);
        command.env("MASTER_PORT", "23456");
    }
    assert_trained(&together(commands));
}

#[test]
fn an_indexed_job_trains() {
    let Some(containers) = checked("indexed-job.yaml") else { return };
    let [container] = &containers[..] else { panic!("{} containers", containers.len()) };
    let Some(first) = command(container) else { return };
    let mut commands = vec![first, command(container).unwrap()];
    // The variables that Kubernetes sets, and a name that this machine can resolve.
    for (index, command) in commands.iter_mut().enumerate() {
        command.env("JOB_COMPLETION_INDEX", index.to_string()).env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", "23457");
    }
    assert_trained(&together(commands));
}

#[test]
fn a_job_for_gpus_tests_them_and_trains_on_each() {
    let Some(containers) = checked("gpu-job.yaml") else { return };
    let Ok([mut container]) = <[Container; 1]>::try_from(containers) else {
        panic!("several containers")
    };
    // Both pods are on this host, which `check` would refuse. The job file of Slurm runs it.
    let last = container.command.pop().unwrap();
    let (check, training) = last.split_once(" && ").unwrap();
    assert_eq!(check, "mpienv check --timeout 60 --gpu");
    container.command.push(for_one_epoch(training));
    let mut commands = Vec::new();
    for index in ["0", "1"] {
        let Some(mut command) = command(&container) else { return };
        if with_gpus(&mut command, &[]).is_none() {
            return;
        }
        command.env("STAND_IN_DEVICES", "2").env("JOB_COMPLETION_INDEX", index);
        // With the same devices: NCCL is to take them for two hosts.
        command.env("NCCL_HOSTID", index);
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "23458");
        commands.push(command);
    }
    let text = together(commands);
    assert_eq!(text.matches("epoch: 0, train loss is ").count(), 1, "{text}");
}

#[test]
fn an_mpijob_trains() {
    let Some(containers) = checked("mpijob.yaml") else { return };
    let launcher = containers.iter().find(|container| container.role == "Launcher").unwrap();
    if !is_there("mpirun") {
        return;
    }
    let Some(hosts) = Hosts::up("mpijob", 3, &[]) else { return };
    let Some(mut command) = with_trainer(hosts.on("nodeA", "timeout")) else { return };
    // The operator lists the workers' pods in a hostfile, without the launcher's pod.
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(file.path(), "nodeB slots=2\nnodeC slots=2\n").unwrap();
    command.env("OMPI_MCA_orte_default_hostfile", file.path());
    // In the image, the programs are where the SSH server looks for them.
    let (mpirun, words) = launcher.command.split_first().unwrap();
    command.arg("3000").arg(mpirun).args(["-x", "PATH"]).args(words);
    assert_trained(&printed(&mut command));
}
