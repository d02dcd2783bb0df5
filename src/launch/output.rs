//! Where the workers' lines go: unchanged, with the rank before each, or into files.

mod copier;
mod lines;
mod tail;

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::LaunchError;
use crate::log_file::Folder;
use crate::report::LaunchReport;
use crate::running::Role;
use crate::stall::{Trace, state_of_file};
use crate::supervisor::Waker;

use copier::Copier;
use lines::{Lines, Progress, Sink};
use tail::Tail;

/// Where the workers' stdout and stderr go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// To this process's own stdout and stderr, unchanged.
    #[default]
    Inherited,
    /// To this process's own stdout and stderr, as whole lines with `[rank] ` before each.
    ///
    /// A line of more than 16 MiB is split into several.
    Prefixed,
    /// Into files of a folder, which is created if needed: `rank.K/stdout` and `rank.K/stderr`.
    ///
    /// Existing files with these names are truncated. The folder may be a symbolic link; links in
    /// it are an error, and so are files to which another launch writes.
    LogDir(PathBuf),
}

/// The interval at which to check whether the last lines have arrived.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How many checks may find nothing to copy once all workers are gone, because a foreign process
/// may hold the pipe.
const QUIET_LOOKS: u32 = 1000;
/// The files of a worker.
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

/// The captured output of one worker.
#[derive(Clone, Debug)]
pub(super) enum Captured {
    Nothing,
    /// The progress of its stdout and its stderr.
    Lines([Arc<Progress>; 2]),
    /// The folder of its files.
    File(Folder),
}

/// Where the workers' output goes in one attempt.
#[derive(Debug)]
pub(super) enum Streams {
    Inherited,
    /// A thread copies the workers' lines.
    Prefixed(Copier, Faults),
    /// Below the folder of this attempt.
    Files(Folder),
}

impl Output {
    /// Returns the folder of an attempt, if the output goes to files.
    ///
    /// `attempt`: the name of the attempt's folder.
    pub(super) fn folder(&self, attempt: Option<String>) -> Option<Folder> {
        match self {
            Output::LogDir(named) => {
                Some(attempt.into_iter().fold(Folder::new(named), Folder::join))
            }
            Output::Inherited | Output::Prefixed => None,
        }
    }

    /// `folder`: that of the attempt.
    pub(super) fn open(
        &self,
        folder: Option<Folder>,
        faults: &Faults,
    ) -> Result<Streams, LaunchError> {
        let streams = match (self, folder) {
            (_, Some(folder)) => Streams::Files(folder),
            (Output::Prefixed, None) => {
                Streams::Prefixed(Copier::start().map_err(LaunchError::Thread)?, faults.clone())
            }
            (Output::Inherited | Output::LogDir(_), None) => Streams::Inherited,
        };
        streams.try_room()?;
        Ok(streams)
    }
}

impl Streams {
    /// Checks that the workers' output can be written, before they write it and after.
    ///
    /// The system reports a failed write only to the worker, and few programs check it.
    pub(super) fn try_room(&self) -> Result<(), LaunchError> {
        match self {
            Streams::Files(folder) => folder.try_room(),
            _ => Ok(()),
        }
    }

    /// Sets where a command's output goes, before it is started.
    pub(super) fn direct(&self, role: Role, command: &mut Command) -> Result<(), LaunchError> {
        match self {
            Streams::Inherited if role.worker().is_none() => {
                // The scheduler prints the same as rank 0's worker.
                command.stdout(Stdio::null());
            }
            Streams::Inherited => {}
            Streams::Prefixed(..) => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            Streams::Files(folder) => {
                let folder = folder.clone().join(role.folder());
                folder.lock(STDOUT)?;
                command.stdout(folder.create(STDOUT)?).stderr(folder.create(STDERR)?);
            }
        }
        Ok(())
    }

    /// Takes over the streams that [`Streams::direct`] set up.
    pub(super) fn capture(&self, role: Role, child: &mut Child) -> io::Result<Captured> {
        let (copier, faults) = match self {
            Streams::Inherited => return Ok(Captured::Nothing),
            Streams::Files(folder) => {
                return Ok(Captured::File(folder.clone().join(role.folder())));
            }
            Streams::Prefixed(copier, faults) => (copier, faults),
        };
        let [stdout, stderr] =
            [Sink::Stdout, Sink::Stderr].map(|sink| Lines::new(role, sink, faults));
        let progress = [&stdout, &stderr].map(|lines| Arc::clone(&lines.progress));
        if let Some(from) = child.stdout.take() {
            copier.copy(from, stdout)?;
        }
        if let Some(from) = child.stderr.take() {
            copier.copy(from, stderr)?;
        }
        Ok(Captured::Lines(progress))
    }
}

