//! One connection to another rank, and the frames that go over it.

use std::io::{self, IoSlice, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::seal::{SEALED_HEAD, Seal, TAG, sealed_length};
use crate::call::Call;
use crate::error::{GONE, UNREADABLE};
use crate::value::printable::printable;

/// The length of a frame's head: kind (1), operation (1), type (1), refused or half (1), transfer
/// or blamed rank (4), length (8), the call's count (8) and root (4); little-endian. The length
/// of a suspicion, which has no bytes, is how long the rank has waited, in nanoseconds.
pub(super) const HEAD: usize = 28;
/// Bytes of a call.
pub(super) const DATA: u8 = 1;
/// A goodbye: the rank exits normally.
pub(super) const BYE: u8 = 2;
/// The rank gives up, because the blamed rank is lost.
pub(super) const ABORT: u8 = 3;
/// The rank has waited too long for the blamed one.
pub(super) const SUSPECT: u8 = 4;
/// The rank gives up, because calls differ.
pub(super) const DIFFERENCE: u8 = 5;

/// What both ends must agree on besides the length of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// Counts the transfers of a group, starting from a number that depends on the group.
    pub(super) number: u32,
    pub(super) call: Call,
}

/// The head of a received frame.
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) number: u32,
    pub(super) length: u64,
    /// `None` if it cannot be read.
    pub(super) call: Option<Call>,
}

pub(super) fn head(kind: u8, number: u32, length: u64, call: Call) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = kind;
    head[1..4].copy_from_slice(&call.codes());
    head[4..8].copy_from_slice(&number.to_le_bytes());
    head[8..16].copy_from_slice(&length.to_le_bytes());
    head[16..24].copy_from_slice(&call.count.to_le_bytes());
    head[24..].copy_from_slice(&call.root.to_le_bytes());
    head
}

pub(super) fn parse(head: &[u8; HEAD]) -> Head {
    let &[kind, operation, type_of_numbers, how, ..] = head;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
    Head {
        kind,
        number: (word(0) >> 32) as u32,
        length: word(8),
        call: Call::from_codes(
            [operation, type_of_numbers, how],
            word(16),
            (word(HEAD - 8) >> 32) as u32,
        ),
    }
}

/// Longest reason in the frame of a rank that gives up, in bytes.
const LONGEST_REASON: usize = 1024;
/// How long the reason may take to arrive after its frame's head.
const REST: Duration = Duration::from_millis(500);

/// The connection to another rank.
#[derive(Debug)]
pub(super) struct Peer {
    stream: TcpStream,
    /// Encrypts and authenticates all frames, if the job has a secret.
    seal: Option<Box<Seal>>,
    /// The host's name and address, for errors.
    pub(super) host: String,
    head_in: [u8; HEAD],
    /// Bytes of the current frame in each direction, including its head.
    received: usize,
    sent: usize,
    /// Unsent bytes of short frames (a goodbye, a reason or a suspicion).
    unsent: Vec<u8>,
    /// Length of the frame in each direction, including its head.
    due: usize,
    to_send: usize,
    /// Bytes sent in all data frames, including heads.
    pub(super) written: u64,
    /// Whether the current transfer to and from this peer is complete.
    pub(super) is_through: bool,
    /// Whether the peer has closed the connection. There may still be data to read.
    pub(super) is_closed: bool,
}

/// What is wrong with a connection.
#[derive(Debug)]
pub(super) enum Fault {
    Lost(String),
    /// The peer made another call.
    Differs(Call),
    /// The peer gave up and blames a rank.
    Abort {
        blamed: u32,
        reason: Reason,
    },
    /// The peer has waited so long for a rank, which may itself wait for another.
    Suspect {
        blamed: u32,
        waited: Duration,
    },
}

/// Why a rank gives up on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// What is known about its loss.
    Lost(String),
    /// The error of a rank that found different calls.
    Difference(String),
}

impl Fault {
    pub(super) fn unreadable() -> Fault {
        Fault::Lost(UNREADABLE.to_owned())
    }

    fn suspect(blamed: u32, nanoseconds: u64) -> Fault {
        Fault::Suspect { blamed, waited: Duration::from_nanos(nanoseconds) }
    }

