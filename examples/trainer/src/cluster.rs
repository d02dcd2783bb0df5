//! Where this process is, and how to start ranks of it on this machine: what `mpienv` knows.

use std::io;
use std::process::Command;

use mpienv::{ClusterInfo, Launch, LaunchError};

use crate::stop;

/// Where this process is.
///
/// # Errors
/// When the launcher's variables contradict each other.
pub fn place() -> Result<ClusterInfo, ClusterError> {
    Ok(ClusterInfo::from_env()?)
}

/// Starts `count` ranks on this machine, each as `command` says, and waits for all; passes SIGTERM on to them.
///
/// # Errors
/// When the launcher's variables contradict each other, or a rank cannot be started or fails.
pub fn start(count: u32, mut command: impl FnMut() -> Command) -> Result<(), ClusterError> {
    let launch = Launch::new(&place()?, count)?;
    watch_signals().map_err(ClusterError::Signals)?;
    Ok(launch.run(|_rank| command())?)
}

/// Until the ranks have ended, so that this process tells how: Ctrl-C, which the terminal sends to them too, is left to
/// them, and SIGTERM is passed on. A second Ctrl-C ends this process as well.
#[cfg(unix)]
fn watch_signals() -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    stop::end_at_second(SIGINT)?;
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in &mut signals {
            let ranks = children();
            if ranks.is_empty() {
                // None was started yet: nobody else will end.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            for rank in ranks {
                // One that has just ended needs no signal.
                let _ = rustix::process::kill_process(rank, rustix::process::Signal::TERM);
            }
        }
    })?;
    Ok(())
}

/// The processes that this one has started.
#[cfg(unix)]
fn children() -> Vec<rustix::process::Pid> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let numbers = list.split_whitespace().filter_map(|number| number.parse().ok());
        children.extend(numbers.filter_map(rustix::process::Pid::from_raw));
    }
    children
}

/// Elsewhere a console sends its signals to the ranks itself.
#[cfg(not(unix))]
fn watch_signals() -> io::Result<()> {
    stop::end_at_second(signal_hook::consts::SIGINT)
}

/// Why a process does not know where it is, or its ranks failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The launcher's variables are wrong.
    #[error(transparent)]
    Environment(#[from] mpienv::Error),
    /// Ranks cannot be started, or one failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The system refuses to tell of signals.
    #[error("signals cannot be handled: {0}")]
    Signals(io::Error),
}

impl ClusterError {
    /// The exit code of the rank that failed, when one did; as in shells 128 and its number if a signal ended it.
    #[must_use]
    pub fn rank_exit_code(&self) -> Option<u8> {
        match self {
            ClusterError::Launch(LaunchError::Failed { status, .. }) => {
                #[cfg(unix)]
                let by_signal = std::os::unix::process::ExitStatusExt::signal(status).map(|signal| 128 + signal);
                #[cfg(not(unix))]
                let by_signal = None;
                status.code().or(by_signal).and_then(|code| code.try_into().ok())
            }
            _ => None,
        }
    }
}
