//! All ranks meet at `MASTER_ADDR:MASTER_PORT`, and each learns what every rank brought.
//!
//! Rank 0 listens there. Every rank brings a blob of bytes and gets the blobs of all ranks, with the IP address of each.
//! Either all ranks succeed, or each rank that came gets the same explanation of what is wrong: which ranks are missing,
//! came twice, disagree on the world size, run another version, or were lost. Before rank 0 announces success, every rank
//! confirms that it is still there.
//!
//! ```
//! use std::time::Duration;
//! use mpienv::rendezvous::{Meeting, Rendezvous, RendezvousError};
//! use mpienv::{Host, Port, Rank};
//!
//! // Two threads stand for two processes; a real rank takes rank, host and port from its launcher.
//! # let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
//! # let port = Port::new(free).unwrap();
//! let meet = move |index: u32| -> Result<Meeting, RendezvousError> {
//!     let rank = Rank::new(index, 2).expect("0 and 1 are ranks of 2");
//!     Rendezvous::new(rank, Host::LOOPBACK, port)
//!         .timeout(Duration::from_secs(20))
//!         .token("job 17")
//!         .all_gather(format!("hello from {index}"))
//! };
//! let other = std::thread::spawn(move || meet(1));
//! let meeting = meet(0)?;
//! assert_eq!(meeting.members()[1].blob(), b"hello from 1");
//! assert!(meeting.members()[1].address().is_loopback());
//! assert_eq!(other.join().unwrap()?.members().len(), 2);
//! # Ok::<(), RendezvousError>(())
//! ```
//!
//! # What the token does
//! Rank 0 and every other rank prove to each other that they have the token, which is never sent, and every message after that
//! carries a tag. That keeps out attackers if the token is a secret, and otherwise only ranks of another job that come to the
//! same port by mistake: see [`guide::security`](crate::guide::security). Blobs are not encrypted.
//! [`guide::wire_format`](crate::guide::wire_format) specifies the messages.
//!
//! # Scale
//! One process serves all ranks: 10,000 with blobs of a few bytes. The cost is linear in the number of ranks for
//! [`Rendezvous::gather`]; [`Rendezvous::all_gather`] sends every rank the whole table, so its traffic is the square of
//! the blobs. Rank 0 needs an open file for each rank (`ulimit -n`).
//!
//! For 100,000 ranks, meet in two levels:
//! 1. On each node, the ranks meet at a loopback address, with the local rank and local size as rank and size.
//! 2. The first ranks of all nodes meet. Each brings the blobs of its node in one blob.
//! 3. Each first rank passes the result on to its node in a second meeting.
//!
//! With 100 ranks on each node, rank 0 then has 1,000 connections instead of 100,000.
//!
//! `cargo bench --bench rendezvous -- --simulate-ranks N [--per-node P]`, until rank 0 has all blobs of 2 bytes, on two
//! cores; a secret changes nothing, because the handshake is the same without one. The last row excludes the second meeting
//! of each node:
//!
//! | ranks | gather | meet | rank 0's peak memory |
//! | --- | --- | --- | --- |
//! | 1,000 | 0.06 s | 0.07 s | 3 MB |
//! | 10,000 | 0.6 s | 1.0 s | 9 MB |
//! | 19,000 | 1.3 s | 3.3 s | 11 MB |
//! | 100,000 on 1,000 nodes: one node's gather, then the nodes | 0.01 s + 0.06 s | 0.01 s + 0.11 s | 4 MB |

mod auth;
mod channel;
mod client;
mod connection;
mod error;
mod frame;
#[cfg(feature = "collective")]
pub(crate) mod handshake;
pub(crate) mod listen;
mod meeting;
mod report;
mod resolve;
mod server;
mod table;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

pub(crate) use channel::{Channel, Sender};
pub use error::{ConnectFailure, ErrorKind, RendezvousError};
pub use meeting::{Gathered, Meeting, Member};

use crate::value::host::Host;
use crate::value::port::Port;
use crate::value::rank::Rank;
use auth::{Role, Run};
use frame::Secret;

/// Ten years: no sum of an instant and a timeout overflows.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Longest blob that a rank may bring, in bytes: 1 MiB.
pub const LONGEST_BLOB: usize = 1 << 20;
/// Longest job token, in bytes.
pub const LONGEST_TOKEN: usize = 255;
/// How long before the deadline, at most, ranks look for each other at another port: it may soon be another job's.
const FALLBACK_LEAD: Duration = Duration::from_secs(5);
/// How long a rank may take at least to say that it is still there once all have come, also beyond the deadline.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the last bytes to the ranks may take then.
const DRAIN: Duration = Duration::from_secs(5);
/// Largest table of all blobs, in bytes.
const LARGEST_TABLE: usize = 1 << 30;

