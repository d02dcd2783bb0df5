//! The meeting's handshake on other connections, between ranks that have met or otherwise share a
//! key.
//!
//! The rank that accepts the connection sends the greeting, the rank that connects says hello, and
//! the first rank sends the welcome. Both have then proven that they have the key. See
//! `mpienv::guide::wire_format`.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::auth::{Bytes32, Direction, digest, for_purpose, nonce};
use super::client::link::{Bad, Link};
use super::frame::{
    BARE, GREETING, Hello, HelloReader, ReplyKind, Secret, Version, greeting, reply,
};
use crate::value::port::Port;
use crate::value::rank::Rank;

pub use super::frame::Purpose;

/// The key for connections to one rank.
pub struct ConnectionKey {
    secret: Secret,
    purpose: Purpose,
}

impl ConnectionKey {
    /// Derives the key for connections to the rank `to` from a key that all ranks share.
    pub fn new(shared: &Bytes32, purpose: Purpose, to: u32) -> ConnectionKey {
        let key = for_purpose(shared, format!("connections to rank {to}").as_bytes());
        ConnectionKey { secret: Secret::of_key(key), purpose }
    }
}

/// Both directions of a connection, as one end sees them.
#[derive(Debug)]
pub struct Directions {
    /// What this end sends.
    pub outgoing: Direction,
    /// What this end receives.
    pub incoming: Direction,
}

impl Directions {
    /// The keys for encryption, outgoing and incoming.
    pub fn seal_keys(&self) -> [Bytes32; 2] {
        [self.outgoing.seal_key(), self.incoming.seal_key()]
    }
}

/// For connections whose messages are signed but not encrypted.
impl Direction {
    /// The tag of the next message.
    pub fn sign(&mut self, message: &[u8]) -> Bytes32 {
        self.tag(&digest(&[message]))
    }

    /// Returns whether this is the tag of the next message.
    pub fn is_signed(&mut self, message: &[u8], tag: &[u8]) -> bool {
        self.verify(&digest(&[message]), tag)
    }
}

/// Why a connection to a rank failed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The connection broke.
    #[error("{0}")]
    Connection(#[from] io::Error),
    /// The other end is no rank of this job.
    #[error("another program answered, or one that belongs to another job")]
    Stranger,
    /// The other end does not have the key.
    #[error(
        "what answered cannot prove that it belongs to this job: something between the hosts changes messages"
    )]
    Unproven,
}

/// A connection to another rank, before it has welcomed this one.
pub struct Joining {
    line: Link,
}

/// A connection on which this rank has said hello.
pub struct Introduced {
    line: Link,
    session: super::auth::Session,
}

impl Joining {
    /// The deadline applies to all steps.
    pub fn new(stream: TcpStream, deadline: Instant) -> Joining {
        Joining { line: Link { stream, deadline } }
    }

    /// Waits for the greeting and says hello.
    pub fn say_hello(mut self, key: &ConnectionKey, rank: Rank) -> Result<Introduced, Refusal> {
        let port = self.line.stream.peer_addr()?.port();
        let greeting = self.line.greeting().map_err(|_| self.why())?;
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
        let (hello, session) = hello.encode(&key.secret.key, &greeting, &nonce()?);
        self.line.write_all(&hello)?;
        Ok(Introduced { line: self.line, session })
    }

    fn why(&self) -> Refusal {
        self.line.left().err().map_or(Refusal::Stranger, Refusal::Connection)
    }
}

impl Introduced {
    /// Waits for the welcome.
    pub fn welcomed(mut self) -> Result<(TcpStream, Directions), Refusal> {
        let head = self
            .line
            .head()
            .map_err(|_| self.line.left().err().map_or(Refusal::Stranger, Refusal::Connection))?;
        if head.kind != ReplyKind::Welcome {
            return Err(Refusal::Stranger);
        }
        self.line.payload(&mut self.session, head, 0).map_err(|bad| match bad {
            Bad::Tag => Refusal::Unproven,
            Bad::Io(error) => Refusal::Connection(error),
        })?;
        let directions =
            Directions { outgoing: self.session.of_rank, incoming: self.session.of_master };
        Ok((self.line.stream, directions))
    }
}

/// An accepted connection that has not said hello.
pub struct Guest {
    reader: HelloReader,
    heard: usize,
}

/// A rank that has proven that it has the key.
#[derive(Debug)]
pub struct Admitted {
    /// The rank.
    pub rank: u32,
    /// The keys of its connection.
    pub directions: Directions,
    /// The first bytes to send to the rank.
    pub welcome: Vec<u8>,
}

/// The peer is not one of this job's ranks.
#[derive(Debug)]
pub struct Stranger;

impl Guest {
    /// The length of a hello.
    pub const LONGEST: usize = BARE;

    /// A guest for a new connection, and the greeting to send first.
    pub fn new(key: &ConnectionKey) -> io::Result<(Guest, Vec<u8>)> {
        let nonce = nonce()?;
        let purposes: &[Purpose] = match key.purpose {
            Purpose::Watch => &[Purpose::Watch],
            _ => &[Purpose::Collective],
        };
        Ok((
            Guest { reader: HelloReader::with_purposes(nonce, purposes), heard: 0 },
            greeting(&nonce, &[]),
        ))
    }

    /// How many more bytes to read. Bytes after the hello are not for this handshake.
    pub fn due(&self) -> usize {
        BARE - self.heard
    }

    /// Takes the next bytes. Returns the rank once its hello is complete and has the world size
    /// `size`.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        key: &ConnectionKey,
        size: u32,
    ) -> Result<Option<Admitted>, Stranger> {
        self.heard = (self.heard + bytes.len()).min(BARE);
        let Some(hello) = self.reader.feed(bytes, &key.secret).map_err(|_| Stranger)? else {
            return Ok(None);
        };
        let mut session = self.reader.take_session().ok_or(Stranger)?;
        if hello.size != size {
            return Err(Stranger);
        }
        let mut welcome = reply(ReplyKind::Welcome, &[]);
        let tag = session.of_master.tag(&digest(&[&welcome]));
        welcome.extend(tag);
        let directions = Directions { outgoing: session.of_master, incoming: session.of_rank };
        Ok(Some(Admitted { rank: hello.rank, directions, welcome }))
    }
}
