//! A real Slurm on this machine.

use std::path::Path;
use std::process::Command;

use super::root::is_root;
use super::tool::{clean, is_there};

/// A real Slurm on this machine; stopped when dropped.
pub struct Slurm {
    folder: tempfile::TempDir,
}

impl Slurm {
    /// Starts it; prints a message and returns `None` if something that it needs is missing.
    pub fn up() -> Option<Slurm> {
        let programs = ["munged", "slurmctld", "slurmd", "srun", "sbatch"];
        if !programs.iter().all(|program| is_there(program)) || !is_root() {
            return None;
        }
        let slurm =
            Slurm { folder: tempfile::Builder::new().prefix("slurm").tempdir_in("/tmp").unwrap() };
        let output = slurm.script(&["up"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(slurm)
    }

    fn script(&self, words: &[&str]) -> Command {
        let mut command = clean("tests/slurm/one-machine.sh");
        command.args(words).env("MPIENV_SLURM_DIR", self.folder.path().join("slurm"));
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// A command that uses this Slurm.
    pub fn command(&self, words: &[&str]) -> Command {
        self.script(&[&["run"], words].concat())
    }

    /// Its own folder, which is removed with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What a program printed rarely says why Slurm ended its job.
            for name in ["slurmctld.log", "slurmd.log"] {
                let log = std::fs::read_to_string(self.folder.path().join("slurm").join(name));
                eprintln!("{name}:\n{}", log.unwrap_or_default());
            }
        }
        // A test that fails must not leave daemons behind.
        let _ = self.script(&["down"]).output();
    }
}