/// One rank's part in a meeting of all ranks.
#[derive(Clone)]
pub struct Rendezvous {
    rank: Rank,
    host: Host,
    port: Port,
    /// The port that a rank without this setting uses.
    default_port: Option<Port>,
    timeout: Duration,
    token: Vec<u8>,
    role: Role,
    run: Run,
    bind: Option<IpAddr>,
}

/// Not the token: it may be a secret, and debug output goes to logs.
impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rendezvous { rank, timeout, bind, .. } = self;
        let mut debug = f.debug_struct("Rendezvous");
        debug.field("rank", rank).field("master", &self.master()).field("timeout", timeout).field("bind", bind);
        debug.finish_non_exhaustive()
    }
}

impl Rendezvous {
    /// `rank` meets the others at `host:port`, within 60 s, with an empty token.
    #[must_use]
    pub fn new(rank: Rank, host: Host, port: Port) -> Rendezvous {
        let (timeout, role, run) = (Duration::from_secs(60), Role::default(), Run::default());
        Rendezvous { rank, host, port, default_port: None, timeout, token: Vec::new(), role, run, bind: None }
    }

    /// Sets how long to wait for all ranks, counted from the call of `all_gather` or `gather`, at most ten years.
    ///
    /// If a rank that came stops answering, up to ten seconds more may pass.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Rendezvous {
        self.timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// Bytes that only the ranks of this job share, at most [`LONGEST_TOKEN`]. They are never sent.
    #[must_use]
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Rendezvous {
        self.token = token.into();
        self
    }

    /// The job's identity, the same on all ranks, and the number of the attempt: both go into the keys.
    ///
    /// Ranks of another job that has the same token, and ranks left over from another attempt, are rejected with an error
    /// that says so. By default the identity is empty and the attempt is 0.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Port, Rank};
    ///
    /// # let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let port = Port::new(free).unwrap();
    /// let at = move |index, attempt| {
    ///     let rank = Rank::new(index, 2).expect("0 and 1 are ranks of 2");
    ///     let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, port).token("secret").job("job 17", attempt);
    ///     rendezvous.timeout(Duration::from_secs(20)).gather("")
    /// };
    /// let first = std::thread::spawn(move || at(0, 3));
    /// // Left over from the attempt before.
    /// let error = at(1, 2).unwrap_err();
    /// assert!(error.to_string().starts_with("rank 1 belongs to attempt 2 of this job, and rank 0 to attempt 3"));
    /// at(1, 3)?;
    /// assert_eq!(first.join().unwrap()?.map(|meeting| meeting.members().len()), Some(2));
    /// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
    /// ```
    #[must_use]
    pub fn job(mut self, identity: impl AsRef<[u8]>, attempt: u32) -> Rendezvous {
        self.run = Run::new(identity.as_ref(), attempt);
        self
    }

    /// The address of its host that rank 0 listens on; `0.0.0.0` or `::` for every address.
    ///
    /// By default rank 0 listens on the master's address if that is an address of its host, and otherwise on every address:
    /// see [`Meeting::listened`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use mpienv::rendezvous::{Rendezvous, RendezvousError};
    /// use mpienv::{Host, Port, Rank};
    ///
    /// // No host has an address of the documentation's network.
    /// let rendezvous = Rendezvous::new(Rank::new(0, 2)?, Host::LOOPBACK, Port::ONE_NODE).bind([203, 0, 113, 9].into());
    /// assert!(matches!(rendezvous.gather(""), Err(RendezvousError::Listen { .. })));
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    #[must_use]
    pub fn bind(mut self, address: IpAddr) -> Rendezvous {
        self.bind = Some(address);
        self
    }

    /// The port that ranks without this setting use, for example if a variable reached some hosts only.
    ///
    /// Shortly before the deadline rank 0 listens there too, and ranks that do not find rank 0 look there, so that the
    /// error names each rank's port. Only if the job has a token, which keeps other jobs' ranks out. None by default.
    #[must_use]
    pub fn default_port(mut self, port: Port) -> Rendezvous {
        self.default_port = Some(port);
        self
    }

