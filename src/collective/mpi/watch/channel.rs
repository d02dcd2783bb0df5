//! A connection between the watches of two ranks: JSON messages, one on each line.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use serde::{Deserialize, Serialize};

/// What the watches send to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The first message of a rank that connects.
    Hello { token: String, rank: u32 },
    /// The sender is alive, and its main thread has begun and ended so many calls.
    Beat { calls: u64 },
    /// Rank 0 reports that a rank's process or host is gone.
    Lost { rank: u32, reason: String },
    /// Rank 0 reports that the others have waited too long for a rank.
    Late { rank: u32 },
    /// The sender exits normally.
    Bye,
}

/// The longest line that is read. Messages are far shorter.
const LONGEST: usize = 4096;

/// A non-blocking connection.
#[derive(Debug)]
pub(super) struct Channel {
    pub stream: TcpStream,
    read: Vec<u8>,
}

impl Channel {
    pub(super) fn new(stream: TcpStream) -> Channel {
        Channel { stream, read: Vec::new() }
    }

    /// Sends a message. If the other side does not read, the message is dropped: that side is silent too.
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let Ok(mut line) = serde_json::to_vec(message) else { return Ok(()) };
        line.push(b'\n');
        match self.stream.write_all(&line) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            done => done,
        }
    }

    /// Appends the messages that have arrived. Returns an error once the connection has ended.
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
            while let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                messages.push(serde_json::from_slice(&line)?);
            }
            if self.read.len() > LONGEST {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }
}
