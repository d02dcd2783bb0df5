//! Jobs of `mnist` that train without end, and the checkpoints that they keep.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;

use mpienv_sharding::file::tensor_file::TensorFile;
use rustix::process::{Pid, Signal, kill_process};

use super::living::living;
use super::mnist::{mnist, rank};
use super::port::free_port;
use super::running::Running;
use super::timeout::PATIENT;

/// Far more epochs than any test waits for.
pub const FOREVER: [&str; 3] = ["--epochs", "1000000", "--quiet"];

pub fn signal(run: &Running, signal: Signal) {
    kill_process(Pid::from_child(&run.child), signal).unwrap();
}

/// Three ranks without a launcher, all training; `more` are arguments for all.
pub fn three_ranks(more: &[&str]) -> Vec<Running> {
    three_ranks_in_time(PATIENT, more).unwrap()
}

/// The same with a timeout in seconds; `None` if they are too slow to train.
pub fn three_ranks_in_time(timeout: &str, more: &[&str]) -> Option<Vec<Running>> {
    let port = free_port();
    let start = |index| {
        Running::start(rank(index, 3, port).args(FOREVER).args(["--timeout", timeout]).args(more))
    };
    let ranks: Vec<_> = [0, 1, 2].map(start).into();
    ranks[0].trains().then_some(ranks)
}

/// `ranks` ranks that `mnist` starts, all training, and the PID of rank 1; `more` are arguments for
/// all.
pub fn launched(ranks: &str, more: &[&str]) -> (Running, Pid) {
    launched_in_time(ranks, PATIENT, more).unwrap()
}

/// The same with a timeout in seconds; `None` if they are too slow to train.
pub fn launched_in_time(ranks: &str, timeout: &str, more: &[&str]) -> Option<(Running, Pid)> {
    let mark = format!("{}-{:?}", std::process::id(), thread::current().id());
    let mut command = mnist();
    command
        .env("MNIST_TEST", &mark)
        .args(["--ranks", ranks, "--timeout", timeout])
        .args(FOREVER)
        .args(more);
    let launcher = Running::start(&mut command);
    if !launcher.trains() {
        return None;
    }
    let found = living(&[&format!("MNIST_TEST={mark}"), "RANK=1"]);
    assert!(found.len() <= 1, "{found:?}");
    Some((launcher, *found.first()?))
}

pub fn is_there(process: Pid) -> bool {
    Path::new(&format!("/proc/{}", process.as_raw_nonzero())).exists()
}

/// The arguments that write checkpoints to `folder`.
pub fn keeping(folder: &Path) -> [&str; 5] {
    ["--checkpoint-dir", folder.to_str().unwrap(), "--checkpoint-every", "3", "--resume"]
}

/// The checkpoints in a folder, the newest last.
pub fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).collect();
    files.sort();
    files
}

/// The metadata of a checkpoint.
pub fn about(checkpoint: &Path) -> serde_json::Value {
    serde_json::from_str(&TensorFile::read(checkpoint).unwrap().about).unwrap()
}

pub fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