impl Captured {
    /// Waits for the last lines of workers whose groups have exited, however slow their reader is,
    /// unless `is_hurried`.
    ///
    /// Returns whether all lines have been written.
    pub(super) fn finish(all: &[Captured], is_hurried: impl Fn() -> bool) -> bool {
        let lines = |one: &Captured| match one {
            Captured::Lines(copies) => copies.to_vec(),
            _ => Vec::new(),
        };
        let copies: Vec<_> = all.iter().flat_map(lines).collect();
        let mut quiet = 0;
        // Counts checks instead of time, because nothing is read while this process is stopped.
        while quiet < QUIET_LOOKS && !copies.iter().all(|copy| copy.is_finished()) {
            if is_hurried() {
                return false;
            }
            thread::sleep(LOOK_EVERY);
            if copies.iter().all(|copy| copy.is_quiet()) {
                quiet += 1;
            }
        }
        true
    }

    /// Returns a value that differs if the worker has written something in between, and whether
    /// this process still has to write what it has read.
    pub(super) fn trace(&self) -> (Trace, bool) {
        match self {
            Captured::Nothing => (Trace::default(), false),
            Captured::Lines(streams) => {
                let is_blocked = !streams.iter().all(|stream| stream.is_quiet());
                (streams.each_ref().map(|stream| (stream.bytes(), Duration::ZERO)), is_blocked)
            }
            Captured::File(folder) => {
                ([STDOUT, STDERR].map(|name| state_of_file(&folder.path().join(name))), false)
            }
        }
    }

    /// Returns the last line that the worker wrote, if it is known.
    pub(super) fn last_line(&self) -> Option<String> {
        match self {
            Captured::Nothing => None,
            Captured::Lines(streams) => {
                let newest = streams.iter().max_by_key(|stream| stream.tail().number)?;
                newest.tail().last()
            }
            Captured::File(folder) => {
                let changed = |name: &&str| {
                    let file = std::fs::metadata(folder.path().join(name)).ok()?;
                    (file.len() > 0).then_some(file.modified().ok()?)
                };
                let newest = [STDOUT, STDERR].into_iter().filter(|name| changed(name).is_some());
                let file = folder.read(newest.max_by_key(changed)?).ok()?;
                Tail::of_file(file).last()
            }
        }
    }

    /// Returns a report with the last lines of stderr, or `None` if they are not known.
    pub(super) fn report(&self) -> Option<LaunchReport> {
        let mut report = LaunchReport::default();
        match self {
            Captured::Nothing => return None,
            Captured::Lines([_, stderr]) => {
                let tail = stderr.tail();
                (report.stderr, report.is_in_sight) = (tail.lines(), tail.is_in_sight());
            }
            Captured::File(folder) => {
                let tail = folder.read(STDERR).map(Tail::of_file).unwrap_or_default();
                report.stderr = tail.lines();
                let path = folder.path().join(STDERR);
                let path = path.display();
                if !report.stderr.is_empty() {
                    report.source += &format!(" ({path})");
                }
                if let Err(LaunchError::LogDir { error, .. }) = folder.try_room() {
                    report.source +=
                        &format!(" (cannot write {path}, lines may be missing: {error})");
                }
            }
        }
        Some(report)
    }
}

/// The first failure to write any worker's output.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    first: Arc<Mutex<Option<LaunchError>>>,
    waker: Waker,
}

impl Faults {
    /// Starts without a fault. Each fault wakes the launch.
    pub(crate) fn new(waker: Waker) -> Faults {
        Faults { first: Arc::default(), waker }
    }

    /// Adds a fault. Breaks off if the reader has exited, as `head` does: the worker then notices
    /// it as without a launch.
    pub(super) fn add(&self, stream: &'static str, error: io::Error) -> ControlFlow<()> {
        let fault = LaunchError::Output { stream, error };
        let is_by_reader = fault.is_by_reader();
        self.lock().get_or_insert(fault);
        self.waker.wake();
        if is_by_reader { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns whether there is a fault that was not taken.
    pub(crate) fn is_left(&self) -> bool {
        self.lock().is_some()
    }

    /// Takes the first fault if `is_such` accepts it.
    pub(crate) fn take_if(
        &self,
        is_such: impl FnOnce(&LaunchError) -> bool,
    ) -> Option<LaunchError> {
        self.lock().take_if(|fault| is_such(fault))
    }

    fn lock(&self) -> MutexGuard<'_, Option<LaunchError>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn outsiders_that_hold_the_pipes_of_many_workers_are_waited_for_at_the_same_time() {
        let held = |_| {
            let streams = [Arc::<Progress>::default(), Arc::default()];
            streams.iter().for_each(|stream| stream.set_idle(true));
            Captured::Lines(streams)
        };
        // One after the other, a thousand take a quarter of an hour.
        let all: Vec<_> = (0..1000).map(held).collect();
        let start = Instant::now();
        assert!(Captured::finish(&all, || start.elapsed() > Duration::from_secs(300)));
    }
}
