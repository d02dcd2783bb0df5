//! `mpienv::rendezvous`: all ranks meet at `MASTER_ADDR:MASTER_PORT` and exchange data.
//!
//! This is for the moment in which a job comes together: who is there, at which address, with which
//! secret. It does not find out a process's rank, and it is not for bulk data, which
//! `mpienv::collective` exchanges.
//!
//! Rank 0 listens at that address. Every rank brings some bytes, its blob, and gets the blobs and
//! IP addresses of all ranks. Either all ranks succeed, or every rank that arrived gets the same
//! explanation of what is wrong: which ranks are missing, arrived twice, disagree on the world
//! size, run another version, or were lost. Before rank 0 announces success, every rank confirms
//! that it is still there.
//!
//! ```
//! use std::time::{Duration, Instant};
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
//! Rank 0 and every other rank prove to each other that they have the token, which is never sent.
//! Every later message carries a tag. If the token is a secret, this keeps attackers out.
//! Otherwise, it keeps out only ranks of another job that come to the same port by mistake: see
//! `mpienv::guide::security`. Blobs are not encrypted. `mpienv::guide::wire_format` specifies the
//! messages.
//!
//! # Scale
//! One process serves all ranks, for example 10,000 ranks with blobs of a few bytes. The cost of
//! [`Rendezvous::gather`] is linear in the number of ranks. [`Rendezvous::all_gather`] sends every
//! rank the whole table, so its traffic is quadratic. Rank 0 needs an open file for each rank
//! (`ulimit -n`). A meeting does not change this limit, which belongs to the whole process: a
//! program with more ranks raises its soft limit itself, as the `mpienv` command does while it
//! meets.
//!
//! For 100,000 ranks, meet in two levels:
//! 1. On each node, the ranks meet at a loopback address, with the local rank and local world size
//!    as rank and size.
//! 2. The first ranks of all nodes meet. Each brings the blobs of its node in one blob.
//! 3. Each first rank passes the result on to its node in a second meeting.
//!
//! With 100 ranks on each node, rank 0 then has 1,000 connections instead of 100,000.
//!
//! The table shows the time until rank 0 has all blobs of 2 bytes, on two cores, as measured by
//! `cargo bench --bench rendezvous -- --simulate-ranks N [--per-node P]`. A secret token changes
//! little, because the handshake is the same. The last row excludes the second meeting of each
//! node:
//!
//! | ranks | gather | meet | rank 0's peak memory |
//! | --- | --- | --- | --- |
//! | 1,000 | 0.2 s | 0.2 s | 4 MB |
//! | 10,000 | 2 to 3 s | 2 to 3 s | 11 MB |
//! | 19,000 | 6 s | 6 s | 18 MB |
//! | 100,000 on 1,000 nodes: one node's gather, then the nodes | 0.02 s + 0.2 s | 0.02 s + 0.3 s | 4 MB |

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[macro_use]
extern crate mpienv_core;

mod auth;
mod client;
mod connections;
mod error;
mod frame;
#[expect(clippy::missing_errors_doc, reason = "only the other crates use it, by the seam")]
mod handshake;
mod listen;
mod meeting;
mod munge;
mod report;
#[doc(hidden)]
pub mod seam;
mod server;
#[expect(clippy::missing_errors_doc, reason = "only the other crates use it, by the seam")]
mod star;
mod table;

use std::fmt;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use error::{ConnectFailure, RendezvousError};
pub use meeting::{Gathered, Meeting, Member};
use mpienv_core::{ClusterInfo, Host, Munge, Port, Rank};

use auth::{Role, Run};
use frame::Secret;
use munge::{NoMunge, Wanted};
use server::Reply;
use star::Channel;

/// Longest blob that a rank may bring, in bytes: 1 MiB. All ranks together may bring 16 MiB, or 4
/// KiB for each rank if that is more.
pub const LONGEST_BLOB: usize = 1 << 20;
/// Longest job token, in bytes.
pub const LONGEST_TOKEN: usize = 255;
/// Longest time before the deadline at which ranks try the default port, which another job may soon
/// need.
const FALLBACK_LEAD: Duration = Duration::from_secs(5);
/// Shortest time that a rank has to confirm that it is still there once all have arrived, even
/// beyond the deadline.
const ANSWER: Duration = Duration::from_secs(5);
/// How long sending the last bytes to the ranks may then take.
const DRAIN: Duration = Duration::from_secs(5);
/// How long after rank 0's deadline the report may arrive, as `Rendezvous::timeout` promises.
const GRACE: Duration = ANSWER.saturating_add(DRAIN);

