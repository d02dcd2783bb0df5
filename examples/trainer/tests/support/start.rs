//! The start of a run: when its first step is done, and how much memory its ranks need.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::living::living;

/// The time and memory of a run.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// From the start of the command to the line of the first step, of rank 0 or another rank.
    pub first_step: Duration,
    /// The peak memory of any process of the run after its first epoch and test, in bytes.
    pub peak: u64,
}

/// Lets `command`, which starts `mnist` on one rank or more, train for an epoch, and stops it.
pub fn start(command: &mut Command) -> Start {
    let mark = format!("{}-start", std::process::id());
    command
        .args(["--epochs", "1000000", "--log-steps"])
        .env("MNIST_TEST", &mark)
        .stdout(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    let first_step = begun.elapsed();
    assert!(first.contains("epoch: 0, step: 0, "), "{first}");
    lines.find(|line| line.contains("epoch: 1, ")).unwrap();
    let processes = living(&[&format!("MNIST_TEST={mark}")]);
    let peak = processes.into_iter().filter_map(peak).max().unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    // Reads to the end, because a program fails if its output has no reader.
    lines.for_each(drop);
    child.wait().unwrap();
    Start { first_step, peak }
}

/// The peak memory of a process of `mnist` so far, in bytes.
fn peak(process: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let kilobytes = field("VmHWM:")?.strip_suffix(" kB")?;
    (field("Name:") == Some("mnist")).then_some(kilobytes.parse::<u64>().ok()? * 1024)
}
