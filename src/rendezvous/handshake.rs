//! Both ends of the handshake: of a rank with rank 0 of a meeting, and of two ranks that have met or
//! otherwise share a key.
//!
//! The rank that accepts the connection sends the greeting, the rank that connects says hello, and
//! the first rank sends the welcome. Both have then proven that they have the key. See
//! `mpienv::guide::wire_format`. The connecting end reads whole messages, accepts only valid tags,
//! and stops at a deadline.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mpienv_core::{Port, Rank};

use crate::auth::{Bytes32, Exchange, JobKey, LENGTH, digest, for_purpose};
use crate::error::ConnectFailure;
use crate::frame::{
    GREETING, HERE, Hello, HelloReader, MAGIC, REPLY_HEAD, ReplyHead, ReplyKind, Secret, Version,
    greeting, reply,
};
use crate::munge::LONGEST_CREDENTIAL;

pub use crate::auth::Directions;
pub use crate::frame::Purpose;

/// What a rank says of an answer that does not belong here.
pub(crate) const OUT_OF_ORDER: &str = "it answered out of order";

/// A connection whose reads and writes fail after a deadline.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) deadline: Instant,
}

impl Link {
    pub(crate) fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    /// Reads the whole greeting. Nothing is sent before it arrives, because other programs log what
    /// they cannot parse.
    pub(crate) fn greeting(&mut self) -> Result<Vec<u8>, ConnectFailure> {
        let head = self.head()?;
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        if head.kind != ReplyKind::Greeting
            || !(LENGTH..=LENGTH + LONGEST_CREDENTIAL).contains(&length)
        {
            return Err(ConnectFailure::not_mpienv(OUT_OF_ORDER));
        }
        let mut greeting = head.raw.to_vec();
        greeting.resize(REPLY_HEAD + length, 0);
        let payload = self.read_exact(&mut greeting[REPLY_HEAD..]);
        payload.map_err(|error| broke_off(&error))?;
        Ok(greeting)
    }

    /// Reads the fixed part of the next reply.
    pub(crate) fn head(&mut self) -> Result<ReplyHead, ConnectFailure> {
        let mut head = [0; REPLY_HEAD];
        let mut filled = 0;
        while filled < head.len() {
            match self.read(&mut head[filled..]) {
                Ok(0) => return Err(ConnectFailure::Closed),
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(ConnectFailure::Silent),
                Err(error) => return Err(broke_off(&error)),
            }
            // Check after every read, to recognize at once another server that greets and then
            // waits.
            let known = filled.min(MAGIC.len());
            if head[..known] != MAGIC[..known] {
                let said = String::from_utf8_lossy(&head[..filled]);
                return Err(ConnectFailure::not_mpienv(format!("it said {said:?}")));
            }
        }
        ReplyHead::decode(head)
            .ok_or_else(|| ConnectFailure::not_mpienv("its answer cannot be read"))
    }

    /// Answers the greeting. Another version may answer before it has read the whole hello, so the
    /// second value, whether the hello was written, matters only if there is no answer.
    pub(crate) fn say_hello(
        mut self,
        hello: &Hello,
        key: &JobKey,
        greeting: &[u8],
    ) -> io::Result<(Introduced, io::Result<()>)> {
        let encoded = hello.encode(key, greeting, Exchange::new()?);
        let (hello, directions) =
            encoded.ok_or_else(|| io::Error::other("its public key cannot be used"))?;
        let written = self.write_all(&hello);
        Ok((Introduced { line: self, directions }, written))
    }
}

/// A connection on which this rank has said hello.
#[derive(Debug)]
pub struct Introduced {
    pub(crate) line: Link,
    pub(crate) directions: Directions,
}

impl Introduced {
    /// Waits for the greeting and says hello. The deadline applies to all steps.
    pub fn new(
        stream: TcpStream,
        deadline: Instant,
        key: &ConnectionKey,
        rank: Rank,
    ) -> Result<Introduced, Refusal> {
        // The hello must not wait for an acknowledgment.
        stream.set_nodelay(true)?;
        let mut line = Link { stream, deadline };
        let port = line.stream.peer_addr()?.port();
        let greeting = line.greeting().map_err(|failure| why(&line, &failure))?;
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
        let head = self.line.head().map_err(|failure| why(&self.line, &failure))?;
        if head.kind != ReplyKind::Welcome {
            return Err(Refusal::Stranger);
        }
        self.payload(head, 0).map_err(|bad| match bad {
            Bad::Tag => Refusal::Unproven,
            Bad::Io(error) => Refusal::Connection(error),
        })?;
        Ok((self.line.stream, self.directions))
    }

