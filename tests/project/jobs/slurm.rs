//! Slurm's batch scripts, each as its comment says, on a real Slurm of two hosts.
//!
//! Slurm believes that each host has 32 CPUs and 4 GPUs. In place of a `python` with PyTorch is one
//! that only reads the program, and stand-ins are in place of NVIDIA's driver and libraries. Nothing
//! else is replaced.

use std::fs;
use std::path::Path;

use mpienv_core::seam::SIMULATED;

use super::{
    assert_trained, example, first_on_path, own_command, project, python_without_torch, succeeded,
};
use crate::support::gpu::with_gpus;
use crate::support::hosts::Hosts;
use crate::support::script::script;
use crate::support::tool::{clean, is_there};
use crate::support::trainer::with_trainer;

/// Submits scripts one after the other in the project's folder, and returns the log of each.
fn logs(project: &Path, scripts: &[&str]) -> Option<Vec<String>> {
    // Each script's own command, which only has to wait in addition. Stand-ins for GPUs sum less.
    let submit = |script: &&str| {
        let command = own_command(&format!("slurm/{script}.sbatch"));
        let file = command.strip_prefix("sbatch ").unwrap();
        let shorter = format!("sed 's/ --gpu / --gpu --gpu-bytes 1M /' {file}");
        format!("{shorter} | sbatch --wait || echo {script} failed >&2; ")
    };
    let line: String = scripts.iter().map(submit).collect();
    let (python, files) =
        (python_without_torch(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let hosts = Hosts::up("batch", 2, &[("SLURM_TEST_NODE", "gpu")])?;
    let mut command = first_on_path(with_trainer(hosts.slurm(files.path())?)?, python.path());
    with_gpus(&mut command, &[])?.env("STAND_IN_DEVICES", "4");
    // The ranks share few cores, so the speeds of their GPUs are not compared.
    command.env(SIMULATED, "1");
    let output = command
        .args(["sh", "-c", &format!("cd \"$0\" && {{ {line}}}")])
        .arg(project)
        .output()
        .unwrap();
    succeeded(&output);
    let log = |number: usize| {
        let log = fs::read_dir(project).unwrap().map(|entry| entry.unwrap().path());
        let mut log =
            log.filter(|path| path.to_string_lossy().ends_with(&format!("-{number}.log")));
        log.next().map(|path| fs::read_to_string(path).unwrap()).unwrap_or_default()
    };
    let logs: Vec<String> = (1..=scripts.len()).map(log).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(" failed"), "{said}: {logs:#?}");
    Some(logs)
}

#[test]
fn batch_scripts_train_as_their_comments_say() {
    if !is_there("mpirun") || !is_there("python3") || !is_there("sbatch") {
        return;
    }
    let project = project();
    let scripts = ["srun", "srun", "per-node", "mpirun", "gpu"];
    let Some(logs) = logs(project.path(), &scripts) else { return };
    let [first, again, _, mpirun, gpu] = &logs[..] else { panic!("{} logs", logs.len()) };

    assert!(first.starts_with("8 ranks on 2 hosts, started by Slurm, met at nodeA:"), "{first}");
    assert_trained(first);
    // The second time, the run is complete, and nothing is left to do.
    assert!(again.contains("resuming from checkpoints/"), "{again}");
    assert!(!again.contains("epoch: "), "{again}");

    let ranks = project.path().join("logs-3");
    assert_trained(&fs::read_to_string(ranks.join("rank.0/stdout")).unwrap());
    assert!((1..8).all(|rank| ranks.join(format!("rank.{rank}/stdout")).is_file()));

    assert_trained(mpirun);

    assert!(gpu.starts_with("8 ranks on 2 hosts, started by Slurm, met at nodeA:"), "{gpu}");
    for rank in 0..4 {
        // Once on each host.
        assert_eq!(
            gpu.lines().filter(|line| *line == format!("GPU {rank} of 8")).count(),
            2,
            "{gpu}"
        );
    }
}

/// What the guide's job script for GPUs does after a check that wrote the hosts it blames, as the
/// nth try.
fn after_check(code: u8, blamed: Option<&str>, tries: &[(&str, &str)]) -> String {
    let page = fs::read_to_string(example("../src/guide/gpus.md")).unwrap();
    let (_, block) = page.split_once("```sh\nrm -f bad.txt\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let srun = "#!/bin/sh\n[ \"$2\" = check ] || exec echo trains\n\
                [ -z \"$BLAMED\" ] || printf %s \"$BLAMED\" >bad.txt\nexit $CODE\n";
    script(&folder.path().join("srun"), srun);
    script(&folder.path().join("sbatch"), "#!/bin/sh\necho sbatch \"$1\" TRIES=$TRIES\n");
    let mut bash = first_on_path(clean("bash"), folder.path());
    bash.current_dir(folder.path()).args(["-c", &format!("rm -f bad.txt\n{block}"), "job.sh"]);
    bash.env("CODE", code.to_string()).envs(blamed.map(|blamed| ("BLAMED", blamed)));
    let output = bash.envs(tries.iter().copied()).output().unwrap();
    assert_eq!(output.status.success(), code == 0);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_guides_script_starts_again_only_without_hosts_that_are_blamed_and_three_times() {
    assert_eq!(after_check(0, None, &[]), "trains\n");
    // A command without the feature, or a rank that did not come.
    assert_eq!(after_check(2, None, &[]), "");
    assert_eq!(after_check(3, Some("a,b"), &[]), "sbatch --exclude=a,b TRIES=2\n");
    let second = [("TRIES", "2"), ("EXCLUDED", "a,b")];
    assert_eq!(after_check(3, Some("c"), &second), "sbatch --exclude=a,b,c TRIES=3\n");
    assert_eq!(after_check(3, Some("c"), &[("TRIES", "4")]), "");
}

#[test]
fn srun_ends_the_job_when_a_rank_is_killed_in_every_job_file_and_example_of_the_guide() {
    let mut files: Vec<_> = fs::read_dir(example("slurm")).unwrap().collect();
    files.extend(fs::read_dir(example("../src/guide")).unwrap());
    let readme = example("../README.md");
    for path in files.into_iter().map(|file| file.unwrap().path()).chain([readme]) {
        let text = fs::read_to_string(&path).unwrap();
        // Where a line starts a training: a check ends by itself.
        let starts = text.lines().filter(|line| {
            line.trim_start_matches("| srun of Slurm | `").starts_with("srun ")
                && ["mpienv exec", "mpienv launch", "mnist "].iter().any(|word| line.contains(word))
                && !line.contains("--container-image")
        });
        for line in starts {
            assert!(line.contains(" --kill-on-bad-exit=1 "), "{}: {line}", path.display());
        }
    }
}
