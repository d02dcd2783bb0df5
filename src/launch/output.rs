//! Where the workers' lines go: unchanged, with the rank before each, or into files.

#[cfg(all(feature = "launch", unix))]
mod copier;
#[cfg(not(all(feature = "launch", unix)))]
#[path = "output/threads.rs"]
mod copier;
mod faults;
mod lines;
mod tail;

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::launch::error::LaunchError;
use crate::launch::log_file::{Folder, Unusable};
use crate::launch::report::LaunchReport;
use crate::launch::role::Role;

pub(super) use copier::Copier;
pub(super) use faults::Faults;

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
    /// it are an error.
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
#[derive(Debug)]
pub(super) enum Captured {
    Nothing,
    /// The progress of its stdout and its stderr.
    Lines([Arc<Progress>; 2]),
    /// The folder of its files.
    File(Folder),
}

/// Where the workers' output goes in one attempt.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub output: Output,
    /// The folder of this attempt.
    pub attempt: Option<String>,
}

impl Place {
    /// Checks that the workers' output can be written, before they write it and after.
    ///
    /// The system reports a failed write only to the worker, and few programs check it.
    pub(super) fn try_room(&self) -> Result<(), LaunchError> {
        self.folder().map_or(Ok(()), |folder| folder.try_room().map_err(LaunchError::from))
    }

    /// Starts the thread that copies the workers' lines, if they are copied.
    pub(super) fn copier(&self) -> io::Result<Option<Copier>> {
        matches!(self.output, Output::Prefixed).then(Copier::start).transpose()
    }

    /// Sets where a command's output goes, before it is started.
    pub(super) fn direct(&self, role: Role, command: &mut Command) -> Result<(), LaunchError> {
        match &self.output {
            Output::Inherited if role.rank().is_none() => {
                // The scheduler prints the same as rank 0's worker.
                command.stdout(Stdio::null());
            }
            Output::Inherited => {}
            Output::Prefixed => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            Output::LogDir(_) => {
                if let Some(folder) = self.folder_of(role) {
                    command.stdout(folder.create(STDOUT)?).stderr(folder.create(STDERR)?);
                }
            }
        }
        Ok(())
    }

    /// Takes over the streams that [`Place::direct`] set up.
    pub(super) fn capture(
        &self,
        role: Role,
        child: &mut Child,
        copier: Option<&Copier>,
        faults: &Faults,
    ) -> io::Result<Captured> {
        let Some(copier) = copier else {
            return Ok(self.folder_of(role).map_or(Captured::Nothing, Captured::File));
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

    fn folder(&self) -> Option<Folder> {
        let Output::LogDir(named) = &self.output else { return None };
        let folder = Folder::new(named);
        Some(self.attempt.iter().fold(folder, |folder, attempt| folder.join(attempt.clone())))
    }

    fn folder_of(&self, role: Role) -> Option<Folder> {
        self.folder().map(|folder| folder.join(role.folder()))
    }
}

impl Captured {
    /// Waits for the last lines of a worker whose group has exited, however slow their reader is,
    /// unless `is_hurried`.
    ///
    /// Returns whether all lines have been written.
    pub(super) fn finish(&self, is_hurried: impl Fn() -> bool) -> bool {
        let Captured::Lines(copies) = self else { return true };
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
                    report.place += &format!(" ({path})");
                }
                if let Err(Unusable { error, .. }) = folder.try_room() {
                    report.place +=
                        &format!(" (cannot write {path}, lines may be missing: {error})");
                }
            }
        }
        Some(report)
    }
}

impl From<Unusable> for LaunchError {
    fn from(Unusable { path, error }: Unusable) -> LaunchError {
        LaunchError::LogDir { path, error }
    }
}
