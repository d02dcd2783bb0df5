//! Why connecting a group or one of its calls fails.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::call::Call;
use crate::rendezvous::RendezvousError;
use crate::value::printable::printable;
use mpienv_core::ErrorKind;
use mpienv_core::seam::{list_of_ranks, runs_of_ranks};

/// What calls return.
pub(super) type Result<T, E = CollectiveError> = std::result::Result<T, E>;

/// Why a rank is lost that sent what no rank of this version sends.
pub(super) const UNREADABLE: &str = "what it sent cannot be read";

/// The most bytes of a program's reason in an error of other ranks. The whole text must fit into a
/// message.
const LONGEST_REASON: usize = 900;

/// Says that a rank aborts the job with this exit code, for this reason.
pub(super) fn aborted(rank: &str, code: u8, reason: &str) -> String {
    let mut reason = printable(reason.trim().replace('\n', " ").as_bytes());
    if let Some(length) = (0..=LONGEST_REASON).rev().find(|&at| reason.is_char_boundary(at)) {
        reason.truncate(length);
    }
    let separator = if reason.is_empty() { "" } else { ": " };
    format!("{rank} aborted with exit code {code}{separator}{reason}")
}

/// Why a rank is lost whose connections are closed: the system closes them when a process ends.
pub(super) const GONE: &str = "its process exited or was killed";

/// What a rank has called that says goodbye. It does not say which of the two it was.
pub(super) const LEFT: &str = "close or dropped its group";

/// Why a rank is lost whose calls another of its threads has canceled.
pub(super) const CANCELED: &str = "its calls were canceled";

/// Why a rank is lost that made a call after the others had given up.
pub(super) const LATE: &str = "it came after the timeout of another rank";

/// Why a rank is lost whose thread drops the group because it panics.
pub(super) const PANICKED: &str = "it panicked";

