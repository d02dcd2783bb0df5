//! Why the ranks did not meet.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::frame::LONGEST_TEXT;
use super::munge::REMEDY as MUNGE_REMEDY;
use super::{LONGEST_BLOB, LONGEST_TOKEN};
use mpienv_core::{ErrorKind, Port};

/// Why the ranks did not meet: what happened, why, and what to do.
///
/// The text contains the cause, so that [`source`](std::error::Error::source) does not return it
/// once more.
///
/// ```
/// use std::time::Duration;
/// use mpienv::rendezvous::{ConnectFailure, LONGEST_TOKEN, Rendezvous, RendezvousError};
/// use mpienv::{ErrorKind, Host, Port, Rank};
///
/// // Nothing listens on port 1.
/// let port = Port::new(1).unwrap();
/// let rank = Rendezvous::new(Rank::new(1, 2)?, Host::LOOPBACK, port);
/// let rank = rank.timeout(Duration::from_millis(50));
/// let error = rank.all_gather("hello").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::TimedOut);
/// if let RendezvousError::NoMaster { failure: ConnectFailure::Refused, .. } = error {
///     println!("rank 0 has not started");
/// }
/// let error = rank.token([0; LONGEST_TOKEN + 1]).all_gather("hello").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Refused);
/// # Ok::<(), mpienv::RankError>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Rank 0 cannot listen, because another program does.
    #[error(
        "port {port} is in use on this host, where rank 0 must listen: another job, an earlier run, another program, or \
         another process that is also rank 0 holds it (`ss -tlnpe` shows which, or the uid of its user); stop it, or give all ranks another MASTER_PORT"
    )]
    #[non_exhaustive]
    PortInUse {
        /// The master's port.
        port: Port,
    },
    /// Rank 0 cannot listen for another reason.
    #[error(
        "rank 0 cannot listen on {address}: {error}; MASTER_ADDR, or the address to bind, must be an address of rank 0's host, \
         and MASTER_PORT one that this user may open (1024 or higher)"
    )]
    #[non_exhaustive]
    Listen {
        /// The address that was tried.
        address: String,
        /// What the system said.
        error: io::Error,
    },
    /// Rank 0 has no file descriptor left for another connection.
    #[error(
        "rank 0 ran out of open files after {joined} of {size} ranks had connected: each rank needs one; raise rank 0's \
         limit (`ulimit -n`) to {size} plus at least 64"
    )]
    #[non_exhaustive]
    OpenFiles {
        /// How many ranks had arrived, rank 0 included.
        joined: usize,
        /// The world size.
        size: u32,
    },
    /// A rank's blob, or rank 0's reply, is too long.
    #[error(
        "a rank may bring at most {LONGEST_BLOB} bytes to the rendezvous, not {length}; bring a smaller blob"
    )]
    #[non_exhaustive]
    BlobTooLong {
        /// Length of the blob in bytes.
        length: usize,
    },
    /// The token is set, but empty or blank.
    #[error(
        "the job token is set but empty, so any process could meet the ranks; set a secret, or no token"
    )]
    TokenBlank,
    /// The token is too long.
    #[error(
        "a job token has at most {LONGEST_TOKEN} bytes, not {length}; choose a shorter MPIENV_TOKEN"
    )]
    #[non_exhaustive]
    TokenTooLong {
        /// Length of the token in bytes.
        length: usize,
    },
    /// This rank never reached rank 0.
    #[error("rank {rank} did not reach rank 0 at {master} within {}: {failure}", seconds(*.waited))]
    #[non_exhaustive]
    NoMaster {
        /// This rank.
        rank: u32,
        /// The master, as `host:port`.
        master: String,
        /// How long this rank tried.
        waited: Duration,
        /// What the last attempt found that the deadline did not cut short.
        failure: ConnectFailure,
    },
    /// The master's port belongs to another job.
    #[error(
        "rank 0 at {master} rejected rank {rank}, because its token differs: it belongs to another job, or MPIENV_TOKEN or \
         MPIENV_CONTEXT is not that of the other ranks; give this job its own MASTER_PORT, or set the same MPIENV_TOKEN on all ranks, \
         as with `mpirun -x MPIENV_TOKEN`"
    )]
    #[non_exhaustive]
    OtherJob {
        /// This rank.
        rank: u32,
        /// The master, as `host:port`.
        master: String,
    },
    /// MUNGE does not work on this rank's host.
    #[error(
        "the ranks authenticate with MUNGE, which does not work on this host: {reason}; {MUNGE_REMEDY}"
    )]
    #[non_exhaustive]
    Munge {
        /// What MUNGE said.
        reason: String,
    },
    /// Rank 0 answered and was then lost.
    #[error(
        "rank {rank} lost rank 0 at {master} before all ranks had connected: {reason}; look for an error that rank 0 printed"
    )]
    #[non_exhaustive]
    MasterLost {
        /// This rank.
        rank: u32,
        /// The master, as `host:port`.
        master: String,
        /// What this rank noticed.
        reason: String,
    },
    /// Rank 0 answered, but sent no result by its deadline.
    #[error(
        "rank {rank} connected to rank 0 at {master}, but got no result within {}: rank 0's process is stopped, or its host \
         is cut off; look for an error that rank 0 printed", seconds(*.waited)
    )]
    #[non_exhaustive]
    NoVerdict {
        /// This rank.
        rank: u32,
        /// The master, as `host:port`.
        master: String,
        /// How long this rank waited.
        waited: Duration,
    },
    /// Not all ranks arrived in time. All ranks that arrived get this same text.
    #[error("{report}")]
    #[non_exhaustive]
    Missing {
        /// Rank 0's explanation, which names the missing ranks.
        report: String,
        /// The missing ranks, in order. Empty on the other ranks, which have only the text.
        missing: Vec<RangeInclusive<u32>>,
    },
    /// Ranks were lost before all had arrived. All ranks that arrived get this same text.
    #[error("{report}")]
    #[non_exhaustive]
    Lost {
        /// Rank 0's explanation, which names the lost ranks.
        report: String,
    },
    /// Ranks arrived twice or disagreed. All ranks that arrived get this same text.
    #[error("{report}")]
    #[non_exhaustive]
    Mismatch {
        /// Rank 0's explanation, which names the ranks.
        report: String,
    },
    /// This rank alone does not fit: it is of another attempt or job, or has another world size.
    /// Rank 0 goes on without it, so the other ranks may meet, and may not learn of it.
    #[error("{report}")]
    #[non_exhaustive]
    TurnedAway {
        /// Rank 0's explanation, for this rank.
        report: String,
    },
    /// Rank 0 cannot wait for connections.
    #[error("rank 0 cannot wait for connections: {0}; this is a limit or fault of its host")]
    System(io::Error),
}

