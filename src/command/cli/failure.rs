//! Why a command failed, and the exit code for it.

use std::io;
use std::process::ExitStatus;

use crate::command::check::CheckError;
use crate::command::resolve::Unresolved;
use crate::simulate::JobError;
use crate::{ErrorKind, LaunchError, StartError};
use mpienv_core::seam::TemplateError;
use mpienv_core::seam::WordsError;

use super::exit_code::ExitCode;
use super::inner_launcher::InnerLauncher;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Environment(#[from] crate::Error),
    #[error(transparent)]
    Unrepresentable(#[from] crate::Unrepresentable),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    #[error("doctor found problems; see the findings above")]
    Findings,
    #[error(
        "doctor found no problem on this host, but could not compare the ranks; see above, or \
         inspect this rank only with --timeout 0"
    )]
    NotCompared,
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Rank 0 prints why the ranks did not meet.
    #[error("the meeting of the ranks failed; rank 0 at {master} prints why")]
    OfRank0 { master: String, kind: ErrorKind, is_silent: bool },
    /// This rank's report on stdout says that it did not meet rank 0.
    #[error("doctor could not compare this rank; see above")]
    Reported,
    #[error("all ranks connected, but their settings conflict; see above")]
    Disagreement,
    #[error("all ranks met, but {0}; see above")]
    Measured(&'static str),
    #[error("nothing was checked: {what}; {why}; {remedy}")]
    NotATask { what: String, why: String, remedy: String },
    #[error(transparent)]
    InnerLauncher(#[from] InnerLauncher),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(
        "the stack is too small (ulimit -s), and a thread with a larger one cannot start: {0}; raise both limits (ulimit -s, ulimit -v)"
    )]
    Stack(io::Error),
    #[error("this worker was not started: {0}; start the job again")]
    Orphan(io::Error),
    #[error(transparent)]
    Shape(#[from] JobError),
    #[error("rank {rank} does not exist in a job of {size}; choose one from 0 to {}", size - 1)]
    NoSuchRank { rank: u32, size: u32 },
    #[error(
        "the command of rank {rank} failed ({status}); its last lines above may name the cause"
    )]
    Rank { rank: u32, status: ExitStatus },
    #[error(
        "cannot write stdout: {0}; check the redirection, the disk, or the program that reads the output"
    )]
    Output(#[from] io::Error),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<WordsError> for Failure {
    fn from(error: WordsError) -> Failure {
        match error {
            WordsError::Place(error) => error.into(),
            WordsError::Words(error) => error.into(),
        }
    }
}

impl Failure {
    /// Returns whether the reader of stdout has exited, as `head` does.
    fn is_by_reader(&self) -> bool {
        match self {
            Failure::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Failure::Launch(error) => error.kind() == ErrorKind::ReaderGone,
            _ => false,
        }
    }

    /// Returns whether something else has printed the reason, so that this rank need not.
    pub(super) fn is_silent(&self) -> bool {
        match self {
            Failure::OfRank0 { is_silent, .. } => *is_silent,
            Failure::Reported => true,
            _ => self.is_by_reader(),
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            _ if self.is_by_reader() => ExitCode::READER_GONE,
            Failure::Check(error) => error.kind().into(),
            Failure::OfRank0 { kind, .. } => (*kind).into(),
            Failure::Launch(error) => error.kind().into(),
            Failure::Rank { status, .. } => ErrorKind::Failed(*status).into(),
            Failure::Unresolved(_) => ExitCode::TIMED_OUT,
            Failure::Disagreement
            | Failure::Measured(_)
            | Failure::NotATask { .. }
            | Failure::Findings
            | Failure::NotCompared
            | Failure::Reported => ExitCode::CHECK_FAILED,
            Failure::Template(error) if error.is_by_environment() => ExitCode::WRONG_ENVIRONMENT,
            Failure::Shape(_)
            | Failure::NoSuchRank { .. }
            | Failure::Template(_)
            | Failure::InnerLauncher(_) => ExitCode::USAGE,
            Failure::Environment(_)
            | Failure::Unrepresentable(_)
            | Failure::Output(_)
            | Failure::Stack(_)
            | Failure::Orphan(_) => ExitCode::WRONG_ENVIRONMENT,
            Failure::Start(error) if error.is_not_found() => ExitCode::NOT_FOUND,
            Failure::Start(_) => ExitCode::NOT_EXECUTABLE,
        }
    }
}
