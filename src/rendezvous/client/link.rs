//! A connection to what should be rank 0. It reads whole messages, accepts only valid tags, and
//! stops at a deadline.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::auth::{Directions, Exchange, JobKey, LENGTH, digest};
use crate::error::ConnectFailure;
use crate::frame::{HERE, Hello, REPLY_HEAD, ReplyHead, ReplyKind, reply};
use crate::munge::LONGEST_CREDENTIAL;

/// A connection whose reads and writes fail after a deadline.
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
            return Err(ConnectFailure::NotMpienv("it answered out of order".to_owned()));
        }
        let mut greeting = head.raw.to_vec();
        greeting.resize(REPLY_HEAD + length, 0);
        let payload = self.read_exact(&mut greeting[REPLY_HEAD..]);
        payload.map_err(|error| ConnectFailure::NotMpienv(broke_off(&error)))?;
        Ok(greeting)
    }

    /// Reads the fixed part of the next reply.
    pub(crate) fn head(&mut self) -> Result<ReplyHead, ConnectFailure> {
        let mut head = [0; REPLY_HEAD];
        let mut filled = 0;
        while filled < head.len() {
            match self.read(&mut head[filled..]) {
                Ok(0) => {
                    return Err(ConnectFailure::NotMpienv(
                        "it closed the connection without an answer".to_owned(),
                    ));
                }
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ConnectFailure::NotMpienv(broke_off(&error))),
            }
            // Check after every read, to recognize at once another server that greets and then
            // waits.
            let known = filled.min(8);
            if head[..known] != reply(ReplyKind::Done, &[])[..known] {
                return Err(ConnectFailure::NotMpienv(format!(
                    "it said {:?}",
                    String::from_utf8_lossy(&head[..filled])
                )));
            }
        }
        ReplyHead::decode(head)
            .ok_or_else(|| ConnectFailure::NotMpienv("its answer cannot be read".to_owned()))
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
pub struct Introduced {
    pub(crate) line: Link,
    pub(crate) directions: Directions,
}

/// Prints nothing of it: the connection has keys.
impl fmt::Debug for Introduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introduced").finish_non_exhaustive()
    }
}

impl Introduced {
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

fn broke_off(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it broke off".to_owned(),
        _ if is_timeout(error) => "it took the connection and said nothing".to_owned(),
        _ => error.to_string(),
    }
}
