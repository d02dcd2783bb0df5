//! Slurm's batch scripts, on a real Slurm.

use std::fs;

use super::{assert_trained, example};
use crate::support::slurm::Slurm;
use crate::support::tool::{inherited, is_there};
use crate::support::trainer::with_trainer;

/// Runs a batch script to completion on the only node of the test's Slurm; returns its log.
fn batch(slurm: &Slurm, script: &str, options: &[&str]) -> Option<String> {
    let folder = slurm.folder().to_str().unwrap();
    let file = example("slurm").join(script);
    let words = [&["sbatch", "--wait", "--nodes=1", "--chdir", folder], options, &[file.to_str().unwrap()]].concat();
    let output = with_trainer(slurm.command(&words))?.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let id = text.trim().rsplit(' ').next().unwrap();
    let mut files = fs::read_dir(slurm.folder()).unwrap().map(|entry| entry.unwrap().path());
    let log = files.find(|path| path.to_string_lossy().ends_with(&format!("-{id}.log")));
    let log = log.map(|path| fs::read_to_string(path).unwrap()).unwrap_or_default();
    assert!(output.status.success(), "{script}: {}: {text}{log}", output.status);
    Some(log)
}

/// PATH, with the command under test first.
fn inherited_path() -> String {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_mpienv")).parent().unwrap();
    format!("{}:{}", folder.display(), inherited("PATH").unwrap_or_default().display())
}

#[test]
fn batch_scripts_train() {
    let Some(slurm) = Slurm::up() else { return };
    let Some(log) = batch(&slurm, "srun.sbatch", &[]) else { return };
    assert!(log.starts_with("4 ranks on 1 host, started by slurm, met at "), "{log}");
    assert_trained(&log);
    // A second time: the run is complete, and nothing is left to do.
    let again = batch(&slurm, "srun.sbatch", &[]).unwrap();
    assert!(again.contains("resuming from checkpoints/"), "{again}");
    assert!(!again.contains("epoch: "), "{again}");

    let log = batch(&slurm, "per-node.sbatch", &[]).unwrap();
    assert!(!log.contains("mpienv:"), "{log}");
    let mut logs = fs::read_dir(slurm.folder()).unwrap().map(|entry| entry.unwrap().path());
    let logs = logs.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("logs-")).unwrap();
    assert_trained(&fs::read_to_string(logs.join("rank.0/stdout")).unwrap());
    assert!(logs.join("rank.3/stdout").is_file());

    if is_there("mpirun") {
        assert_trained(&batch(&slurm, "mpirun.sbatch", &[]).unwrap());
    }

    // The test's node has no GPU, and only plain python3.
    if is_there("python3") {
        let line =
            "import os; os.write(1, f\"GPU {os.environ['LOCAL_RANK']} of {os.environ['WORLD_SIZE']}\\n\".encode())\n";
        fs::write(slurm.folder().join("train.py"), line).unwrap();
        let python = slurm.folder().join("python");
        fs::write(&python, "#!/bin/sh\nexec python3 \"$@\"\n").unwrap();
        fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("--export=ALL,PATH={}:{}", slurm.folder().display(), inherited_path());
        let log = batch(&slurm, "gpu.sbatch", &["--gpus-per-node=0", "--cpus-per-task=1", &path]).unwrap();
        for rank in 0..4 {
            assert!(log.lines().any(|line| line == format!("GPU {rank} of 4")), "{log}");
        }
    }
}
