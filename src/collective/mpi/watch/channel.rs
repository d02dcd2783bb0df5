//! A connection between the watches of two ranks: signed JSON messages, each preceded by its
//! length.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use serde::{Deserialize, Serialize};

use crate::rendezvous::handshake::Directions;

/// What the watches send each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The sender is alive. `calls` counts the calls that its main thread has begun plus those that
    /// it has ended.
    Beat { calls: u64 },
    /// Rank 0 reports that a rank's process or host is gone.
    Lost { rank: u32, reason: String },
    /// Rank 0 reports that the others have waited too long for a rank.
    Late { rank: u32 },
    /// The sender exits normally.
    Bye,
}

/// The longest message to accept. Real messages are far shorter.
const LONGEST: usize = 4096;
/// Bytes of the length before a message, and of the tag after it.
const HEAD: usize = 4;
const TAG: usize = 32;

/// A non-blocking connection.
#[derive(Debug)]
pub(super) struct Channel {
    pub stream: TcpStream,
    directions: Directions,
    read: Vec<u8>,
    /// The unsent rest of a message.
    unsent: Vec<u8>,
}

impl Channel {
    pub(super) fn new(stream: TcpStream, directions: Directions) -> Channel {
        Channel { stream, directions, read: Vec::new(), unsent: Vec::new() }
    }

    /// Sends a message, or drops it while an earlier one is unsent: a peer that does not read soon
    /// counts as silent.
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        self.flush()?;
        let Ok(text) = serde_json::to_vec(message) else { return Ok(()) };
        if self.unsent.is_empty() {
            let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
            bytes.extend(text);
            let tag = self.directions.outgoing.sign(&bytes);
            bytes.extend(tag);
            self.unsent = bytes;
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends the messages that have arrived. Returns an error once the connection is closed.
    pub(super) fn receive(&mut self, messages: &mut Vec<Message>) -> io::Result<()> {
        let mut chunk = [0; 1024];
        loop {
            let count = match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.read.extend_from_slice(&chunk[..count]);
            while let Some(message) = self.next()? {
                messages.push(message);
            }
        }
    }

    /// Returns the next message if all of it has arrived.
    fn next(&mut self) -> io::Result<Option<Message>> {
        let Some(&head) = self.read.first_chunk::<HEAD>() else { return Ok(None) };
        let signed = HEAD.saturating_add(u32::from_be_bytes(head) as usize);
        if signed > LONGEST {
            return Err(altered());
        }
        if self.read.len() < signed + TAG {
            return Ok(None);
        }
        let message: Vec<u8> = self.read.drain(..signed + TAG).collect();
        let (message, tag) = message.split_at(signed);
        if !self.directions.incoming.is_signed(message, tag) {
            return Err(altered());
        }
        Ok(Some(serde_json::from_slice(&message[HEAD..])?))
    }
}

fn altered() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a message was changed, repeated or left out on the way")
}
