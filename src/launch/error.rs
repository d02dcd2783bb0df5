//! Why workers were not started, or did not all succeed.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::error::Error;
use crate::launch::start_error::StartError;

/// Why workers were not started, or did not all succeed.
///
/// ```
/// use std::process::Command;
/// use mpienv::{ClusterInfo, Launch, LaunchError};
///
/// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
/// let error = Launch::new(&info, 1)?.run(|_worker| Command::new("false")).unwrap_err();
/// assert!(matches!(error, LaunchError::Failed { rank: 0, .. }));
/// # Ok::<(), LaunchError>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The environment has no place for workers.
    #[error(transparent)]
    Environment(#[from] Error),
    /// A simulated job has more ranks than one machine should run together.
    #[error(
        "the simulated job has {ranks} ranks, and at most {most} run on one machine; simulate a smaller job or one rank"
    )]
    TooManyRanks {
        /// How many ranks the job has.
        ranks: u32,
        /// How many run on one machine.
        most: u32,
    },
    /// No port for rank 0 is free on this machine.
    #[error("no port is free for rank 0: {0}; set MASTER_PORT")]
    NoPort(#[source] io::Error),
    /// The system refuses what is needed to pass signals on.
    #[error("signals cannot be passed on to the workers: {0}; see the limits of this process (ulimit -n)")]
    Signals(#[source] io::Error),
    /// A file for a worker's output cannot be written.
    #[error("{path:?} cannot be written: {error}; name a folder for the workers' output that can be written")]
    LogDir {
        /// The folder or file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// This process could not write what the workers wrote.
    #[error("{stream} cannot be written: {error}; see the disk, or the program that reads it")]
    Output {
        /// `stdout` or `stderr`.
        stream: &'static str,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// No thread could be started to copy the workers' lines.
    #[error(
        "the workers' output cannot be read: {0}; raise the limit of processes and threads (ulimit -u) or of memory \
         (ulimit -v), or have the workers write into files"
    )]
    Thread(#[source] io::Error),
    /// A worker's program could not be started.
    #[error("rank {rank} cannot be started: {error}")]
    Start {
        /// The worker's rank.
        rank: u32,
        /// What the system says of which program.
        #[source]
        error: StartError,
    },
    /// A worker could not be waited for.
    #[error("rank {rank} cannot be waited for: {error}; see that nothing else reaps this process's children")]
    Wait {
        /// The worker's rank.
        rank: u32,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// A worker failed; it was the first.
    #[error("{}", failed(*rank, host.as_deref(), *status, *passed_on, stderr.as_deref()))]
    Failed {
        /// The worker's rank.
        rank: u32,
        /// This host's name, where it is known.
        host: Option<String>,
        /// Its exit status.
        status: ExitStatus,
        /// Whether a signal ended it that this process had been sent and passed on.
        passed_on: bool,
        /// The last lines that it wrote on stderr, as one line, where its output is not inherited.
        stderr: Option<String>,
    },
}

debug_is_text!(LaunchError);

/// One line: role, where, how, and what it said last.
fn failed(rank: u32, host: Option<&str>, status: ExitStatus, passed_on: bool, stderr: Option<&str>) -> String {
    let mut text = format!("rank {rank}");
    if let Some(host) = host {
        // Writing to a string cannot fail.
        let _ = write!(text, " on {host}");
    }
    let status = match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string().replacen("signal: ", "signal ", 1),
    };
    let _ = write!(text, " ended with {status}");
    if passed_on {
        text += ", which this process was sent and passed on";
    }
    match stderr {
        Some("") => text += "; it said nothing on stderr",
        Some(tail) => drop(write!(text, "; its stderr ends with: {tail}")),
        None => text += "; what it printed says why",
    }
    text
}
