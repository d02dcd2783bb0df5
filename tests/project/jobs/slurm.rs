//! Slurm's batch scripts, on a real Slurm.

use std::fs;

use super::{assert_trained, example, printed};
use crate::support::slurm::Slurm;
use crate::support::tool::is_there;
use crate::support::trainer::with_trainer;

/// Runs a batch script to its end, on the one node that the test's Slurm has; gives its log.
fn batch(slurm: &Slurm, script: &str) -> Option<String> {
    let folder = slurm.folder().to_str().unwrap();
    let file = example("slurm").join(script);
    let words = ["sbatch", "--wait", "--nodes=1", "--chdir", folder, file.to_str().unwrap()];
    let text = printed(&mut with_trainer(slurm.command(&words))?);
    let id = text.trim().rsplit(' ').next().unwrap();
    Some(fs::read_to_string(slurm.folder().join(format!("mnist-{id}.log"))).unwrap())
}

#[test]
fn batch_scripts_train() {
    let Some(slurm) = Slurm::up() else { return };
    let Some(log) = batch(&slurm, "srun.sbatch") else { return };
    assert!(log.starts_with("4 ranks on 1 host, started by slurm, met at "), "{log}");
    assert_trained(&log);
    // Once more: the run is whole, and nothing is left to do.
    let again = batch(&slurm, "srun.sbatch").unwrap();
    assert!(again.contains("going on from checkpoints/"), "{again}");
    assert!(!again.contains("epoch: "), "{again}");

    let log = batch(&slurm, "per-node.sbatch").unwrap();
    assert!(!log.contains("mpienv:"), "{log}");
    let mut logs = fs::read_dir(slurm.folder()).unwrap().map(|entry| entry.unwrap().path());
    let logs = logs.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("logs-")).unwrap();
    assert_trained(&fs::read_to_string(logs.join("rank.0/stdout")).unwrap());
    assert!(logs.join("rank.3/stdout").is_file());

    if is_there("mpirun") {
        assert_trained(&batch(&slurm, "mpirun.sbatch").unwrap());
    }
}