    /// Reads the rest of a reply, at most `most` bytes, allocated as they arrive. Fails if the tag
    /// is wrong.
    pub(crate) fn payload(&mut self, head: ReplyHead, most: usize) -> Result<Vec<u8>, Bad> {
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        if length > most {
            return Err(io::Error::other(format!("it announced {length} bytes")).into());
        }
        let mut bytes = Vec::new();
        let read = Read::take(&mut self.line, head.length.into()).read_to_end(&mut bytes)?;
        if read != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut tag = [0; LENGTH];
        self.line.read_exact(&mut tag)?;
        match self.directions.incoming.verify(&digest(&[&head.raw, &bytes]), &tag) {
            true => Ok(bytes),
            false => Err(Bad::Tag),
        }
    }

    /// Confirms that this rank is still there.
    pub(crate) fn confirm(&mut self) -> io::Result<()> {
        let tag = self.directions.outgoing.tag(&digest(&[&HERE]));
        self.line.write_all(&[&HERE[..], &tag].concat())
    }
}

impl Read for Link {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Bad {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The sender does not have the token, or the message is not the expected one.
    #[error("its message was changed, repeated or left out on the way")]
    Tag,
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(super) fn broke_off(error: &io::Error) -> ConnectFailure {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => ConnectFailure::Closed,
        _ if is_timeout(error) => {
            ConnectFailure::not_mpienv("it took the connection and said nothing")
        }
        _ => ConnectFailure::not_mpienv(error),
    }
}

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
    /// The other end closed the connection. A rank that belongs to another job does so, too.
    #[error(
        "it closed the connection: its process has exited, or another program listens there, or \
         one that belongs to another job"
    )]
    Closed,
    /// The other end does not have the key.
    #[error(
        "what answered cannot prove that it belongs to this job: something between the hosts changes messages"
    )]
    Unproven,
}

fn why(line: &Link, failure: &ConnectFailure) -> Refusal {
    match (line.left(), failure) {
        (Err(late), _) => Refusal::Connection(late),
        (Ok(_), ConnectFailure::Closed) => Refusal::Closed,
        (Ok(_), _) => Refusal::Stranger,
    }
}

/// An accepted connection that has not said hello.
#[derive(Debug)]
pub struct Guest(Box<HelloReader>);

/// A rank that has proven that it has the key.
#[derive(Debug)]
pub struct Admitted {
    /// Its number.
    pub rank: u32,
    /// The keys of its messages and of the answers.
    pub directions: Directions,
    /// The first bytes to send to the rank.
    pub welcome: Vec<u8>,
}

impl Guest {
    /// A guest for a new connection, and the greeting to send first.
    pub fn new(key: &ConnectionKey) -> io::Result<(Guest, Vec<u8>)> {
        let exchange = Exchange::new()?;
        let greeting = greeting(&exchange.public, &[]);
        Ok((Guest(Box::new(HelloReader::new(exchange, Some(key.purpose)))), greeting))
    }

    /// Takes the next bytes. Returns the rank once its hello is complete and has the world size
    /// `size`.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        key: &ConnectionKey,
        size: u32,
    ) -> io::Result<Option<Admitted>> {
        let Some(hello) = self.0.feed(bytes, &key.secret).map_err(|_| stranger())? else {
            return Ok(None);
        };
        let directions = self.0.take_directions().filter(|_| hello.size == size);
        let mut directions = directions.ok_or_else(stranger)?;
        let mut welcome = reply(ReplyKind::Welcome, &[]);
        let tag = directions.outgoing.tag(&digest(&[&welcome]));
        welcome.extend(tag);
        Ok(Some(Admitted { rank: hello.rank, directions, welcome }))
    }
}

/// The peer is not one of this job's ranks.
pub(crate) fn stranger() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
