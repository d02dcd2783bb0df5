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
pub(super) const MAGIC: [u8; 8] = *b"mpienv\r\n";
/// The protocol's version, increased whenever the frames change.
const PROTOCOL: u16 = 12;
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
    fn of(code: u8) -> Option<ReplyKind> {
        use ReplyKind::*;
        let all = [
            Welcome, Table, Done, TimedOut, Mismatch, OtherJob, Ready, Lost, Greeting, Message,
            TurnedAway,
        ];
        all.into_iter().find(|&kind| kind as u8 == code)
    }
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
        let kind = ReplyKind::of(code)?;
        Some(ReplyHead { raw, version, kind, length: u32::from_be_bytes(take(&mut rest)?) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::auth::{Exchange, Role, Run};
    use mpienv_core::Port;

    const RUN: Run = Run { job: [3; 16], attempt: 2 };

    fn secret() -> Secret {
        Secret::new(b"secret", Role::Ranks, RUN)
    }

    fn hello(blob: &[u8]) -> Hello {
        let port = Port::SEVERAL_NODES;
        let (version, run, blob) = (Version::OWN, RUN, blob.to_vec());
        Hello { version, rank: 3, size: 8, purpose: Purpose::Table, port, run, blob }
    }

    /// A reader, and the hello to it with this secret.
    fn wire_of(hello: &Hello, secret: &Secret) -> (HelloReader, Vec<u8>) {
        let exchange = Exchange::new().unwrap();
        let greeting = greeting(&exchange.public, &[]);
        let (wire, _) = hello.encode(&secret.key, &greeting, Exchange::new().unwrap()).unwrap();
        (HelloReader::new(exchange, None), wire)
    }

    fn wire(hello: &Hello) -> (HelloReader, Vec<u8>) {
        wire_of(hello, &secret())
    }

    #[test]
    fn a_hello_survives_any_split() {
        let sent = hello(b"some bytes");
        for cut in 0..wire(&sent).1.len() {
            let (mut reader, wire) = wire(&sent);
            assert_eq!(reader.feed(&wire[..cut], &secret()), Ok(None));
            assert_eq!(reader.feed(&wire[cut..], &secret()), Ok(Some(sent.clone())));
            assert!(reader.take_directions().is_some());
        }
    }

    #[test]
    fn every_byte_of_a_hello_is_bound() {
        let sent = hello(b"blob");
        for at in 0..wire(&sent).1.len() {
            // X25519 ignores the highest bit of a public key, but the tags do not.
            for bit in [1, 0x80] {
                let (mut reader, mut changed) = wire(&sent);
                changed[at] ^= bit;
                let heard = reader.feed(&changed, &secret());
                assert!(heard.is_err(), "byte {at}: {heard:?}");
                let is_proven = at >= 115;
                assert_eq!(heard == Err(Reject::Altered), is_proven, "byte {at}: {heard:?}");
            }
        }
    }

    #[test]
    fn another_job_and_another_attempt_with_the_same_token_are_named() {
        for run in [Run { attempt: 1, ..RUN }, Run { job: [4; 16], ..RUN }] {
            let claimed = Hello { run, ..hello(b"") };
            let (mut reader, said) = wire_of(&claimed, &Secret::new(b"secret", Role::Ranks, run));
            assert_eq!(reader.feed(&said, &secret()), Err(Reject::OtherRun { rank: 3, run }));
            // A sender that only claims the run does not have its key.
            let (mut reader, said) = wire(&claimed);
            assert_eq!(reader.feed(&said, &secret()), Err(Reject::OtherJob));
        }
    }

    #[test]
    fn a_hello_of_another_version_is_named_without_an_exchange() {
        let version = Version { protocol: PROTOCOL - 1, ..Version::OWN };
        let (mut reader, said) = wire(&Hello { version, ..hello(b"blob") });
        assert_eq!(reader.feed(&said, &secret()), Err(Reject::OtherVersion { rank: 3, version }));
        assert!(!reader.take_directions().unwrap().is_exchanged);
        // It does not serve to do without the exchange otherwise.
        let (mut reader, mut said) = wire(&Hello { version, ..hello(b"blob") });
        said[8..10].copy_from_slice(&PROTOCOL.to_be_bytes());
        assert_eq!(reader.feed(&said, &secret()), Err(Reject::OtherJob));
    }

    #[test]
    fn a_claim_of_four_gigabytes_is_dropped_before_any_allocation() {
        let (of_rank, of_master) = (Exchange::new().unwrap(), Exchange::new().unwrap());
        let (claim, blob_length) = (wire(&hello(b"")).1[..51].to_vec(), u32::MAX.to_be_bytes());
        let claim = [&claim[..25], &blob_length, &claim[29..], &of_rank.public].concat();
        let key = secret().key.exchanged(of_rank, &of_master.public).unwrap();
        let mut both = key.directions(&greeting(&of_master.public, &[]), &claim);
        let wire = [claim, both.incoming.tag(&digest(&[])).to_vec()].concat();
        let mut reader = HelloReader::new(of_master, None);
        assert_eq!(reader.feed(&wire, &secret()), Err(Reject::NotMpienv));
        assert!(reader.held() <= 512);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_nor_fill_memory(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..8),
            genuine in 0usize..211,
        ) {
            // Start with valid bytes, so that the noise reaches every field.
            let (mut reader, wire) = wire(&hello(&[7; 64]));
            let mut alive = reader.feed(&wire[..genuine], &secret()).is_ok();
            for piece in &pieces {
                if !alive {
                    break;
                }
                alive = reader.feed(piece, &secret()).is_ok();
                prop_assert!(reader.held() <= 1024 + 2 * 8 * 400);
            }
        }

        #[test]
        fn arbitrary_reply_heads_never_panic(bytes in prop::array::uniform21(any::<u8>())) {
            let _ = ReplyHead::decode(bytes);
        }
    }
}
