//! What goes over the wire, byte by byte. All numbers are big-endian.
//!
//! Rank 0 speaks first, so that a rank sends nothing to another program's port: a greeting, which is an empty reply.
//! A rank then says hello: magic (8), protocol (2), crate version (3 x 2), rank (4), world size (4),
//! what for (1), token length (1), blob length (4), token, blob.
//! Rank 0 answers with replies: magic (8), protocol (2), crate version (3 x 2), kind (1), length (4), payload.
//! Once all have come it asks whether they are still there, which each answers with one byte; then comes the report.
//! The fixed parts keep their layout in every protocol version, so that two versions can name each other.

use std::fmt;

use subtle::ConstantTimeEq;

use super::{LONGEST_BLOB, LONGEST_TOKEN};
use crate::value::port::Port;

/// First bytes of every frame; the line end shows a transfer that rewrites text.
const MAGIC: [u8; 8] = *b"mpienv\r\n";
/// Raised when the frames change.
const PROTOCOL: u16 = 3;
/// Length of a hello's fixed part.
const HELLO_HEAD: usize = 30;
/// Length of a reply's fixed part.
pub(super) const REPLY_HEAD: usize = 21;
/// What a rank sends to confirm that it is still there.
pub(super) const HERE: [u8; 1] = [1];
/// Longest text of a failure, in bytes.
pub(super) const LONGEST_TEXT: usize = 64 * 1024;

/// The protocol and the crate's version that a program speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    protocol: u16,
    release: [u16; 3],
}

impl Version {
    /// What this program speaks.
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

/// What a hello is for: to wait for the report alone, or for the table too.
const VERDICT: u8 = 0;
const TABLE: u8 = 1;
/// To report, at another port, the rank's own master port, which is its blob.
const OTHER_PORT: u8 = 2;

/// Splits `N` bytes off the front.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (front, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*front)
}

/// What a rank says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: Version,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Whether the rank waits for everybody's blobs, or for the report alone.
    pub(super) wants_table: bool,
    /// The rank's own master port, in a hello sent to another port; it then has no blob.
    pub(super) told: Option<Port>,
    pub(super) blob: Vec<u8>,
}

impl Hello {
    /// The frame; the caller has checked both lengths.
    pub(super) fn encode(&self, token: &[u8]) -> Vec<u8> {
        let told = self.told.map(|port| port.get().to_be_bytes());
        let blob = told.as_ref().map_or(&self.blob[..], |port| port);
        let purpose = match self.told {
            Some(_) => OTHER_PORT,
            None if self.wants_table => TABLE,
            None => VERDICT,
        };
        let mut out = Vec::with_capacity(HELLO_HEAD + token.len() + blob.len());
        out.extend(MAGIC);
        self.version.put(&mut out);
        out.extend(self.rank.to_be_bytes());
        out.extend(self.size.to_be_bytes());
        out.push(purpose);
        out.push(u8::try_from(token.len()).unwrap_or(u8::MAX));
        out.extend(u32::try_from(blob.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend(token);
        out.extend(blob);
        out
    }
}

/// Why a connection is not one of this job's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reject {
    /// No hello: a scanner, a browser, noise.
    NotMpienv,
    /// A hello with another job's token.
    OtherJob,
    /// A hello of this job, by another version: all ranks of a job run the same program.
    OtherVersion { rank: u32, version: Version },
}

/// Reads one hello from bytes that come in any pieces.
///
/// Holds at most 285 bytes before the token is known to be right, and then at most the blob's announced length,
/// which is checked first and only allocated as bytes arrive.
#[derive(Debug, Default)]
pub(super) struct HelloReader {
    head: Vec<u8>,
    hello: Option<Hello>,
    blob_length: usize,
    purpose: u8,
}

impl HelloReader {
    /// Takes the next bytes; `Some` when the hello is complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8], token: &[u8]) -> Result<Option<Hello>, Reject> {
        if self.hello.is_none() {
            self.fill(&mut bytes, HELLO_HEAD);
            let known = self.head.len().min(MAGIC.len());
            if self.head[..known] != MAGIC[..known] {
                return Err(Reject::NotMpienv);
            }
            if self.head.len() < HELLO_HEAD {
                return Ok(None);
            }
            let token_length = usize::from(self.head[25]);
            if token_length != token.len() {
                return Err(Reject::OtherJob);
            }
            self.fill(&mut bytes, HELLO_HEAD + token_length);
            if self.head.len() < HELLO_HEAD + token_length {
                return Ok(None);
            }
            self.hello = Some(self.parse(token)?);
        }
        let Some(hello) = &mut self.hello else { return Ok(None) };
        if hello.blob.len() + bytes.len() > self.blob_length {
            return Err(Reject::NotMpienv);
        }
        hello.blob.extend(bytes);
        if hello.blob.len() < self.blob_length {
            return Ok(None);
        }
        if self.purpose == OTHER_PORT {
            let told = <[u8; 2]>::try_from(&hello.blob[..]).ok().map(u16::from_be_bytes);
            hello.told = Some(told.and_then(Port::new).ok_or(Reject::NotMpienv)?);
            hello.blob.clear();
        }
        Ok(self.hello.take())
    }

