//! The checkpoints of a job, and the result of a job without faults.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use mpienv_sharding::file::tensor_file::TensorFile;
use tempfile::TempDir;

use crate::support::timeout::PATIENT;

/// The number of embedded digits to train on, and how many of them a rank processes at a time.
const SAMPLES: u64 = 12_000;
const BATCH: u64 = 32;

/// The folder of a job's checkpoints, which all hosts see.
pub struct Checkpoints {
    folder: TempDir,
}

impl Checkpoints {
    pub fn new() -> Checkpoints {
        Checkpoints { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    pub fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    /// The newest checkpoint. Also asserts that none is incomplete, and that the job found none to
    /// be corrupt.
    pub fn newest(&self) -> Option<PathBuf> {
        let mut whole: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|end| end.to_str()) {
                Some("safetensors") => {
                    match TensorFile::read(&path) {
                        Ok(_) => whole.push(path),
                        // A running job keeps only the last five.
                        Err(error) => assert!(!path.exists(), "{error}"),
                    }
                }
                // An incomplete file whose writer was killed; the next run removes it.
                Some("part") => {}
                // A lock file that a killed rank 0 left; the next run takes it over.
                _ if path.file_name().is_some_and(|name| name == ".lock") => {}
                _ => panic!("{} is not of a sound job", path.display()),
            }
        }
        whole.sort();
        whole.pop()
    }

    /// How many epochs the newest checkpoint has begun, with this number of ranks.
    pub fn epochs(&self, ranks: u64) -> u64 {
        let newest = self.newest().unwrap();
        let (_, steps) = newest.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap();
        steps.parse::<u64>().unwrap().div_ceil(SAMPLES.div_ceil(ranks * BATCH))
    }

    /// The bytes of the newest checkpoint.
    pub fn last(&self) -> Vec<u8> {
        fs::read(self.newest().unwrap()).unwrap()
    }
}

/// The last checkpoint of an undisturbed run with this number of ranks on this machine.
pub fn undisturbed(ranks: u32, epochs: u64) -> Vec<u8> {
    let kept = Checkpoints::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.env_clear().args(["--quiet", "--timeout", PATIENT]);
    command.args(["--ranks", &ranks.to_string(), "--epochs", &epochs.to_string()]);
    let output = command.args(["--checkpoint-dir", kept.path()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    kept.last()
}
