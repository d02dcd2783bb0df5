//! Jobs that hang: how their silence is noticed, and what their ranks are doing at that moment.
//!
//! Each node has a [`Watch`], which reports when its workers have been silent for the time of
//! `--stall-timeout`. A worker shows that it makes progress by the bytes that it writes, and by its
//! heartbeat file. Once all nodes are silent, each looks at its own workers and sends a [`RankState`] of
//! each to the coordinator, which makes a [`Stall`] of them.

mod process;
mod python;
mod report;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::LaunchError;
use crate::job::{Time, own_host};
use crate::output::Captured;
use crate::target_file::{HeldFile, is_in_memory};
use mpienv_core::Environment;
use mpienv_core::seam::TargetFile;

pub(crate) use self::report::Stall;

use self::process::{ProcessState, at_work, cpu_time, state_of};

/// How many looks there are in the time after which a job has stalled.
const LOOKS: u32 = 16;
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// The workers of this node, and when each was last active.
#[derive(Debug)]
pub(crate) struct Watch {
    timeout: Duration,
    every: Duration,
    /// How long this process has watched. While it is stopped, it reads nothing that workers write,
    /// and the time stands still.
    time: Duration,
    checked: Instant,
    /// When any worker was last active.
    active: Duration,
    /// Whether the other nodes know that the workers are silent.
    has_reported: bool,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    rank: u32,
    process: u32,
    output: Captured,
    heartbeat: HeldFile,
    /// The traces of its output and of its heartbeat file at the last look.
    seen: [Trace; 2],
    /// When it last wrote something, and when it last touched the file.
    active: [Option<Duration>; 2],
    /// The CPU time of the process that does its work, for each look of the last `timeout`.
    cpu: VecDeque<(Duration, u32, Duration)>,
}

impl Watch {
    /// `timeout`: how long a job may be silent.
    pub(crate) fn new(timeout: Duration) -> Watch {
        Watch {
            timeout,
            every: (timeout / LOOKS).clamp(SHORTEST, LONGEST),
            time: Duration::ZERO,
            checked: Instant::now(),
            active: Duration::ZERO,
            has_reported: false,
            workers: Vec::new(),
        }
    }

    /// Adds a worker that has just started. A start is activity.
    pub(crate) fn add(&mut self, rank: u32, process: u32, output: Captured, heartbeat: HeldFile) {
        self.advance();
        let seen = [Trace::default(), [state_of_file(&heartbeat.path), Default::default()]];
        let (active, cpu) = ([None; 2], VecDeque::new());
        self.workers.push(Worker { rank, process, output, heartbeat, seen, active, cpu });
        self.active = self.time;
    }

    /// Removes a worker that has exited, which is activity, too.
    pub(crate) fn remove(&mut self, rank: u32) {
        self.advance();
        self.workers.retain(|worker| worker.rank != rank);
        self.active = self.time;
    }

    /// Returns how long to wait before the next look.
    pub(crate) fn pause(&self) -> Duration {
        self.every.saturating_sub(self.checked.elapsed())
    }

    /// Looks at the workers if it is time. Returns whether they are silent if that has changed.
    pub(crate) fn turn(&mut self) -> Option<bool> {
        if self.pause().is_zero() {
            self.check();
        }
        let is_silent = self.is_silent();
        (std::mem::replace(&mut self.has_reported, is_silent) != is_silent).then_some(is_silent)
    }

    fn is_silent(&self) -> bool {
        self.time.saturating_sub(self.active) >= self.timeout
    }

    /// Advances the time. After a longer pause than intended, only this process may have stood
    /// still.
    fn advance(&mut self) {
        let now = Instant::now();
        let since = now.saturating_duration_since(self.checked);
        self.time += since.min(2 * self.every);
        self.checked = now;
    }

    fn check(&mut self) {
        self.advance();
        for worker in &mut self.workers {
            let (output, is_blocked) = worker.output.trace();
            let now = [output, [state_of_file(&worker.heartbeat.path), Default::default()]];
            for ((active, now), seen) in worker.active.iter_mut().zip(now).zip(worker.seen) {
                if now != seen {
                    *active = Some(self.time);
                    self.active = self.time;
                }
            }
            worker.seen = now;
            if is_blocked {
                // The reader of this process's output is slow, and makes the workers wait.
                self.active = self.time;
            }
            worker.sample(self.time, self.timeout);
        }
    }

