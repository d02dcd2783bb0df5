//! The meeting's handshake on other connections, between ranks that have met or otherwise share a
//! key.
//!
//! The rank that accepts the connection sends the greeting, the rank that connects says hello, and
//! the first rank sends the welcome. Both have then proven that they have the key. See
//! `mpienv::guide::wire_format`.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::time::Instant;

use super::auth::{Bytes32, for_purpose};
use super::client::link::{Bad, Link};
use super::frame::{GREETING, Hello, ReplyKind, Secret, Version};
use crate::value::port::Port;
use crate::value::rank::Rank;

pub use super::auth::Directions;
pub use super::client::link::Introduced;
pub use super::frame::Purpose;

/// The key for connections to one rank.
pub struct ConnectionKey {
    pub(super) secret: Secret,
    purpose: Purpose,
}

/// Omits the key.
impl fmt::Debug for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionKey({:?})", self.purpose)
    }
}

impl ConnectionKey {
    /// Derives the key for connections to the rank `to` from a key that all ranks share.
    pub fn new(shared: &Bytes32, purpose: Purpose, to: u32) -> ConnectionKey {
        let key = for_purpose(shared, format!("connections to rank {to}").as_bytes());
        ConnectionKey { secret: Secret::of_key(key), purpose }
    }

    /// The only purpose for which a rank may connect.
    pub(super) fn purposes(&self) -> &'static [Purpose] {
        match self.purpose {
            Purpose::Watch => &[Purpose::Watch],
            _ => &[Purpose::Collective],
        }
    }
}

/// Why a connection to a rank failed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The connection broke.
    #[error("{0}")]
    Connection(#[from] io::Error),
    /// The other end is not a rank of this job.
    #[error("another program answered, or one that belongs to another job")]
    Stranger,
    /// The other end does not have the key.
    #[error(
        "what answered cannot prove that it belongs to this job: something between the hosts changes messages"
    )]
    Unproven,
}

impl Introduced {
    /// Waits for the greeting and says hello. The deadline applies to all steps.
    pub fn new(
        stream: TcpStream,
        deadline: Instant,
        key: &ConnectionKey,
        rank: Rank,
    ) -> Result<Introduced, Refusal> {
        let mut line = Link { stream, deadline };
        let port = line.stream.peer_addr()?.port();
        let greeting = line.greeting().map_err(|_| why(&line))?;
        if greeting.len() != GREETING {
            return Err(Refusal::Stranger);
        }
        let hello = Hello {
            version: Version::OWN,
            rank: rank.index(),
            size: rank.size(),
            purpose: key.purpose,
            port: Port::new(port).ok_or(Refusal::Stranger)?,
            run: key.secret.run,
            blob: Vec::new(),
        };
        let (introduced, written) = line.say_hello(&hello, &key.secret.key, &greeting)?;
        written?;
        Ok(introduced)
    }

    /// Waits for the welcome.
    pub fn welcomed(mut self) -> Result<(TcpStream, Directions), Refusal> {
        let head = self.line.head().map_err(|_| why(&self.line))?;
        if head.kind != ReplyKind::Welcome {
            return Err(Refusal::Stranger);
        }
        self.payload(head, 0).map_err(|bad| match bad {
            Bad::Tag => Refusal::Unproven,
            Bad::Io(error) => Refusal::Connection(error),
        })?;
        Ok((self.line.stream, self.directions))
    }
}

fn why(line: &Link) -> Refusal {
    line.left().err().map_or(Refusal::Stranger, Refusal::Connection)
}