    fn fill(&mut self, bytes: &mut &[u8], length: usize) {
        let wanted = length.saturating_sub(self.head.len()).min(bytes.len());
        let (now, later) = bytes.split_at(wanted);
        self.head.extend(now);
        *bytes = later;
    }

    fn parse(&mut self, token: &[u8]) -> Result<Hello, Reject> {
        let mut rest = &self.head[MAGIC.len()..];
        let fixed = |rest: &mut &[u8]| {
            let version = Version::take(rest)?;
            let rank = u32::from_be_bytes(take(rest)?);
            let size = u32::from_be_bytes(take(rest)?);
            let [purpose, _token_length] = take(rest)?;
            Some((version, rank, size, purpose, u32::from_be_bytes(take(rest)?)))
        };
        let (version, rank, size, purpose, blob_length) = fixed(&mut rest).ok_or(Reject::NotMpienv)?;
        if !bool::from(rest.ct_eq(token)) {
            return Err(Reject::OtherJob);
        }
        if version != Version::OWN {
            return Err(Reject::OtherVersion { rank, version });
        }
        self.blob_length = usize::try_from(blob_length).unwrap_or(usize::MAX);
        if self.blob_length > LONGEST_BLOB || rank >= size {
            return Err(Reject::NotMpienv);
        }
        self.head = Vec::new();
        self.purpose = purpose;
        Ok(Hello { version, rank, size, wants_table: purpose == TABLE, told: None, blob: Vec::new() })
    }

    #[cfg(test)]
    fn held(&self) -> usize {
        self.head.capacity() + self.hello.as_ref().map_or(0, |hello| hello.blob.capacity())
    }
}

/// What a reply carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// The hello was taken; the payload says how many milliseconds rank 0 will still wait.
    Welcome,
    /// Everybody came, and here is the table.
    Table,
    /// Everybody came; the payload is rank 0's answer.
    Done,
    /// Not everybody came in time; the payload is the text.
    TimedOut,
    /// The ranks do not fit together; the payload is the text.
    Mismatch,
    /// The token is not this job's.
    OtherJob,
    /// Everybody came: is this rank still there?
    Ready,
    /// A rank was lost before everybody came; the payload is the text.
    Lost,
    /// Rank 0 of some job listens here.
    Greeting,
}

impl ReplyKind {
    const ALL: [ReplyKind; 9] = [
        ReplyKind::Welcome,
        ReplyKind::Table,
        ReplyKind::Done,
        ReplyKind::TimedOut,
        ReplyKind::Mismatch,
        ReplyKind::OtherJob,
        ReplyKind::Ready,
        ReplyKind::Lost,
        ReplyKind::Greeting,
    ];

    fn code(self) -> u8 {
        match self {
            ReplyKind::Welcome => 1,
            ReplyKind::Table => 2,
            ReplyKind::Done => 3,
            ReplyKind::TimedOut => 4,
            ReplyKind::Mismatch => 5,
            ReplyKind::OtherJob => 6,
            ReplyKind::Ready => 7,
            ReplyKind::Lost => 8,
            ReplyKind::Greeting => 9,
        }
    }
}

/// A reply as bytes. Payloads are bounded by their makers, far below 4 GiB.
pub(super) fn reply(kind: ReplyKind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(REPLY_HEAD + payload.len());
    out.extend(MAGIC);
    Version::OWN.put(&mut out);
    out.push(kind.code());
    out.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(payload);
    out
}

/// The fixed part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyHead {
    pub(super) version: Version,
    pub(super) kind: ReplyKind,
    pub(super) length: u32,
}

impl ReplyHead {
    /// `None` if the peer that answered is not mpienv.
    pub(super) fn decode(bytes: &[u8; REPLY_HEAD]) -> Option<ReplyHead> {
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let version = Version::take(&mut rest)?;
        let [code] = take(&mut rest)?;
        let kind = ReplyKind::ALL.into_iter().find(|kind| kind.code() == code)?;
        Some(ReplyHead { version, kind, length: u32::from_be_bytes(take(&mut rest)?) })
    }
}

/// Whether a hello can carry this token.
pub(super) fn token_fits(token: &[u8]) -> bool {
    token.len() <= LONGEST_TOKEN
}

#[cfg(test)]
mod tests;