/// Most bytes that all ranks of a job of this size together may bring.
fn most_in_all(size: u32) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(4 << 10).max(16 << 20)
}

/// One rank's part in a meeting of all ranks.
#[derive(Clone)]
#[must_use]
pub struct Rendezvous {
    rank: Rank,
    host: Host,
    port: Port,
    /// The port of ranks on which the master port was not set.
    default_port: Option<Port>,
    timeout: Duration,
    /// `None` if no one set a token.
    token: Option<Vec<u8>>,
    munge: Wanted,
    role: Role,
    run: Run,
    bind: Option<IpAddr>,
    /// How many consecutive ranks each host has, on rank 0 of a job that says so.
    hosts: Arc<[(Host, u32)]>,
    /// Shared by the clones of this rendezvous, each of which may meet.
    listener: Option<Arc<TcpListener>>,
    /// What follows the names of the ranks that are late, if rank 0 says them on stderr.
    names_the_late: Option<&'static str>,
}

/// Omits the token: it may be a secret, and debug output goes to logs.
impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rendezvous { rank, timeout, bind, .. } = self;
        f.debug_struct("Rendezvous")
            .field("rank", rank)
            .field("master", &self.master())
            .field("timeout", timeout)
            .field("bind", bind)
            .finish_non_exhaustive()
    }
}

impl Rendezvous {
    /// Lets `rank` meet the others at `host:port`, within 60 s, without a token.
    pub fn new(rank: Rank, host: Host, port: Port) -> Rendezvous {
        Rendezvous {
            rank,
            host,
            port,
            default_port: None,
            timeout: Duration::from_secs(60),
            token: None,
            munge: Wanted::default(),
            role: Role::default(),
            run: Run::default(),
            bind: None,
            hosts: Arc::default(),
            listener: None,
            names_the_late: None,
        }
    }