debug_is_text!(RendezvousError);

/// What a rank found at rank 0's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The name has no address.
    #[error("the name does not resolve ({0}); check MASTER_ADDR, or give an IP address")]
    Unresolved(String),
    /// The host, or a firewall, answered that nothing listens.
    #[error(
        "connection refused: nothing listens there, or a firewall rejects the port; rank 0 has not started, has exited, or \
         listens on another port: all ranks need the same MASTER_ADDR, MASTER_PORT and MPIENV_PORT_RANGE, \
         as with `mpirun -x MPIENV_PORT_RANGE`"
    )]
    Refused,
    /// The network has no route.
    #[error(
        "cannot reach it ({0}): there is no route, or a firewall rejects the port; check that MASTER_ADDR is on a network that this host shares with rank 0's host, and that TCP to this port is allowed"
    )]
    NoRoute(String),
    /// Nothing answered at all.
    #[error(
        "no answer to the connection: the host is down, or a firewall drops packets to that port; check the host, its firewall or security group, and on Kubernetes the NetworkPolicy"
    )]
    TimedOut,
    /// Something else listens there.
    #[error(
        "another program answered ({0}); give all ranks another MASTER_PORT, or correct MASTER_ADDR if rank 0 is on another host"
    )]
    NotMpienv(String),
    /// What listens there took the connection and said nothing.
    #[error(
        "it took the connection and said nothing: rank 0's process is stopped or hangs, or another \
         program listens there; look at rank 0's process, give all ranks another MASTER_PORT, or \
         correct MASTER_ADDR if rank 0 is on another host"
    )]
    Silent,
    /// What listens there closed the connection, as a process does that exits.
    #[error(
        "it closed the connection: rank 0's process has exited, or another program listens there; \
         look for an error that rank 0 printed, give all ranks another MASTER_PORT, or correct \
         MASTER_ADDR if rank 0 is on another host"
    )]
    Closed,
    /// Something greets like rank 0, but does not have the job's token.
    #[error(
        "what answered cannot prove that it has this job's token: another program poses as rank 0, or something between \
         the hosts changes messages; check what listens there, or give all ranks another MASTER_PORT"
    )]
    Unproven,
    /// What answered does not authenticate with MUNGE as this rank expects.
    #[error(
        "what answered does not prove with MUNGE that it is this job's rank 0 ({0}); run munged with the same key on all hosts, \
         set MPIENV_AUTH to the same value on all ranks, as with `mpirun -x MPIENV_AUTH`, and run them as one user"
    )]
    Munge(String),
    /// The connection failed for another reason.
    #[error("the connection failed ({0}); check MASTER_ADDR and this host's network")]
    Other(String),
}

