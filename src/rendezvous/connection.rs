//! One connection at rank 0.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;

use mio::net::TcpStream;

use super::LONGEST_BLOB;
use super::auth::{Bytes32, LENGTH, Session, digest};
use super::frame::{HERE, HelloReader, Message};
use crate::value::port::Port;

/// How many unwanted bytes rank 0 reads from a connection before it closes it.
const PATIENCE: usize = LONGEST_BLOB + 1024;
/// Shorter messages are written together with their tag.
const SHORT: usize = 1024;

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Not identified yet: holds no more than the hello's head.
    Unknown(Box<HelloReader>),
    /// A rank of this job that waits for the report.
    Member {
        rank: u32,
        wants_table: bool,
        /// Whether the rank counts among those that joined.
        joined: bool,
    },
    /// Turned away with an answer.
    Closing,
}

/// A socket, its stage, and what is still to be written to it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: IpAddr,
    /// The port that it came to.
    pub(super) port: Port,
    /// Counts up with every connection, so that the oldest can be found.
    pub(super) serial: u64,
    pub(super) stage: Stage,
    /// The keys, once the other end has proven that it has the token.
    pub(super) session: Option<Box<Session>>,
    /// A confirmation of which not all bytes have come.
    heard: Vec<u8>,
    queue: VecDeque<Arc<[u8]>>,
    written: usize,
    discarded: usize,
}

/// What one read gave.
pub(super) enum Input {
    Bytes(usize),
    Later,
    Closed,
}

/// A message whose tag is wrong.
#[derive(Debug)]
pub(super) struct Altered;

impl Connection {
    /// A connection that is greeted with this nonce.
    pub(super) fn new(stream: TcpStream, peer: IpAddr, port: Port, serial: u64, nonce: Bytes32) -> Connection {
        let stage = Stage::Unknown(Box::new(HelloReader::new(nonce)));
        let (session, heard, queue) = (None, Vec::new(), VecDeque::new());
        Connection { stream, peer, port, serial, stage, session, heard, queue, written: 0, discarded: 0 }
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Input {
        loop {
            match self.stream.read(into) {
                Ok(0) => return Input::Closed,
                Ok(length) => return Input::Bytes(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Input::Later,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Input::Closed,
            }
        }
    }

    /// Whether the other end has closed, as far as the system knows now.
    pub(super) fn is_closed(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Counts unwanted bytes; false if there were too many.
    pub(super) fn discard(&mut self, length: usize) -> bool {
        self.discarded = self.discarded.saturating_add(length);
        self.discarded <= PATIENCE
    }

    /// Takes bytes of a rank that joined: whether a confirmation is complete; an error if it is not what the rank sent.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Result<bool, Altered> {
        let whole = HERE.len() + LENGTH;
        self.heard.extend(&bytes[..bytes.len().min(whole - self.heard.len())]);
        if self.heard.len() < whole {
            return Ok(false);
        }
        let heard = std::mem::take(&mut self.heard);
        let (said, tag) = heard.split_at(HERE.len());
        let is_good = |session: &mut Box<Session>| session.of_rank.verify(&digest(&[said]), tag);
        if said == HERE && self.session.as_mut().is_some_and(is_good) { Ok(true) } else { Err(Altered) }
    }

    /// Writes a message with the tag that this connection's next message has.
    pub(super) fn say(&mut self, message: &Message) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let tag = session.of_master.tag(&message.digest);
        if message.bytes.len() <= SHORT {
            return self.send([&message.bytes[..], &tag].concat().into());
        }
        self.queue.push_back(message.bytes.clone());
        self.send(tag.as_slice().into())
    }

    /// Writes now what the socket takes, the rest later.
    pub(super) fn send(&mut self, frame: Arc<[u8]>) -> io::Result<()> {
        self.queue.push_back(frame);
        self.flush()
    }

    /// Goes on writing.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.queue.front() {
            match self.stream.write(&frame[self.written..]) {
                Ok(length) => self.written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.written == frame.len() {
                self.written = 0;
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }
}