    /// Brings a blob and gets the blobs of all ranks.
    ///
    /// # Errors
    /// Returns the same error on every rank that came, if not all ranks came in time, a rank was lost, or the ranks
    /// do not fit together. A rank that did not reach rank 0 gets an error that says why.
    pub fn all_gather(&self, blob: impl Into<Vec<u8>>) -> Result<Meeting, RendezvousError> {
        let blob = self.checked(blob.into())?;
        if self.rank.is_first() {
            return Ok(server::serve(self, blob, &mut |_| Vec::new())?.0);
        }
        match client::join(self, blob, true)?.0 {
            Gathered::All(meeting) => Ok(meeting),
            Gathered::Reply(_) => Err(self.lost("it sent no table")),
        }
    }

    /// Brings a blob to rank 0, which alone gets the blobs; the others get `None` once all ranks have come.
    ///
    /// Ranks may mix [`Rendezvous::all_gather`] and `gather`.
    ///
    /// ```
    /// use mpienv::rendezvous::{LONGEST_BLOB, Member, Rendezvous};
    /// use mpienv::{Host, Port, Rank};
    ///
    /// # let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let port = Port::new(free).unwrap();
    /// // A job of one rank, which has no one to wait for.
    /// let alone = Rendezvous::new(Rank::ALONE, Host::LOOPBACK, port).token("job 17").default_port(Port::ONE_NODE);
    /// let meeting = alone.gather("hello")?.expect("rank 0 gets the blobs");
    /// assert_eq!((meeting.members().len(), meeting.rejected()), (1, 0));
    /// let member: &Member = &meeting.members()[0];
    /// assert_eq!(member.at(Port::ONE_NODE).to_string(), "127.0.0.1:54965");
    /// assert!(alone.gather(vec![0; LONGEST_BLOB + 1]).is_err());
    /// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Rendezvous::all_gather`].
    pub fn gather(&self, blob: impl Into<Vec<u8>>) -> Result<Option<Meeting>, RendezvousError> {
        match self.gather_with_reply(blob, |_| Vec::new())? {
            Gathered::All(meeting) => Ok(Some(meeting)),
            Gathered::Reply(_) => Ok(None),
        }
    }

    /// As [`Rendezvous::gather`]; rank 0 looks at all blobs, and the others get what it makes of them: at most
    /// [`LONGEST_BLOB`] bytes.
    ///
    /// # Errors
    /// As [`Rendezvous::all_gather`].
    pub fn gather_with_reply(
        &self,
        blob: impl Into<Vec<u8>>,
        mut answer: impl FnMut(&Meeting) -> Vec<u8>,
    ) -> Result<Gathered, RendezvousError> {
        let blob = self.checked(blob.into())?;
        if self.rank.is_first() {
            return Ok(Gathered::All(server::serve(self, blob, &mut answer)?.0));
        }
        Ok(client::join(self, blob, false)?.0)
    }

    /// As [`Rendezvous::gather_with_reply`], for the processes that start the ranks: their connections stay open. Rank 0 gets
    /// one for each other rank, and speaks first; the others get the one to rank 0.
    ///
    /// Their keys are not those of ranks, so that neither can join the other's meeting.
    pub(crate) fn stay_connected(
        &self,
        blob: Vec<u8>,
        mut answer: impl FnMut(&Meeting) -> Vec<u8>,
    ) -> Result<(Gathered, Vec<Channel>), RendezvousError> {
        let launches = Rendezvous { role: Role::Launches, ..self.clone() };
        let blob = launches.checked(blob)?;
        if launches.rank.is_first() {
            let (meeting, channels) = server::serve(&launches, blob, &mut answer)?;
            return Ok((Gathered::All(meeting), channels));
        }
        let (gathered, channel) = client::join(&launches, blob, false)?;
        Ok((gathered, vec![channel]))
    }

    fn checked(&self, blob: Vec<u8>) -> Result<Vec<u8>, RendezvousError> {
        if !frame::token_fits(&self.token) {
            return Err(RendezvousError::TokenTooLong { length: self.token.len() });
        }
        if blob.len() > LONGEST_BLOB {
            return Err(RendezvousError::BlobTooLong { length: blob.len() });
        }
        Ok(blob)
    }

    /// The other port to look at, if there is one, and how long before the deadline.
    fn fallback_port(&self) -> Option<(Port, Duration)> {
        let port = self.default_port.filter(|&port| port != self.port && !self.token.is_empty());
        port.map(|port| (port, (self.timeout / 4).min(FALLBACK_LEAD)))
    }

    fn secret(&self) -> Secret {
        Secret::new(&self.token, self.role, self.run)
    }

    fn master(&self) -> String {
        self.host.with_port(self.port)
    }

    fn lost(&self, reason: impl ToString) -> RendezvousError {
        RendezvousError::MasterLost { rank: self.rank.index(), master: self.master(), reason: reason.to_string() }
    }
}