impl ConnectFailure {
    pub(super) fn not_mpienv(said: impl ToString) -> ConnectFailure {
        ConnectFailure::NotMpienv(said.to_string())
    }
}

impl RendezvousError {
    /// Returns what the error means for an exit code: [`ErrorKind::TimedOut`], [`ErrorKind::Lost`]
    /// or [`ErrorKind::Refused`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            RendezvousError::NoMaster { .. }
            | RendezvousError::NoVerdict { .. }
            | RendezvousError::Missing { .. } => ErrorKind::TimedOut,
            RendezvousError::MasterLost { .. } | RendezvousError::Lost { .. } => ErrorKind::Lost,
            _ => ErrorKind::Refused,
        }
    }

    /// The text that all ranks get, truncated to what a frame can carry.
    pub(super) fn text(&self) -> String {
        let mut text = self.to_string();
        let mut end = text.len().min(LONGEST_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text
    }
}

/// Formats a duration: `60 s`, `1.5 s`, `20 ms`.
pub(super) fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", (duration.as_secs_f64() * 10.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_text_with_its_cause_does_not_return_the_cause_once_more() {
        let (address, error) = ("10.0.0.1:6105".to_owned(), || io::Error::other("the reason"));
        let failure = ConnectFailure::Other("the reason".to_owned());
        let (rank, master, waited) = (1, "node0:6105".to_owned(), Duration::ZERO);
        for error in [
            RendezvousError::Listen { address, error: error() },
            RendezvousError::System(error()),
            RendezvousError::NoMaster { rank, master, waited, failure },
        ] {
            assert!(error.to_string().contains("the reason") && error.source().is_none());
        }
    }

    #[test]
    fn a_setting_that_mpirun_keeps_to_its_own_host_is_named_with_what_passes_it_on() {
        let other_job = RendezvousError::OtherJob { rank: 1, master: "node0:6105".to_owned() };
        for (text, option) in [
            (other_job.to_string(), "`mpirun -x MPIENV_TOKEN`"),
            (ConnectFailure::Refused.to_string(), "`mpirun -x MPIENV_PORT_RANGE`"),
        ] {
            assert!(text.ends_with(option), "{text}");
        }
    }
}
