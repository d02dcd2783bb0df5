//! Why workers were not started, or failed.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::launch::ending::status_text;
use crate::launch::report::LaunchReport;
use crate::launch::start_error::StartError;
use crate::launch::stop::Name;
#[cfg(feature = "rendezvous")]
use crate::rendezvous::RendezvousError;
#[cfg(feature = "rendezvous")]
use crate::value::port::Port;
use mpienv_core::Error;

/// Why workers were not started, or failed.
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
    /// The environment does not allow starting workers.
    #[error(transparent)]
    Environment(#[from] Error),
    /// A simulated job has more ranks than one machine should run together.
    #[error(
        "the simulated job has {ranks} ranks, and at most {most} run on one machine; simulate a smaller job or one rank"
    )]
    TooManyRanks {
        /// How many ranks the job has.
        ranks: u32,
        /// How many ranks may run on one machine.
        most: u32,
    },
    /// No port for rank 0 is free on this machine.
    #[error("no port is free for rank 0: {0}; set MASTER_PORT")]
    NoPort(#[source] io::Error),
    /// The system does not let this process pass signals on.
    #[error(
        "cannot pass signals on to the workers: {0}; check the limits of this process (ulimit -n)"
    )]
    Signals(#[source] io::Error),
    /// A file for a worker's output cannot be written.
    #[error("cannot write {path:?}: {error}; {}", log_dir_remedy(error))]
    LogDir {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// This process could not write the workers' output.
    #[error("cannot write {stream}: {error}; check the disk, or the program that reads the output")]
    Output {
        /// `stdout` or `stderr`.
        stream: &'static str,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// No thread could be started to copy the workers' lines.
    #[error(
        "cannot read the workers' output: {0}; raise the limit of processes and threads (ulimit -u) or of memory \
         (ulimit -v), or let the workers write to files"
    )]
    Thread(#[source] io::Error),
    /// A worker's program could not be started.
    #[error("cannot start rank {rank}: {error}")]
    Start {
        /// The worker's rank.
        rank: u32,
        /// The program, and the system's error.
        #[source]
        error: StartError,
    },
    /// A worker could not be waited for.
    #[error(
        "cannot wait for rank {rank}: {error}; make sure that nothing else reaps this process's children"
    )]
    Wait {
        /// The worker's rank.
        rank: u32,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A worker failed. It was the first one to fail.
    #[error("{}{}", after.map_or(String::new(), |signal| format!("stopped by {}; ", Name(signal))),
        failed(*rank, host.as_deref(), *status, *passed_on, stderr.as_deref(), report))]
    Failed {
        /// The worker's rank.
        rank: u32,
        /// The name of the worker's host, if it is known.
        host: Option<String>,
        /// The worker's exit status.
        status: ExitStatus,
        /// Whether the worker was killed by a signal that this process received and passed on.
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
    #[error("{}", stopped(*signal, host.as_deref(), killed.as_deref()))]
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
    /// The launch of another node could not continue.
    #[error("node {node} ({host}): {reason}; see its output")]
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
    NodeLost {
        /// The number of the node.
        node: u32,
        /// The node's host.
        host: String,
        /// How the loss was noticed.
        reason: String,
    },
    /// The launches of the nodes did not meet.
    #[cfg(feature = "rendezvous")]
    #[error(
        "the mpienv processes of the nodes did not all connect at port {port} (each counts as one rank): {error}; start all \
         with the same --max-restarts"
    )]
    NotMet {
        /// The port.
        port: Port,
        /// Why they did not meet.
        #[source]
        error: RendezvousError,
    },
    /// The launches of the nodes met, but could not stay connected.
    #[error(
        "cannot connect the launches of the nodes: {0}; check the firewall between the nodes (--port-range)"
    )]
    Nodes(#[source] io::Error),
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
    /// let error = Launch::new(&info, 1)?.max_restarts(1).run(|_worker| Command::new("false")).unwrap_err();
    /// let report: &LaunchReport = error.report().expect("a worker failed");
    /// assert!(report.to_string().contains("attempt 0: rank 0 on "), "{report}");
    /// assert_eq!(report.attempts(), 2);
    /// # Ok::<(), mpienv::LaunchError>(())
    /// ```
    #[must_use]
    pub fn report(&self) -> Option<&LaunchReport> {
        match self {
            LaunchError::Failed { report, .. } | LaunchError::Stopped { report, .. } => {
                Some(report)
            }
            _ => None,
        }
    }

    /// Returns the same error for a terminal on which the workers' output appears: it repeats no
    /// text that is in sight, and its report none of the error. `is_brief`: the user asked for
    /// silence, and gets no report.
    pub(crate) fn for_terminal(mut self, is_brief: bool) -> LaunchError {
        if let LaunchError::Failed { report, .. } | LaunchError::Stopped { report, .. } = &mut self
            && is_brief
        {
            **report = report.brief();
        }
        if let LaunchError::Failed { report, stderr, .. } = &mut self
            && (report.is_in_sight() || report.quotes())
        {
            *stderr = None;
            if report.is_in_sight() {
                **report = std::mem::take(&mut **report).without_stderr();
            }
        }
        self
    }
}

fn log_dir_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidInput => {
            "remove it, or choose another folder for the workers' output"
        }
        _ => "choose a writable folder for the workers' output",
    }
}

/// Describes the end of a job by a signal in one line.
fn stopped(signal: i32, host: Option<&str>, killed: Option<&str>) -> String {
    let on = host.map_or(String::new(), |host| format!(" on {host}"));
    let killed = killed.map_or(String::new(), |killed| format!("; {killed}"));
    format!("stopped by {}{on}{killed}", Name(signal))
}

/// Describes a failure in one line: the rank, its host, how it exited, and its last lines of
/// stderr.
fn failed(
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
        text += ", which this process received and passed on";
    }
    match stderr {
        Some("") => text += "; it wrote nothing to stderr",
        Some(tail) => drop(write!(text, "; its stderr ends with: {tail}")),
        None if report.is_in_sight() => text += "; see the last lines of its stderr above",
        None if !report.stderr().is_empty() => {}
        // A signal from elsewhere is the cause, and the worker may have written nothing.
        None if code.is_none() => {}
        None => text += "; see its output for the cause",
    }
    text
}
