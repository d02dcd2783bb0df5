//! What rank 0 knows about one connection to it.

use std::io;

use crate::LONGEST_BLOB;
use crate::auth::{Bytes32, Directions, LENGTH, digest};
use crate::connections;
use crate::frame::{HERE, HelloReader, Message, Reject, ReplyKind};
use mpienv_core::Port;

/// How many unwanted bytes rank 0 reads from a connection before it closes it.
const PATIENCE: usize = LONGEST_BLOB + 1024;

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Has connected, and waits for its greeting.
    New,
    /// Was greeted, and has not completed its hello.
    Unknown(Box<HelloReader>),
    /// Belongs to a rank of this job that waits for the report.
    Member {
        rank: u32,
        /// Whether the rank has joined the meeting.
        joined: bool,
    },
    /// Rejected with an answer.
    Closing,
}

#[derive(Debug)]
pub(super) struct Visitor {
    /// The port of rank 0 that it connected to.
    pub(super) port: Port,
    pub(super) stage: Stage,
    /// The keys, once the other end has proven that it has the token.
    pub(super) directions: Option<Box<Directions>>,
    /// The part of a confirmation that has arrived.
    heard: Vec<u8>,
    discarded: usize,
}

pub(super) type Connection = connections::Connection<Visitor>;

impl Visitor {
    /// A new connection to this port of rank 0.
    pub(super) fn new(port: Port) -> Visitor {
        Visitor { port, stage: Stage::New, directions: None, heard: Vec::new(), discarded: 0 }
    }

    /// Ends the hello, and returns what came of it.
    pub(super) fn become_known(&mut self, stage: Stage) {
        if let Stage::Unknown(mut hello) = std::mem::replace(&mut self.stage, stage) {
            self.directions = hello.take_directions().map(Box::new);
        }
    }

    /// Counts unwanted bytes. Returns false if there were too many.
    pub(super) fn discard(&mut self, length: usize) -> bool {
        self.discarded = self.discarded.saturating_add(length);
        self.discarded <= PATIENCE
    }

    /// Takes bytes from a rank that joined. Returns whether a confirmation is complete, or an error
    /// if it was altered.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Result<bool, Reject> {
        let whole = HERE.len() + LENGTH;
        self.heard.extend(&bytes[..bytes.len().min(whole - self.heard.len())]);
        if self.heard.len() < whole {
            return Ok(false);
        }
        let heard = std::mem::take(&mut self.heard);
        let (said, tag) = heard.split_at(HERE.len());
        let is_good = |both: &mut Box<Directions>| both.incoming.verify(&digest(&[said]), tag);
        if said == HERE && self.directions.as_mut().is_some_and(is_good) {
            Ok(true)
        } else {
            Err(Reject::Altered)
        }
    }
}

impl Connection {
    /// Returns whether it belongs to a rank of this job that waits for the report.
    pub(super) fn is_member(&self) -> bool {
        matches!(self.state.stage, Stage::Member { .. })
    }

    /// Says that rank 0 will wait for `left` milliseconds, and the meeting's number.
    pub(super) fn welcome(&mut self, left: u32, number: &Bytes32) -> io::Result<()> {
        let Some(directions) = &self.state.directions else { return Ok(()) };
        let payload = [&left.to_be_bytes()[..], &directions.seal_number(number)?].concat();
        self.say(&Message::new(ReplyKind::Welcome, &payload))
    }

    /// Writes a message with this connection's next tag.
    pub(super) fn say(&mut self, message: &Message) -> io::Result<()> {
        let Some(directions) = &mut self.state.directions else { return Ok(()) };
        let tag = directions.outgoing.tag(&message.digest);
        self.send_tagged(message, tag)
    }
}
