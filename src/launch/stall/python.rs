//! Where a Python program is, if py-spy is installed.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::tell;
use mpienv_ask::seam::Helper;
use mpienv_core::printable;

/// How long all calls of py-spy may take together.
const LIMIT: Duration = Duration::from_secs(10);
/// How many of them run at once.
const AT_ONCE: usize = 8;
/// How many frames a report has, and how long each may be, in characters.
const FRAMES: usize = 12;
const WIDTH: usize = 160;

/// Returns the frames of the main thread of each process, innermost first. They are empty if the
/// process does not run Python, or if py-spy is absent or must not read it.
///
/// `prepare`: what the launch does to every command that it starts, so that nothing outlives it.
pub(super) fn stacks(processes: &[u32], prepare: &dyn Fn(&mut Command)) -> Vec<Vec<String>> {
    let deadline = Instant::now() + LIMIT;
    let (mut stacks, mut is_absent) = (Vec::new(), false);
    for some in processes.chunks(AT_ONCE) {
        let start = |process: &u32| {
            let wanted = !is_absent && Instant::now() < deadline && runs_python(*process);
            let started = wanted.then(|| spy(*process, prepare))?;
            started.inspect_err(|error| is_absent |= tell_if_absent(error)).ok()
        };
        let started: Vec<_> = some.iter().map(start).collect();
        stacks.extend(started.into_iter().map(|spy| {
            // Without a status, it took too long.
            let answer = spy.map(|spy| spy.finish(deadline)).filter(|own| own.status.is_some());
            answer.map_or_else(Vec::new, |own| frames(&String::from_utf8_lossy(&own.stdout)))
        }));
    }
    stacks
}

/// Says once that py-spy is absent: a report is made again if a rank was active meanwhile. Returns
/// whether it is.
fn tell_if_absent(error: &io::Error) -> bool {
    static TOLD: Once = Once::new();
    let is_absent = error.kind() == io::ErrorKind::NotFound;
    if is_absent {
        TOLD.call_once(|| {
            tell(
                "py-spy is not on PATH; after `pip install py-spy`, the report shows Python functions",
            );
        });
    }
    is_absent
}

/// Returns whether a process has loaded Python.
fn runs_python(process: u32) -> bool {
    let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&maps).lines().any(|line| {
        let name = line.rsplit('/').next().unwrap_or_default();
        line.contains('/') && (name.starts_with("python") || name.starts_with("libpython"))
    })
}

/// Starts py-spy. It does not pause the process, which may already be stopped.
fn spy(process: u32, prepare: &dyn Fn(&mut Command)) -> io::Result<Helper> {
    let mut command = Command::new("py-spy");
    command.args(["dump", "--nonblocking", "--pid", &process.to_string()]);
    prepare(&mut command);
    Helper::start(&mut command, &[])
}

/// Reads the frames of the main thread from the output of py-spy.
fn frames(output: &str) -> Vec<String> {
    let threads = output.split("\nThread ").skip(1);
    let is_main = |thread: &&str| thread.lines().next().unwrap_or_default().contains("MainThread");
    let Some(main) = threads.clone().find(is_main).or_else(|| threads.clone().next()) else {
        return Vec::new();
    };
    let frames = main.lines().skip(1).map(str::trim).take_while(|line| !line.is_empty());
    let shortened = |frame: &str| printable(frame.as_bytes()).chars().take(WIDTH).collect();
    frames.take(FRAMES).map(shortened).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_of_the_main_thread_are_read() {
        let output = "Process 7: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n\
                      Thread 9 (idle): \"loader\"\n    get (queue.py:1)\n\n\
                      Thread 7 (idle): \"MainThread\"\n    wait (threading.py:320)\n    \
                      <module> (train.py:10)\n";
        assert_eq!(frames(output), ["wait (threading.py:320)", "<module> (train.py:10)"]);
        assert_eq!(frames(""), [""; 0]);
        assert_eq!(frames("Error: Permission denied"), [""; 0]);
    }
}