    /// Returns what each worker is doing, or `None` if one has been active in the meantime.
    ///
    /// `prepare`: what the launch does to every command that it starts.
    pub(crate) fn examine(&mut self, prepare: &dyn Fn(&mut Command)) -> Option<Vec<RankState>> {
        if !self.is_still_silent() {
            return None;
        }
        let host = own_host();
        let mut ranks: Vec<_> =
            self.workers.iter().map(|worker| worker.state(&host, self.time)).collect();
        let processes: Vec<_> = ranks.iter().map(|state| state.process).collect();
        let stacks = python::stacks(&processes, prepare);
        ranks.iter_mut().zip(stacks).for_each(|(state, stack)| state.stack = stack);
        // What was seen took some time.
        self.is_still_silent().then_some(ranks)
    }

    fn is_still_silent(&mut self) -> bool {
        self.check();
        self.has_reported = self.is_silent();
        self.has_reported
    }
}

impl Worker {
    fn sample(&mut self, time: Duration, timeout: Duration) {
        let process = at_work(self.process);
        if let Some(cpu) = cpu_time(process) {
            self.cpu.push_back((time, process, cpu));
        }
        while self.cpu.get(1).is_some_and(|(at, ..)| time.saturating_sub(*at) >= timeout) {
            self.cpu.pop_front();
        }
    }

    fn state(&self, host: &str, time: Duration) -> RankState {
        let [written, touched] =
            self.active.map(|active| active.map(|active| Time(time.saturating_sub(active))));
        let process = at_work(self.process);
        let mut now = state_of(process).unwrap_or_default();
        let mut same = self.cpu.iter().filter(|(_, sampled, _)| *sampled == process);
        let first = same.next().copied();
        let window = first.map_or(Duration::ZERO, |(at, ..)| time.saturating_sub(at));
        let cpu =
            first.zip(cpu_time(process)).map(|((.., before), now)| now.saturating_sub(before));
        // Its main thread may be waiting for the others.
        let is_busy = cpu.is_some_and(|cpu| !window.is_zero() && cpu >= window / 2);
        if is_busy && matches!(now.doing, Doing::Waits | Doing::Sleeps) {
            now.doing = Doing::Runs;
        }
        RankState {
            rank: self.rank,
            host: host.to_owned(),
            written,
            touched,
            line: self.output.last_line(),
            process,
            now,
            cpu: cpu.map(Time),
            window: Time(window),
            stack: Vec::new(),
        }
    }
}

/// The lengths of two streams, or the lengths and times of files: a value that differs whenever a
/// worker has been active in between. What it contains means nothing else: clocks of file servers
/// differ from that of this machine.
pub(crate) type Trace = [(u64, Duration); 2];

/// Returns the length and the time of a file, which need not exist.
pub(crate) fn state_of_file(path: &Path) -> (u64, Duration) {
    let Ok(file) = std::fs::metadata(path) else { return Default::default() };
    let time = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    (file.len(), time.unwrap_or_default())
}

/// Names the file of a worker.
const VARIABLE: &str = "MPIENV_HEARTBEAT_FILE";

/// Shows the launch that this worker is making progress although it prints nothing.
///
/// It sets the time of the file that `MPIENV_HEARTBEAT_FILE` names: see [`Launch::stall_timeout`].
/// Without that variable, it does nothing. It takes some microseconds, so that it may be called in
/// every step.
///
/// ```
/// for _step in 0..3 {
///     // Compute for some minutes.
///     mpienv::heartbeat()?;
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the file cannot be opened, for example because the launch is gone, or if the
/// path is that of another program's file, as it may be in a PID namespace of its own.
///
/// [`Launch::stall_timeout`]: crate::Launch::stall_timeout
pub fn heartbeat() -> io::Result<()> {
    // Read once: a program may call this a thousand times a second.
    static FILE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let environment = Environment::current();
        environment.get(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
    });
    FILE.as_deref().map_or(Ok(()), touch)
}

