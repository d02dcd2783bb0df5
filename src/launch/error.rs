//! Why workers were not started, or failed.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::report::{LaunchReport, seconds, status_text};
use crate::start_error::StartError;
use crate::stop::name;
use mpienv_core::{Error, ErrorKind};

/// Why workers were not started, or failed.
///
/// The text contains the cause, so that [`source`](std::error::Error::source) does not return it
/// once more.
///
/// ```
/// use std::process::Command;
/// use mpienv::{ClusterInfo, ErrorKind, Launch, LaunchError};
///
/// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
/// let error = Launch::new(&info, 1)?.run(|_worker| Command::new("false")).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::Failed(status) if status.code() == Some(1)));
/// # Ok::<(), LaunchError>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The environment does not allow starting workers.
    #[error(transparent)]
    Environment(#[from] Error),
    /// A simulated job has more ranks than one machine should run together.
    #[error(
        "the simulated job has {ranks} ranks, and at most {most} run on one machine; simulate a \
         smaller job or one rank"
    )]
    #[non_exhaustive]
    TooManyRanks {
        /// How many ranks the job has.
        ranks: u32,
        /// How many ranks may run on one machine.
        most: u32,
    },
    /// No port for rank 0 is free on this machine.
    #[error(
        "no port is free for rank 0 at 127.0.0.1 and ::1: {0}; set MASTER_PORT, or give the interface lo its address"
    )]
    NoPort(io::Error),
    /// The system does not let this process pass signals on.
    #[error(
        "cannot pass signals on to the workers: {0}; check the limits of this process (ulimit -n)"
    )]
    Signals(io::Error),
    /// A file for a worker's output cannot be written.
    #[error("cannot write {path:?}: {error}; {}", log_dir_remedy(error))]
    #[non_exhaustive]
    LogDir {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file that the program reads cannot be written.
    #[error("cannot write the file for {variable}: {error}; set TMPDIR to a folder with room")]
    #[non_exhaustive]
    TargetFile {
        /// The variable that names the file.
        variable: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// This process could not write the workers' output.
    #[error("cannot write {stream}: {error}; check the disk, or the program that reads the output")]
    #[non_exhaustive]
    Output {
        /// `stdout` or `stderr`.
        stream: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// No thread could be started to copy the workers' lines.
    #[error(
        "cannot read the workers' output: {0}; raise the limit of processes and threads (ulimit \
         -u), of open files (ulimit -n) or of memory (ulimit -v), or let the workers write to files"
    )]
    Thread(io::Error),
    /// A worker's program could not be started.
    #[error("cannot start rank {rank}: {error}")]
    #[non_exhaustive]
    Start {
        /// The worker's rank.
        rank: u32,
        /// The program, and the system's error.
        error: StartError,
    },
    /// A worker could not be waited for.
    #[error(
        "cannot wait for rank {rank}: {error}; make sure that nothing else reaps this process's \
         children"
    )]
    #[non_exhaustive]
    Wait {
        /// The worker's rank.
        rank: u32,
        /// The system's error.
        error: io::Error,
    },
    /// A worker failed. It was the first one to fail.
    #[error("{}{}", after.map_or(String::new(), |signal| format!("stopped by {}; ", name(signal))),
        failed_text(*rank, host.as_deref(), *status, *passed_on, stderr.as_deref(), report))]
    #[non_exhaustive]
    Failed {
        /// The worker's rank.
        rank: u32,
        /// The name of the worker's host, if it is known.
        host: Option<String>,
        /// The worker's exit status.
        status: ExitStatus,
        /// Whether the worker was killed by a signal that this process had received and forwarded.
        passed_on: bool,
        /// SIGINT or SIGTERM, if this process had received it before the worker failed.
        after: Option<i32>,
        /// The last lines that the worker wrote to stderr, joined into one. `None` if its output is
        /// inherited.
        stderr: Option<String>,
        /// What happened before the failure and because of it: see [`LaunchError::report`].
        report: Box<LaunchReport>,
    },
    /// SIGINT or SIGTERM ended the job: this process received it, passed it on, and killed workers
    /// that remained. SIGHUP ends it if the terminal then stops a worker.
    #[error("{}", stopped_text(*signal, host.as_deref(), killed.as_deref()))]
    #[non_exhaustive]
    Stopped {
        /// The rank of a worker that it ended. `None` if no worker was running.
        rank: Option<u32>,
        /// The name of the host whose launch received the signal, if it is another one.
        host: Option<String>,
        /// The number of the signal.
        signal: i32,
        /// Which workers did not exit and were killed, and when.
        killed: Option<String>,
        /// The earlier attempts: see [`LaunchError::report`].
        report: Box<LaunchReport>,
    },
    /// No rank was active for the time of [`Launch::stall_timeout`](crate::Launch::stall_timeout),
    /// and the workers were stopped.
    #[error("the job stalled: no rank was active for {}: {summary}", seconds(*timeout))]
    #[non_exhaustive]
    Stalled {
        /// The time that was set.
        timeout: Duration,
        /// What the ranks were doing, those that differ from the others first.
        summary: String,
        /// How the workers ended, and the earlier attempts: see [`LaunchError::report`].
        report: Box<LaunchReport>,
    },
    /// The launch of another node could not continue.
    #[error("node {node} ({host}): {reason}; the output of mpienv on that node says more")]
    #[non_exhaustive]
    OtherNode {
        /// The number of the node.
        node: u32,
        /// The node's host.
        host: String,
        /// The reason that its launch reported.
        reason: String,
    },
    /// The launch of another node is gone.
    #[error("node {node} ({host}) is gone: {reason}; the workers of the other nodes were stopped")]
    #[non_exhaustive]
    NodeLost {
        /// The number of the node.
        node: u32,
        /// The node's host.
        host: String,
        /// How the loss was noticed.
        reason: String,
    },
    /// The launches of the nodes did not meet.
    #[error(
        "the mpienv processes of the nodes did not all connect at port {port} (each counts as one \
         rank): {error}; start all with the same \
         --max-restarts and --stall-timeout"
    )]
    #[non_exhaustive]
    NotMet {
        /// The port.
        port: mpienv_core::Port,
        /// Why they did not meet.
        error: mpienv_rendezvous::RendezvousError,
    },
    /// The launches of the nodes met, but do not fit together. All nodes get this same text.
    #[error("the nodes do not fit together: {reason}")]
    #[non_exhaustive]
    Mismatch {
        /// The nodes, and what differs between them.
        reason: String,
    },
    /// The launches of the nodes met, but could not stay connected.
    #[error(
        "cannot connect the launches of the nodes: {0}; check the firewall between the nodes \
         (--port-range)"
    )]
    Nodes(io::Error),
}

