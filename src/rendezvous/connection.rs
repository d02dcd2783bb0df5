//! One connection to rank 0, as rank 0 sees it.

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
/// Messages up to this length are written together with their tag.
const SHORT: usize = 1024;

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Has not completed its hello.
    Unknown(Box<HelloReader>),
    /// Belongs to a rank of this job that waits for the report.
    Member {
        rank: u32,
        needs_table: bool,
        /// Whether the rank has joined the meeting.
        joined: bool,
    },
    /// Rejected with an answer.
    Closing,
}

/// A socket, its stage, and what is still to be written to it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: IpAddr,
    /// The port of rank 0 that it connected to.
    pub(super) port: Port,
    /// Counts up with every connection, so that the oldest can be found.
    pub(super) serial: u64,
    pub(super) stage: Stage,
    /// The keys, once the other end has proven that it has the token.
    pub(super) session: Option<Box<Session>>,
    /// The part of a confirmation that has arrived.
    heard: Vec<u8>,
    queue: VecDeque<Arc<[u8]>>,
    written: usize,
    discarded: usize,
}

/// The result of one read.
pub(super) enum Input {
    Bytes(usize),
    Later,
    Closed,
}

/// A message whose tag is wrong.
#[derive(Debug)]
pub(super) struct Altered;

impl Connection {
    /// A new connection, to be greeted with this nonce.
    pub(super) fn new(
        stream: TcpStream,
        peer: IpAddr,
        port: Port,
        serial: u64,
        nonce: Bytes32,
    ) -> Connection {
        let stage = Stage::Unknown(Box::new(HelloReader::new(nonce)));
        let (session, heard, queue) = (None, Vec::new(), VecDeque::new());
        Connection {
            stream,
            peer,
            port,
            serial,
            stage,
            session,
            heard,
            queue,
            written: 0,
            discarded: 0,
        }
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

    /// Returns whether the other end has closed, as far as the system knows.
    pub(super) fn is_closed(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Counts unwanted bytes. Returns false if there were too many.
    pub(super) fn discard(&mut self, length: usize) -> bool {
        self.discarded = self.discarded.saturating_add(length);
        self.discarded <= PATIENCE
    }

    /// Takes bytes from a rank that joined. Returns whether a confirmation is complete, or an error
    /// if it was altered.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Result<bool, Altered> {
        let whole = HERE.len() + LENGTH;
        self.heard.extend(&bytes[..bytes.len().min(whole - self.heard.len())]);
        if self.heard.len() < whole {
            return Ok(false);
        }
        let heard = std::mem::take(&mut self.heard);
        let (said, tag) = heard.split_at(HERE.len());
        let is_good = |session: &mut Box<Session>| session.of_rank.verify(&digest(&[said]), tag);
        if said == HERE && self.session.as_mut().is_some_and(is_good) {
            Ok(true)
        } else {
            Err(Altered)
        }
    }

    /// Writes a message with this connection's next tag.
    pub(super) fn say(&mut self, message: &Message) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let tag = session.of_master.tag(&message.digest);
        if message.bytes.len() <= SHORT {
            return self.send([&message.bytes[..], &tag].concat().into());
        }
        self.queue.push_back(message.bytes.clone());
        self.send(tag.as_slice().into())
    }

    /// Writes as much of a frame as the socket accepts, and queues the rest.
    pub(super) fn send(&mut self, frame: Arc<[u8]>) -> io::Result<()> {
        self.queue.push_back(frame);
        self.flush()
    }

    /// Writes as much of the queue as the socket accepts.
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