    /// The peer has closed or dropped the group, but this rank still waits for it in `call`.
    pub(super) fn left(call: Call) -> Fault {
        if call == Call::RECEIVE {
            // The number of messages is known to the sender alone.
            return Fault::Lost("it exited before this rank did".to_owned());
        }
        Fault::Differs(Call::CLOSE)
    }
}

/// Whether a frame or message is complete, and whether any byte moved.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) done: bool,
    pub(crate) moved: bool,
}

impl Peer {
    pub(super) fn new(stream: TcpStream, host: String, seal: Option<Seal>) -> Peer {
        let seal = seal.map(Box::new);
        Peer {
            stream,
            seal,
            host,
            head_in: [0; HEAD],
            received: 0,
            sent: 0,
            unsent: Vec::new(),
            due: 0,
            to_send: 0,
            written: 0,
            is_through: false,
            is_closed: false,
        }
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    pub(super) fn descriptor(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.stream)
    }

    /// Begins a new frame in each direction.
    pub(super) fn begin(&mut self) {
        self.received = 0;
        self.sent = 0;
        self.is_through = false;
        if let Some(seal) = &mut self.seal {
            seal.begin();
        }
    }

    /// The lengths on the wire of a frame that carries `bytes` bytes, and of its head.
    fn lengths(&self, bytes: usize) -> (usize, usize) {
        if self.seal.is_some() { (sealed_length(bytes), SEALED_HEAD) } else { (HEAD + bytes, HEAD) }
    }

