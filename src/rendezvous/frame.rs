//! The messages on the wire. `mpienv::guide::wire_format` specifies them byte by byte.
//!
//! Rank 0 speaks first, so that a rank sends nothing to another program's port.

mod hello;

use std::fmt;
use std::sync::Arc;

use super::auth::{Bytes32, LENGTH, digest};

pub use hello::Purpose;
pub(super) use hello::{FIRST, Hello, HelloReader, Reject, SHORT_BLOB, Secret};

/// First bytes of every frame. The line ending reveals a transfer that rewrites text.
const MAGIC: [u8; 8] = *b"mpienv\r\n";
/// The protocol's version, increased whenever the frames change.
const PROTOCOL: u16 = 9;
/// Length of a reply's fixed part.
pub(super) const REPLY_HEAD: usize = 21;
/// What a rank sends to confirm that it is still there; a tag follows.
pub(super) const HERE: [u8; 1] = [1];
/// Length of the greeting without a credential: a reply with a public key and without a tag.
pub(super) const GREETING: usize = REPLY_HEAD + LENGTH;
/// Longest text of a failure, in bytes.
pub(super) const LONGEST_TEXT: usize = 64 * 1024;

/// The versions of the protocol and of the crate in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    protocol: u16,
    release: [u16; 3],
}

impl Version {
    /// This program's versions.
    pub(super) const OWN: Version = Version {
        protocol: PROTOCOL,
        release: [
            number(env!("CARGO_PKG_VERSION_MAJOR")),
            number(env!("CARGO_PKG_VERSION_MINOR")),
            number(env!("CARGO_PKG_VERSION_PATCH")),
        ],
    };

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.protocol.to_be_bytes());
        for part in self.release {
            out.extend(part.to_be_bytes());
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Version> {
        let protocol = u16::from_be_bytes(take(bytes)?);
        let mut release = [0; 3];
        for part in &mut release {
            *part = u16::from_be_bytes(take(bytes)?);
        }
        Some(Version { protocol, release })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.release;
        write!(f, "mpienv {major}.{minor}.{patch} (protocol {})", self.protocol)
    }
}

#[expect(clippy::panic, reason = "a constant that is wrong fails to compile")]
const fn number(digits: &str) -> u16 {
    match u16::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of the crate's version is not a number"),
    }
}

/// Splits `N` bytes off the front.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (front, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*front)
}

/// What a reply carries. Its number goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ReplyKind {
    /// The hello was accepted. The payload is how many more milliseconds rank 0 will wait, and the
    /// meeting's number.
    Welcome = 1,
    /// All ranks came; the payload is the table.
    Table,
    /// All ranks came; the payload is rank 0's answer.
    Done,
    /// Not all ranks arrived in time; the payload is the text.
    TimedOut,
    /// The ranks disagree; the payload is the text.
    Mismatch,
    /// The proof is wrong: the rank does not have this job's token.
    OtherJob,
    /// All ranks came, and rank 0 asks whether this rank is still there.
    Ready,
    /// A rank was lost before all ranks came; the payload is the text.
    Lost,
    /// Rank 0 of some job listens here; the payload is its public key for this connection, and its
    /// MUNGE credential if it has one.
    Greeting,
    /// A message from either end, on a connection that stays open after the meeting.
    Message,
    /// This rank alone does not fit, and rank 0 goes on without it; the payload is the text.
    TurnedAway,
}

impl ReplyKind {
    const ALL: [ReplyKind; 11] = [
        ReplyKind::Welcome,
        ReplyKind::Table,
        ReplyKind::Done,
        ReplyKind::TimedOut,
        ReplyKind::Mismatch,
        ReplyKind::OtherJob,
        ReplyKind::Ready,
        ReplyKind::Lost,
        ReplyKind::Greeting,
        ReplyKind::Message,
        ReplyKind::TurnedAway,
    ];
}

/// Encodes a reply without its tag. Callers keep payloads well below 4 GiB.
pub(super) fn reply(kind: ReplyKind, payload: &[u8]) -> Vec<u8> {
    [&reply_head(kind, payload.len())[..], payload].concat()
}

fn reply_head(kind: ReplyKind, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(REPLY_HEAD);
    out.extend(MAGIC);
    Version::OWN.put(&mut out);
    out.push(kind as u8);
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    out
}

/// The first message from rank 0 on every connection. `credential` is empty without MUNGE.
pub(super) fn greeting(public: &Bytes32, credential: &[u8]) -> Vec<u8> {
    reply(ReplyKind::Greeting, &[public, credential].concat())
}

/// A reply for any number of ranks. Each rank gets it with its own tag.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) bytes: Arc<[u8]>,
    pub(super) digest: Bytes32,
}

impl Message {
    pub(super) fn new(kind: ReplyKind, payload: &[u8]) -> Message {
        // One allocation, because a table may be long.
        let bytes: Arc<[u8]> =
            reply_head(kind, payload.len()).iter().chain(payload).copied().collect();
        Message { digest: digest(&[&bytes]), bytes }
    }
}

/// The fixed part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyHead {
    /// The bytes as received.
    pub(super) raw: [u8; REPLY_HEAD],
    pub(super) version: Version,
    pub(super) kind: ReplyKind,
    pub(super) length: u32,
}

impl ReplyHead {
    /// Parses a head. Returns `None` if the peer is not mpienv.
    pub(super) fn decode(raw: [u8; REPLY_HEAD]) -> Option<ReplyHead> {
        let mut rest = raw.strip_prefix(&MAGIC)?;
        let version = Version::take(&mut rest)?;
        let [code] = take(&mut rest)?;
        let kind = ReplyKind::ALL.into_iter().find(|&kind| kind as u8 == code)?;
        Some(ReplyHead { raw, version, kind, length: u32::from_be_bytes(take(&mut rest)?) })
    }
}

#[cfg(test)]
mod tests;