    /// The processes of a job meet at `host:port`. Its identity, attempt, token and MUNGE, if any,
    /// become those of the rendezvous. If the job's hosts and the number of ranks on each are
    /// known, rank 0 names the hosts of missing ranks.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    /// use mpienv::rendezvous::Rendezvous;
    ///
    /// let info = ClusterInfo::from_vars([("RANK", "0"), ("WORLD_SIZE", "1")])?;
    /// let meeting = Rendezvous::of(&info, info.master_addr()?.clone(), info.master_port());
    /// assert_eq!(meeting.all_gather("hello")?.members().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(info: &ClusterInfo, host: Host, port: Port) -> Rendezvous {
        let (identity, attempt) = info.run();
        let mut rendezvous = Rendezvous::new(info.rank(), host, port).job(identity, attempt);
        if info.rank().is_first() {
            rendezvous.hosts = info.ranks_per_host().unwrap_or_default().into();
        }
        // Nothing may identify the job.
        let token = Some(info.token().as_bytes()).filter(|token| !token.is_empty());
        let rendezvous = token.into_iter().fold(rendezvous, Rendezvous::token);
        match info.munge() {
            Some(munge) => rendezvous.munge(munge.clone()),
            None => rendezvous,
        }
    }

    /// Brings a blob and gets the blobs of all ranks.
    ///
    /// # Errors
    /// Returns the same error on every rank that arrived if not all ranks arrived in time, a rank
    /// was lost, or the ranks disagree. A rank that did not reach rank 0 gets an error that says
    /// why.
    pub fn all_gather(&self, blob: impl Into<Vec<u8>>) -> Result<Meeting, RendezvousError> {
        match self.meet(blob.into(), true, &mut |_| Vec::new())?.0 {
            Gathered::All(meeting) => Ok(meeting),
            Gathered::Reply(_) => Err(self.lost("it sent no table")),
        }
    }

    /// Brings a blob to rank 0. Only rank 0 gets the blobs; the others get `None` once all ranks
    /// have arrived.
    ///
    /// Ranks may mix [`Rendezvous::all_gather`] and `gather`.
    ///
    /// ```
    /// use mpienv::rendezvous::{LONGEST_BLOB, Member, Rendezvous};
    /// use mpienv::{Host, Port, Rank};
    ///
    /// # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    /// # let free = listener.local_addr().unwrap().port();
    /// # drop(listener);
    /// # let port = Port::new(free).unwrap();
    /// // A job of one rank, which has no one to wait for.
    /// let alone = Rendezvous::new(Rank::ALONE, Host::LOOPBACK, port);
    /// let alone = alone.token("job 17").default_port(Port::ONE_NODE);
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

    /// Like [`Rendezvous::gather`], but rank 0 calls `answer` with all blobs, and the other ranks
    /// get the result: at most [`LONGEST_BLOB`] bytes.
    ///
    /// # Errors
    /// As [`Rendezvous::all_gather`].
    pub fn gather_with_reply(
        &self,
        blob: impl Into<Vec<u8>>,
        mut answer: impl FnMut(&Meeting) -> Vec<u8>,
    ) -> Result<Gathered, RendezvousError> {
        Ok(self.meet(blob.into(), false, &mut answer)?.0)
    }

    /// Meets the other ranks. Rank 0 gets its connections to them only if they stay open; another
    /// rank always gets its own to rank 0.
    fn meet(
        &self,
        blob: Vec<u8>,
        needs_table: bool,
        answer: Reply<'_>,
    ) -> Result<(Gathered, Vec<Channel>), RendezvousError> {
        if let Some(token) = &self.token {
            if token.trim_ascii().is_empty() {
                return Err(RendezvousError::TokenBlank);
            }
            if token.len() > LONGEST_TOKEN {
                return Err(RendezvousError::TokenTooLong { length: token.len() });
            }
        }
        if blob.len() > LONGEST_BLOB {
            return Err(RendezvousError::BlobTooLong { length: blob.len() });
        }
        if self.rank.is_first() {
            let (meeting, channels) = server::serve(self, blob, answer)?;
            return Ok((Gathered::All(meeting), channels));
        }
        let (gathered, channel) = client::join(self, blob, needs_table)?;
        Ok((gathered, vec![channel]))
    }

    /// The default port to try, if any, and how long before the deadline.
    fn fallback_port(&self) -> Option<(Port, Duration)> {
        let port = self.default_port.filter(|&port| port != self.port && self.token.is_some());
        port.map(|port| (port, (self.timeout / 4).min(FALLBACK_LEAD)))
    }

    /// Rank 0's secret. With MUNGE, it holds a new key, and a credential that gives this key to the
    /// other ranks.
    fn new_secret(&self, deadline: Instant) -> Result<Secret, RendezvousError> {
        let Ok(munge) = self.own_munge() else { return Ok(self.secret(&[])) };
        let (key, credential) =
            munge::seal(munge, deadline).map_err(|reason| RendezvousError::Munge { reason })?;
        let mut secret = self.secret(&key);
        secret.credential = credential;
        Ok(secret)
    }

    /// MUNGE, if this process authenticates with it. The first call may have to ask munged.
    fn own_munge(&self) -> Result<&Munge, &NoMunge> {
        self.munge.settled(munge::PATIENCE.min(self.timeout / 2))
    }

    fn secret(&self, key: &[u8]) -> Secret {
        Secret::new(&[key, self.token.as_deref().unwrap_or_default()].concat(), self.role, self.run)
    }

    fn master(&self) -> String {
        self.host.with_port(self.port)
    }

    fn lost(&self, reason: impl ToString) -> RendezvousError {
        RendezvousError::MasterLost {
            rank: self.rank.index(),
            master: self.master(),
            reason: reason.to_string(),
        }
    }
}

/// What a program may set.
impl Rendezvous {
    /// Sets how long to wait for all ranks, from the start of `all_gather` or `gather`: at most ten
    /// years.
    ///
    /// A rank that rank 0 has welcomed waits until rank 0's time is over, which begins when rank 0
    /// starts, but no longer than this time once more. If rank 0 or another rank then stops
    /// answering, the wait may take up to ten seconds longer: five to ask all ranks whether they
    /// are still there, and five to send the report.
    pub fn timeout(self, timeout: Duration) -> Rendezvous {
        Rendezvous { timeout: timeout.min(seam::LONGEST_TIMEOUT), ..self }
    }

    /// Sets the token: at most [`LONGEST_TOKEN`] bytes, which only the ranks
    /// of this job share. It is never sent.
    ///
    /// A token that is empty or blank is an error when the ranks meet, because a user who sets one
    /// believes that it protects the meeting. A meeting without a token does not call this method.
    pub fn token(self, token: impl Into<Vec<u8>>) -> Rendezvous {
        Rendezvous { token: Some(token.into()), ..self }
    }