debug_is_text!(LaunchError);

impl LaunchError {
    /// Returns what happened before the failure and because of it, if a worker failed: several
    /// lines for a person.
    ///
    /// The error itself is one line. The report contains the last lines of the worker's stderr, how
    /// the other workers ended, and the failures of earlier attempts. It may be empty.
    ///
    /// ```
    /// use std::process::Command;
    /// use mpienv::{ClusterInfo, Launch, LaunchReport};
    ///
    /// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
    /// let launch = Launch::new(&info, 1)?.max_restarts(1);
    /// let error = launch.run(|_worker| Command::new("false")).unwrap_err();
    /// let report: &LaunchReport = error.report().expect("a worker failed");
    /// assert!(report.to_string().contains("attempt 0: rank 0 on "), "{report}");
    /// assert_eq!(report.attempts(), 2);
    /// # Ok::<(), mpienv::LaunchError>(())
    /// ```
    #[must_use]
    pub fn report(&self) -> Option<&LaunchReport> {
        match self {
            LaunchError::Failed { report, .. }
            | LaunchError::Stalled { report, .. }
            | LaunchError::Stopped { report, .. } => Some(report),
            _ => None,
        }
    }

    /// Returns what the error means for an exit code.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            LaunchError::Output { error, .. } if error.kind() == io::ErrorKind::BrokenPipe => {
                ErrorKind::ReaderGone
            }
            LaunchError::TooManyRanks { .. } => ErrorKind::Usage,
            LaunchError::Failed { status, .. } => ErrorKind::Failed(*status),
            LaunchError::Stopped { signal, .. } => ErrorKind::Stopped(*signal),
            LaunchError::Stalled { .. } => ErrorKind::TimedOut,
            LaunchError::NodeLost { .. } => ErrorKind::Lost,
            LaunchError::Mismatch { .. } => ErrorKind::Refused,
            LaunchError::NotMet { error, .. } => error.kind(),
            _ => ErrorKind::Environment,
        }
    }

    /// Returns whether the reader of the workers' output has exited, as `head` does.
    pub(crate) fn is_by_reader(&self) -> bool {
        self.kind() == ErrorKind::ReaderGone
    }

    pub(super) fn stopped(
        rank: Option<u32>,
        host: Option<String>,
        signal: i32,
        killed: Option<String>,
    ) -> LaunchError {
        LaunchError::Stopped { rank, host, signal, killed, report: Box::default() }
    }

    /// Returns the same error with the report of the whole job.
    pub(super) fn with_report(mut self, all: LaunchReport) -> LaunchError {
        match &mut self {
            LaunchError::Failed { report, .. } => {
                // Only the worker's own node knows where its stderr is.
                let LaunchReport { is_in_sight, source, .. } = std::mem::take(&mut **report);
                **report = LaunchReport { is_in_sight, source, ..all };
            }
            LaunchError::Stalled { report, .. } => **report = all,
            // A signal that ends the job is not a failure: what counts are the earlier attempts.
            LaunchError::Stopped { report, .. } => {
                **report = LaunchReport { stderr: Vec::new(), after: None, ..all };
            }
            _ => {}
        }
        self
    }
}