/// Why [`Group::connect`](super::Group::connect) or a call of a group failed.
///
/// Do not use a group after an error: every later call fails too, with
/// [`Earlier`](CollectiveError::Earlier), which has the same kind and rank, except over MPI. Only
/// after a [`CollectiveError::Argument`] that every rank got in the same call, or that a `send`,
/// `receive` or `send_receive` returned, can it still be used.
///
/// `?` turns every error of this crate into this one, so that a program can exit with the codes of
/// [`ErrorKind`]. A program that has other errors too, such as those of files, puts this one into
/// its own error type:
///
/// ```
/// use std::process::ExitCode;
///
/// use mpienv::ClusterInfo;
/// use mpienv::collective::{CollectiveError, Group};
///
/// fn train() -> Result<(), CollectiveError> {
///     let info = ClusterInfo::from_env()?;
///     let mut group = Group::connect(&info)?;
///     group.all_reduce_sum(&mut [1.0])?;
///     group.close()
/// }
///
/// fn main() -> ExitCode {
///     match train() {
///         Ok(()) => ExitCode::SUCCESS,
///         Err(error) => {
///             let line = format!("{error}\n"); // in one piece: the lines of ranks do not mix
///             eprint!("{line}");
///             ExitCode::from(error.kind().exit_code())
///         }
///     }
/// }
/// ```
///
/// An error that involves several ranks names one of them:
///
/// ```
/// use std::time::Duration;
/// use mpienv::ErrorKind;
/// use mpienv::collective::threads;
///
/// let errors = threads::run(2, Duration::from_secs(10), |group| match group.rank().index() {
///     0 => group.barrier().unwrap_err(),
///     _ => group.all_reduce_sum(&mut [1.0_f32; 10]).unwrap_err(),
/// })
/// .expect("2 is a number of ranks");
/// assert_eq!((errors[0].kind(), errors[0].rank()), (ErrorKind::Refused, Some(1)));
/// assert_eq!(
///     errors[0].to_string(),
///     "rank 1 called all_reduce_sum of 10 f32, rank 0 barrier: \
///      all ranks must make the same calls in the same order"
/// );
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank closed its connection, was killed, panicked, or has [aborted](super::Group::abort).
    #[error("rank {rank} on {host} is lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The rank, by its number in the job.
        rank: u32,
        /// Its host.
        host: String,
        /// What is known about the loss.
        reason: String,
    },
    /// A rank did not arrive in time: that of [`timeout`](super::GroupBuilder::timeout) in a call,
    /// and of [`connect_timeout`](super::GroupBuilder::connect_timeout) while connecting.
    #[error(
        "{} did not arrive within {seconds} s: it hangs, waits in another call, is cut off, or needs a longer timeout",
        late(*rank, host)
    )]
    #[non_exhaustive]
    TimedOut {
        /// The rank, by its number in the job.
        rank: u32,
        /// Its host.
        host: String,
        /// How long this rank waited, or the one from which it learned of the timeout.
        seconds: f64,
    },
    /// An unknown rank did not arrive in time: every rank waited in a call or, over MPI, no rank
    /// could be asked. Ranks may also have made the same call in different groups.
    #[error(
        "a rank did not arrive within {seconds} s; which one is unknown, because {} waited in \
         {call}: compare the calls of the ranks and their groups, or use a longer timeout{}",
        own.map_or("this rank".to_owned(), |own| format!("rank {own}")),
        hint(call)
    )]
    #[non_exhaustive]
    SomeTimedOut {
        /// How long this rank waited, or the one from which it learned of the timeout.
        seconds: f64,
        /// This rank, by its number in the job, if it is known.
        own: Option<u32>,
        /// The call in which this rank waited, and the group.
        call: String,
    },
    /// MPI's initialization took too long.
    #[error(
        "MPI was not initialized within {seconds} s: a rank hangs, is lost, or was never started"
    )]
    #[non_exhaustive]
    MpiTimedOut {
        /// How long this rank waited.
        seconds: f64,
    },
    /// A rank made another call.
    #[error("rank {rank} called {found}, rank {own} {expected}: {rule}")]
    #[non_exhaustive]
    Differs {
        /// The other rank, by its number in the job.
        rank: u32,
        /// What the other rank called.
        found: String,
        /// This rank, by its number in the job.
        own: u32,
        /// What this rank called.
        expected: String,
        /// What the two calls break.
        rule: &'static str,
    },
    /// Another rank found that ranks made different calls.
    #[error("{difference}")]
    #[non_exhaustive]
    Disagree {
        /// One of the ranks that differ, by its number in the job.
        rank: u32,
        /// The other rank's error.
        difference: String,
    },
    /// The arguments of this rank's call are invalid. The group can still be used if every rank
    /// gets this error in the same call, or if the call is one of two ranks. Otherwise the calls of
    /// the other ranks fail.
    #[error("{call}: {reason}")]
    #[non_exhaustive]
    Argument {
        /// The call.
        call: &'static str,
        /// What is wrong with its arguments.
        reason: String,
    },
    /// This process was forked from the one that connected the group. The group of that process is
    /// not affected.
    #[error(
        "this process was forked from process {connected}, which alone can use the group: connect after \
         the fork, or start a new program instead of forking"
    )]
    #[non_exhaustive]
    Forked {
        /// The ID of the process that connected the group.
        connected: u32,
    },
    /// Two threads of this process connected the same rank of a job at the same time. Both get this
    /// error.
    #[error(
        "two threads of rank {rank} connect a group at the same time, so that ranks could pair different groups: connect \
         one group after the other, in the same order on all ranks, or connect once and `split` the group"
    )]
    #[non_exhaustive]
    ConnectsTwice {
        /// This rank.
        rank: u32,
    },
    /// Two threads of this process made calls at the same time, in groups that share MPI. The other
    /// thread's call is [canceled](CollectiveError::Canceled).
    #[cfg(feature = "mpi")]
    #[error(
        "two threads of rank {rank} make calls at the same time, in groups that share MPI, which could make them wait for \
         each other: make the calls of all groups in one thread, or use another backend and connect a group for each thread"
    )]
    #[non_exhaustive]
    CallsAtOnce {
        /// This rank, by its number in the job.
        rank: u32,
    },
    /// Another thread of this process canceled the call: see
    /// [`Group::canceller`](super::Group::canceller).
    #[error("the call was canceled by another thread of this process")]
    Canceled,
    /// An earlier call of the group, or of one that shares connections with it, failed for this
    /// reason.
    #[error("{0} (in an earlier call)")]
    Earlier(Arc<CollectiveError>),
    /// The environment is wrong, such as `RANK=1x`, or does not say where rank 0 is.
    #[error(transparent)]
    Environment(#[from] mpienv_core::Error),
    /// The ranks did not meet at the master.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// This rank cannot open a socket for the others.
    #[error(
        "this rank cannot open a socket for the other ranks: {0}; check this host's network and its limit of open files"
    )]
    Socket(io::Error),
    /// The ranks of an MPI job cannot be monitored.
    #[error("cannot monitor the ranks: {0}; check this host's limits of open files and processes")]
    Watch(io::Error),
    /// MPI cannot be used, or returned an error.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(mpienv_mpi::MpiError),
    /// MPI is required, but this program was built without it.
    #[error(
        "this program was built without MPI: build it with the feature `mpi` of mpienv, or use another backend"
    )]
    NoMpi,
}