    /// Makes the ranks authenticate with MUNGE: only processes of this user can meet, without a
    /// secret token. All ranks need this setting. A token is still compared.
    ///
    /// Each rank runs `munge` and then `unmunge`, each of which takes some milliseconds. A rank on
    /// whose host `munge` fails gets an error at once. With [`auto`](Munge::is_auto), ranks on
    /// whose host it fails, or takes more than half of the timeout, do not authenticate with
    /// MUNGE: they meet only each other.
    ///
    /// ```
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Munge, Port, Rank};
    ///
    /// // A job of one rank needs no MUNGE.
    /// let alone = Rendezvous::new(Rank::ALONE, Host::LOOPBACK, Port::ONE_NODE);
    /// let alone = alone.munge(Munge::default());
    /// assert!(alone.gather("hello")?.is_some());
    /// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
    /// ```
    pub fn munge(self, munge: Munge) -> Rendezvous {
        Rendezvous { munge: Wanted::by(munge), ..self }
    }

    /// Sets the job's identity and the number of the attempt, which must be the same on all ranks.
    /// Both go into the keys.
    ///
    /// Rank 0 rejects ranks of another job with the same token, and ranks left over from another
    /// attempt, with an error that says so. By default, the identity is empty and the attempt is 0.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Port, Rank};
    ///
    /// # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    /// # let free = listener.local_addr().unwrap().port();
    /// # drop(listener);
    /// # let port = Port::new(free).unwrap();
    /// let at = move |index, attempt| {
    ///     let rank = Rank::new(index, 2).expect("0 and 1 are ranks of 2");
    ///     let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, port);
    ///     let rendezvous = rendezvous.token("secret").job("job 17", attempt);
    ///     rendezvous.timeout(Duration::from_secs(20)).gather("")
    /// };
    /// let first = std::thread::spawn(move || at(0, 3));
    /// // Left over from the attempt before.
    /// let error = at(1, 2).unwrap_err();
    /// let belongs = "rank 1 belongs to attempt 2 of this job, and rank 0 to attempt 3";
    /// assert!(error.to_string().starts_with(belongs));
    /// at(1, 3)?;
    /// assert_eq!(first.join().unwrap()?.map(|meeting| meeting.members().len()), Some(2));
    /// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
    /// ```
    pub fn job(self, identity: impl AsRef<[u8]>, attempt: u32) -> Rendezvous {
        Rendezvous { run: Run::new(identity.as_ref(), attempt), ..self }
    }

    /// Sets the address of its host that rank 0 listens on; `0.0.0.0` or `::` for every address.
    ///
    /// By default, rank 0 listens on the master's address if it belongs to rank 0's host, and
    /// otherwise on every address: see [`Meeting::listened`].
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use mpienv::rendezvous::{Rendezvous, RendezvousError};
    /// use mpienv::{Host, Port, Rank};
    ///
    /// // No host has an address of the documentation's network.
    /// let rendezvous = Rendezvous::new(Rank::new(0, 2)?, Host::LOOPBACK, Port::ONE_NODE);
    /// let rendezvous = rendezvous.bind([203, 0, 113, 9].into());
    /// assert!(matches!(rendezvous.gather(""), Err(RendezvousError::Listen { .. })));
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    pub fn bind(self, address: IpAddr) -> Rendezvous {
        Rendezvous { bind: Some(address), ..self }
    }

    /// Sets a socket that listens already, on which rank 0 takes connections instead of binding its
    /// port. Other ranks do not use it.
    ///
    /// With it, rank 0 can let the system choose a port, and publish the address by other means,
    /// such as a file or a store, without another program taking the port meanwhile. The other
    /// ranks take the published address as host and port. The socket stays open until this value
    /// and its clones are dropped. None by default.
    ///
    /// ```
    /// use std::net::TcpListener;
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Port, Rank};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let port = Port::new(listener.local_addr()?.port()).expect("the system has chosen one");
    /// let rank = |index| {
    ///     let rank = Rank::new(index, 2)?;
    ///     Ok::<_, mpienv::RankError>(Rendezvous::new(rank, Host::LOOPBACK, port))
    /// };
    /// let (first, second) = (rank(0)?.listener(listener), rank(1)?);
    /// let second = std::thread::spawn(move || second.all_gather("world"));
    /// let meeting = first.all_gather("hello")?;
    /// assert_eq!(meeting.members()[1].blob(), b"world");
    /// # second.join().expect("rank 1 does not panic")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listener(self, listener: TcpListener) -> Rendezvous {
        Rendezvous { listener: Some(Arc::new(listener)), ..self }
    }

    /// Sets the port of ranks on which the master port was not set, for example because MASTER_PORT
    /// reached only some hosts.
    ///
    /// Shortly before the deadline, rank 0 also listens on this port, and ranks that have not found
    /// rank 0 also try it, so that the error names each rank's port. This requires a token, which
    /// keeps other jobs' ranks out. None by default.
    pub fn default_port(self, port: Port) -> Rendezvous {
        Rendezvous { default_port: Some(port), ..self }
    }
}