/// Returns the same error for a terminal on which the workers' output appears: it repeats no text
/// that is in sight, and its report none of the error. `is_brief`: the user asked for silence, and
/// gets no report.
pub fn for_terminal(mut error: LaunchError, is_brief: bool) -> LaunchError {
    if let LaunchError::Failed { report, .. }
    | LaunchError::Stalled { report, .. }
    | LaunchError::Stopped { report, .. } = &mut error
        && is_brief
    {
        let is_in_sight = report.is_in_sight;
        **report = LaunchReport { is_in_sight, ..LaunchReport::default() };
    }
    if let LaunchError::Failed { report, stderr, .. } = &mut error
        && (report.is_in_sight || report.has_stderr())
    {
        *stderr = None;
        if report.is_in_sight {
            report.stderr.clear();
        }
    }
    error
}

fn log_dir_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidInput => {
            "remove it, or choose another folder for the workers' output"
        }
        io::ErrorKind::ResourceBusy => {
            "wait until it ends, or choose another folder for the workers' output"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space there, or choose another folder for the workers' output"
        }
        _ => "choose a writable folder for the workers' output",
    }
}

/// Describes the end of a job by a signal in one line.
fn stopped_text(signal: i32, host: Option<&str>, killed: Option<&str>) -> String {
    let on = host.map_or(String::new(), |host| format!(" on {host}"));
    let killed = killed.map_or(String::new(), |killed| format!("; {killed}"));
    format!("stopped by {}{on}{killed}", name(signal))
}

/// Describes a failure in one line: the rank, its host, how it exited, and its last lines of
/// stderr.
fn failed_text(
    rank: u32,
    host: Option<&str>,
    status: ExitStatus,
    passed_on: bool,
    stderr: Option<&str>,
    report: &LaunchReport,
) -> String {
    let mut text = format!("rank {rank}");
    if let Some(host) = host {
        // Writing to a string cannot fail.
        let _ = write!(text, " on {host}");
    }
    let code = status.code();
    let _ = write!(text, " failed with {}", status_text(status));
    if passed_on {
        text += ", which this process had received and forwarded to its workers";
    }
    match stderr {
        Some("") => text += "; it wrote nothing to stderr",
        Some(tail) => drop(write!(text, "; its stderr ends with: {tail}")),
        None if report.is_in_sight => text += "; see the last lines of its stderr above",
        None if !report.stderr.is_empty() => {}
        // A signal from elsewhere is the cause, and the worker may have written nothing.
        None if code.is_none() => {}
        None => text += "; the last lines of its output may name the cause",
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpienv_core::ClusterInfo;
    use std::error::Error as _;
    use std::process::Command;

    #[test]
    fn a_text_with_its_cause_does_not_return_the_cause_once_more() {
        let io = || io::Error::other("the system's reason");
        let environment = ClusterInfo::from_vars([("RANK", "9"), ("WORLD_SIZE", "2")]);
        let start = StartError::new(&Command::new("no-such-program"), io());
        let errors = vec![
            LaunchError::NoPort(io()),
            LaunchError::Signals(io()),
            LaunchError::LogDir { path: PathBuf::from("logs"), error: io() },
            LaunchError::TargetFile { variable: "MLX_HOSTFILE", error: io() },
            LaunchError::Output { stream: "stdout", error: io() },
            LaunchError::Thread(io()),
            LaunchError::Start { rank: 1, error: start },
            LaunchError::Wait { rank: 1, error: io() },
            LaunchError::Nodes(io()),
            environment.unwrap_err().into(),
        ];
        for error in errors {
            assert!(error.source().is_none(), "{error}");
        }
    }
}