impl CollectiveError {
    /// Returns what the error means for an exit code.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        use CollectiveError::{
            Canceled, Earlier, Environment, Lost, MpiTimedOut, NoMpi, Rendezvous, Socket,
            SomeTimedOut, TimedOut, Watch,
        };
        match self {
            TimedOut { .. } | SomeTimedOut { .. } | MpiTimedOut { .. } => ErrorKind::TimedOut,
            Lost { .. } => ErrorKind::Lost,
            Canceled => ErrorKind::Canceled,
            Environment(_) | Socket(_) | Watch(_) | NoMpi => ErrorKind::Environment,
            Earlier(error) => error.kind(),
            Rendezvous(error) => error.kind(),
            #[cfg(feature = "mpi")]
            CollectiveError::Mpi(error) => error.kind(),
            _ => ErrorKind::Refused,
        }
    }

    /// The rank that the error names, by its number in the job.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mpienv::collective::threads;
    ///
    /// // Rank 1 brings a number less.
    /// let results = threads::run(2, Duration::from_secs(10), |group| {
    ///     group.all_reduce_sum(&mut vec![1.0; 8 - group.rank().index() as usize])
    /// })?;
    /// assert_eq!(results[0].as_ref().unwrap_err().rank(), Some(1));
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        use CollectiveError::{Differs, Disagree, Earlier, Lost, TimedOut};
        match self {
            Earlier(error) => error.rank(),
            Lost { rank, .. } | TimedOut { rank, .. } => Some(*rank),
            Differs { rank, .. } | Disagree { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Returns the error for a timeout of 0.
    pub(super) fn no_time(call: &'static str) -> CollectiveError {
        let reason = "no rank can arrive within 0 s: set a longer time".to_owned();
        CollectiveError::Argument { call, reason }
    }

    /// Returns the error for `rank` making the call `found` while this rank, `own`, made the call
    /// `expected`.
    pub(super) fn different_calls(
        rank: u32,
        found: Call,
        own: u32,
        expected: Call,
    ) -> CollectiveError {
        CollectiveError::Differs {
            rank,
            found: if found == Call::CLOSE { LEFT.to_owned() } else { found.to_string() },
            own,
            expected: expected.to_string(),
            rule: expected.rule_broken_with(found),
        }
    }
}

debug_is_text!(CollectiveError);

/// What an error calls the host of the rank that reports it.
pub(super) const OWN_HOST: &str = "this host";

/// What an error calls the host of a rank that is a thread of the same process.
pub(super) const THIS_PROCESS: &str = "a thread of this process";

/// A call of a rank, and the group of the ranks with these numbers in the job.
pub(super) fn in_group(call: impl fmt::Display, numbers: &[u32]) -> String {
    const MOST: usize = 8;
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let runs = runs_of_ranks(&sorted);
    let ranks = list_of_ranks(runs.iter().take(MOST), ", ");
    let more = if runs.len() > MOST { ", ..." } else { "" };
    format!("{call} in the group of ranks {ranks}{more}")
}

/// What helps ranks that all wait, each of which may send to the next.
fn hint(call: &str) -> &'static str {
    if call.starts_with("send ") {
        "; ranks that send to each other, or in a ring, call send_receive instead"
    } else {
        ""
    }
}

/// Names a late rank. The rank itself learns that the others no longer wait for it.
fn late(rank: u32, host: &str) -> String {
    match host {
        OWN_HOST => format!("the other ranks no longer wait for this rank: rank {rank}"),
        _ => format!("rank {rank} on {host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_reason_of_any_length_fits_into_a_message_and_controls_no_terminal() {
        assert_eq!(aborted("it", 3, " \n"), "it aborted with exit code 3");
        assert_eq!(
            aborted("it", 3, "a\x1b[2J\nb\n"),
            "it aborted with exit code 3: a\u{fffd}[2J b"
        );
        // Characters of one to four bytes, cut anywhere.
        for character in ["a", "é", "€", "🦀", "\x07"] {
            for shift in ["", "b", "bb", "bbb"] {
                let text = aborted("it", 255, &(shift.to_owned() + &character.repeat(2000)));
                assert!((900..1000).contains(&text.len()), "{}", text.len());
            }
        }
    }

    #[test]
    fn a_text_with_its_cause_does_not_return_the_cause_once_more() {
        let environment = mpienv_core::ClusterInfo::from_vars([("RANK", "9"), ("WORLD_SIZE", "2")]);
        let error = || io::Error::other("the reason");
        for error in [
            CollectiveError::Environment(environment.unwrap_err()),
            CollectiveError::Rendezvous(RendezvousError::System(error())),
            CollectiveError::Socket(error()),
            CollectiveError::Watch(error()),
        ] {
            assert!(error.source().is_none(), "{error}");
        }
    }
}