    /// Writes as much of the frame that carries `bytes` as the socket accepts.
    pub(super) fn push(&mut self, transfer: Transfer, bytes: &[u8]) -> Result<Progress, Fault> {
        let head = head(DATA, transfer.number, bytes.len() as u64, transfer.call);
        let (total, _) = self.lengths(bytes.len());
        self.to_send = total;
        let before = self.sent;
        while self.sent < total {
            let wrote = if let Some(seal) = &mut self.seal {
                seal.write(&mut self.stream, &head, bytes)
            } else if self.sent < HEAD {
                self.stream.write_vectored(&[IoSlice::new(&head[self.sent..]), IoSlice::new(bytes)])
            } else {
                self.stream.write(&bytes[self.sent - HEAD..])
            };
            match wrote {
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Lost(meaning(&error))),
            }
        }
        self.written += (self.sent - before) as u64;
        Ok(Progress { done: self.sent == total, moved: self.sent > before })
    }

    /// Reads what the socket has of a frame, which must carry exactly `into.len()` bytes.
    pub(super) fn pull(&mut self, transfer: Transfer, into: &mut [u8]) -> Result<Progress, Fault> {
        let (total, head_length) = self.lengths(into.len());
        self.due = total;
        let before = self.received;
        while self.received < total {
            let in_head = self.received < head_length;
            let read = if let Some(seal) = &mut self.seal {
                seal.read(&mut self.stream, &mut self.head_in, into, self.received)
            } else if in_head {
                self.stream.read(&mut self.head_in[self.received..])
            } else {
                self.stream.read(&mut into[self.received - HEAD..])
            };
            match read {
                Ok(0) => return Err(Fault::Lost(GONE.to_owned())),
                Ok(length) => self.received += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Lost(meaning(&error))),
            }
            if in_head && self.received == head_length {
                self.check_head(transfer, into.len() as u64)?;
            }
        }
        Ok(Progress { done: self.received == total, moved: self.received > before })
    }

    fn check_head(&mut self, transfer: Transfer, due: u64) -> Result<(), Fault> {
        let Head { kind, number, length, call } = parse(&self.head_in);
        match (kind, call) {
            (DATA, Some(call)) if !call.answers(transfer.call) => Err(Fault::Differs(call)),
            // The same call of another group.
            (DATA, Some(call)) if number != transfer.number => Err(Fault::Differs(call)),
            (DATA, Some(call)) if length != due && call.is_half => {
                Err(Fault::Differs(call.exchanged_for(length)))
            }
            (DATA, Some(_)) if length != due => {
                Err(Fault::Lost(format!("it sent {length} bytes where {due} were due")))
            }
            (DATA, Some(_)) => Ok(()),
            (ABORT | DIFFERENCE, _) => Err(self.reason(kind, number, length)),
            (SUSPECT, _) => Err(Fault::suspect(number, length)),
            (BYE, _) => Err(Fault::left(transfer.call)),
            _ => Err(Fault::unreadable()),
        }
    }

    fn reason(&mut self, kind: u8, blamed: u32, length: u64) -> Fault {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(LONGEST_REASON);
        let mut text = vec![0; self.lengths(length).0 - self.lengths(0).0];
        let come = self.read_rest(&mut text);
        text.truncate(come);
        if let Some(seal) = &mut self.seal {
            let sealed = text.split_last_chunk::<TAG>().map(|(text, tag)| (text.to_vec(), *tag));
            let opened = sealed.filter(|(text, _)| text.len() == length);
            text = opened
                .and_then(|(mut text, tag)| seal.open(&mut text, tag).ok().map(|()| text))
                .unwrap_or_default();
        }
        let text = printable(&text);
        let is_difference = kind == DIFFERENCE && !text.is_empty();
        Fault::Abort {
            blamed,
            reason: if is_difference { Reason::Difference(text) } else { Reason::Lost(text) },
        }
    }

    /// Reads the rest of a frame, which may arrive in pieces, because the network cuts a stream
    /// anywhere. Returns how many bytes arrived in time.
    fn read_rest(&mut self, into: &mut [u8]) -> usize {
        let (mut length, until) = (0, Instant::now() + REST);
        while length < into.len() {
            match self.stream.read(&mut into[length..]) {
                Ok(read @ 1..) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until =>
                {
                    thread::sleep(Duration::from_millis(1));
                }
                _ => break,
            }
        }
        length
    }

    /// Checks, before or between frames, whether the peer is gone or has given up.
    ///
    /// Leaves data and goodbyes unread: a peer that is ahead has already sent its part of the next
    /// call, and may have exited normally after it.
    pub(super) fn last_words(&mut self) -> Option<Fault> {
        // Within a frame, the next bytes are not a head.
        if self.received > 0 && self.received < self.due {
            return None;
        }
        let head = match self.next_head() {
            Ok(head) => head?,
            Err(error) => return Some(Fault::Lost(meaning(&error))),
        };
        let Head { kind, number: blamed, length, .. } = parse(&head);
        match kind {
            ABORT | DIFFERENCE => {
                self.take_head()?;
                Some(self.reason(kind, blamed, length))
            }
            SUSPECT => {
                self.take_head()?;
                Some(Fault::suspect(blamed, length))
            }
            _ => None,
        }
    }

    /// Returns whether the peer has closed the connection and [`Peer::last_words`] has something to
    /// read. Frames behind unread data or a goodbye are not visible yet.
    pub(super) fn has_last_words(&self) -> bool {
        self.is_closed
            && self.is_through
            && matches!(self.next_head(), Err(_) | Ok(Some([ABORT | DIFFERENCE | SUSPECT, ..])))
    }

    /// The number and call of the next frame, if it is a message between two ranks, and this rank
    /// has not begun to read it.
    pub(super) fn unread_message(&self) -> Option<(u32, Call)> {
        if self.received > 0 && self.received < self.due {
            return None;
        }
        let head = parse(&self.next_head().ok()??);
        let call = head.call.filter(|call| call.is_message())?;
        (head.kind == DATA).then_some((head.number, call))
    }

    /// The call of the next frame, which must be a message with this number, once its head has
    /// arrived. No frame may be half read.
    pub(super) fn arrived(&mut self, number: u32) -> Result<Option<Call>, Fault> {
        // The peer may have sent a message and then closed.
        let was_closed = self.is_closed;
        let head = match self.next_head() {
            Ok(Some(head)) => parse(&head),
            Ok(None) if was_closed => {
                return Err(Fault::Lost(GONE.to_owned()));
            }
            Ok(None) => return Ok(None),
            Err(error) => return Err(Fault::Lost(meaning(&error))),
        };
        match (head.kind, head.call.filter(|call| call.is_message())) {
            (DATA, Some(call)) if head.number == number => Ok(Some(call)),
            (BYE, _) => Err(Fault::left(Call::RECEIVE)),
            _ => Err(self.last_words().unwrap_or_else(Fault::unreadable)),
        }
    }

    /// Peeks at the head of the next frame, if all of it has arrived.
    fn next_head(&self) -> io::Result<Option<[u8; HEAD]>> {
        let (mut bytes, length) = ([0; SEALED_HEAD], self.lengths(0).1);
        match self.stream.peek(&mut bytes[..length]) {
            Ok(0) => Err(io::Error::other(GONE)),
            Ok(read) if read < length => Ok(None),
            Ok(_) => match &self.seal {
                Some(seal) => seal.peek(&bytes).map(Some),
                None => Ok(bytes.first_chunk().copied()),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Consumes the head of the next frame, after `next_head`.
    fn take_head(&mut self) -> Option<()> {
        let (mut bytes, length) = ([0; SEALED_HEAD], self.lengths(0).1);
        self.stream.read_exact(&mut bytes[..length]).ok()?;
        if let Some(seal) = &mut self.seal {
            seal.count();
        }
        Some(())
    }

    /// Returns whether the next frame is a goodbye, without reading it.
    pub(super) fn has_said_goodbye(&self) -> bool {
        matches!(self.next_head(), Ok(Some([BYE, ..])))
    }

    /// Sends a short frame, as far as the socket accepts it. Returns whether nothing is left to
    /// send.
    fn say(&mut self, kind: u8, blamed: u32, length: u64, text: &[u8]) -> bool {
        let head = head(kind, blamed, length, Call::BARRIER);
        let message = match &mut self.seal {
            None => Ok([&head, text].concat()),
            Some(seal) => seal.message(&head, text),
        };
        // Never in clear text what cannot be encrypted: the connection closes anyway.
        self.unsent.extend(message.unwrap_or_default());
        self.say_rest()
    }

    /// Sends more of the short frames. Returns whether nothing is left that can be sent.
    pub(super) fn say_rest(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(length @ 1..) => drop(self.unsent.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                _ => self.unsent.clear(),
            }
        }
        true
    }

    /// Says goodbye, so that the other end does not report the closed connection as a loss.
    pub(super) fn bye(&mut self) {
        self.say(BYE, 0, 0, &[]);
    }

    /// Reports the rank to blame. Returns whether nothing is left to send. No frame may be half
    /// sent.
    pub(super) fn abort(&mut self, blamed: u32, reason: &Reason) -> bool {
        let (kind, text) = match reason {
            Reason::Lost(text) => (ABORT, text),
            Reason::Difference(text) => (DIFFERENCE, text),
        };
        let text = &text.as_bytes()[..text.len().min(LONGEST_REASON)];
        self.say(kind, blamed, text.len() as u64, text)
    }

    /// Reports the rank that this one has waited for so long, unless a frame is half sent: a peer
    /// that does not read the rest of it would not read this either.
    pub(super) fn suspect(&mut self, blamed: u32, waited: Duration) {
        if !self.is_half_sent() {
            self.say(SUSPECT, blamed, waited.as_nanos() as u64, &[]);
        }
    }

    /// Closes the sending side. The other end notices after it has read everything. The receiving
    /// side stays open until [`Peer::discard`] has emptied it.
    pub(super) fn hang_up(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Reads and discards what has arrived. Returns whether the other end has hung up.
    pub(super) fn discard(&mut self) -> bool {
        loop {
            match self.stream.read(&mut [0; 1 << 14]) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                _ => return true,
            }
        }
    }

    /// Returns whether a part of the current frame has come.
    pub(super) fn has_begun(&self) -> bool {
        self.received > 0
    }

    /// Returns whether the other end has closed the connection and all that it sent was read.
    pub(super) fn has_hung_up(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Returns whether the current frame is partly sent.
    pub(super) fn is_half_sent(&self) -> bool {
        let is_pending = self.seal.as_ref().is_some_and(|seal| seal.is_pending());
        is_pending || self.sent > 0 && self.sent < self.to_send
    }
}

/// Describes a connection error for users.
fn meaning(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => {
            format!("its host does not answer ({error}): it is down, or the network is cut")
        }
        _ => error.to_string(),
    }
}