fn touch(path: &Path) -> io::Result<()> {
    let touched = || {
        // In another PID namespace, the path may be that of another program's file.
        if path.starts_with("/proc") && !is_in_memory(path)? {
            let why = "it is not the file of the launch";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        File::options().write(true).open(path)?.set_modified(SystemTime::now())
    };
    touched().map_err(|error| {
        let path = path.display();
        let remedy = "start this program in the PID namespace of `mpienv launch`, or unset it";
        io::Error::new(error.kind(), format!("{VARIABLE} is {path}: {error}; {remedy}"))
    })
}

/// Creates the file of a worker, and names it in the worker's variables. The file exists until the
/// returned value is dropped.
pub(super) fn heartbeat_file(worker: &mut Command) -> Result<HeldFile, LaunchError> {
    let file = HeldFile::write(TargetFile { variable: VARIABLE, text: String::new() })?;
    worker.env(VARIABLE, &file.path);
    Ok(file)
}

/// A rank of a job that has stalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankState {
    pub rank: u32,
    pub host: String,
    /// How long ago it wrote something, if it ever has.
    pub written: Option<Time>,
    /// How long ago it touched its heartbeat file, if it ever has.
    pub touched: Option<Time>,
    /// The last line that it wrote.
    pub line: Option<String>,
    /// The process that does its work.
    pub process: u32,
    #[serde(flatten)]
    pub now: ProcessState,
    /// The CPU time that it has used in the last part of the silence.
    pub cpu: Option<Time>,
    /// The length of that part.
    pub window: Time,
    /// The Python frames of its main thread, innermost first.
    pub stack: Vec<String>,
}

/// What a main thread is doing, in order of how ordinary it is in a job that waits for one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doing {
    /// It waits for something else, such as another rank.
    Waits,
    /// It uses the CPU, as some libraries do while they wait for other ranks.
    Runs,
    #[default]
    Unknown,
    /// It waits for a time to pass.
    Sleeps,
    /// It waits for a device.
    Disk,
    /// A signal or a debugger has stopped it.
    Stopped,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doing::Waits => "waiting",
            Doing::Runs => "running",
            Doing::Unknown => "in an unknown state",
            Doing::Sleeps => "sleeping",
            Doing::Disk => "waiting for a disk or a device",
            Doing::Stopped => "stopped by a signal",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd as _;

    impl RankState {
        /// A rank that waits.
        pub(crate) fn waiting(rank: u32) -> RankState {
            RankState {
                rank,
                host: format!("node{}", rank / 2),
                written: Some(Time(Duration::from_secs(5))),
                touched: None,
                line: Some("step 7".to_owned()),
                process: 100 + rank,
                now: ProcessState {
                    command: "python".to_owned(),
                    doing: Doing::Waits,
                    call: Some("futex".to_owned()),
                    channel: None,
                },
                cpu: Some(Time(Duration::from_millis(100))),
                window: Time(Duration::from_secs(5)),
                stack: Vec::new(),
            }
        }
    }

    #[test]
    fn a_heartbeat_changes_the_time_of_its_file_and_nothing_else() {
        let file = heartbeat_file(&mut Command::new("true")).unwrap();
        let before = fs::metadata(&file.path).unwrap().modified().unwrap();
        while fs::metadata(&file.path).unwrap().modified().unwrap() <= before {
            touch(&file.path).unwrap();
        }
        assert_eq!(fs::read(&file.path).unwrap(), b"");
        let path = file.path.clone();
        drop(file);
        assert!(touch(&path).is_err());
    }

    #[test]
    fn a_heartbeat_leaves_another_programs_file_alone() {
        let file = tempfile::tempfile().unwrap();
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        file.set_modified(before).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let error = touch(Path::new(&path)).unwrap_err();
        let said = format!("MPIENV_HEARTBEAT_FILE is {path}: it is not the file of the launch; ");
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(file.metadata().unwrap().modified().unwrap(), before);
    }
}
