//! Keys and tags: HMAC-SHA-256 of data that both ends know. See
//! `mpienv::guide::wire_format`.

use std::io;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Length of a nonce, of a key and of a tag, in bytes.
pub(super) const LENGTH: usize = 32;
/// Length of the digest that stands for a job's identity.
pub(super) const JOB: usize = 16;

/// Random bytes, a key or a digest.
pub(super) type Bytes32 = [u8; LENGTH];

/// A random number that never repeats.
pub(super) fn nonce() -> io::Result<Bytes32> {
    let mut nonce = [0; LENGTH];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}

pub(super) fn digest(parts: &[&[u8]]) -> Bytes32 {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

fn hmac(key: &Bytes32, parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC pads a short key with zeros to the hash's block size, so this is the same key.
    let mut block = [0; 64];
    block[..LENGTH].copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn derive(key: &Bytes32, parts: &[&[u8]]) -> Bytes32 {
    hmac(key, parts).finalize().into_bytes().into()
}

/// The job and the attempt to which a key belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Digest of the job's identity; zeros if it has none.
    pub(super) job: [u8; JOB],
    pub(super) attempt: u32,
}

impl Run {
    pub(super) fn new(identity: &[u8], attempt: u32) -> Run {
        let mut job = [0; JOB];
        if !identity.is_empty() {
            job.copy_from_slice(&digest(&[identity])[..JOB]);
        }
        Run { job, attempt }
    }
}

/// Which processes of a job meet. The keys of one role are useless to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    #[default]
    Ranks,
    /// The processes that start the ranks of each node. They stay connected.
    Launches,
}

impl Role {
    fn label(self) -> &'static [u8] {
        match self {
            Role::Ranks => b"mpienv job",
            Role::Launches => b"mpienv launches",
        }
    }
}

/// The key of one attempt of one job.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct JobKey(Bytes32);

impl JobKey {
    pub(super) fn new(token: &[u8], role: Role, run: Run) -> JobKey {
        JobKey(derive(&digest(&[token]), &[role.label(), &run.job, &run.attempt.to_be_bytes()]))
    }

    /// Wraps a key that was already derived.
    pub(super) fn of_bytes(key: Bytes32) -> JobKey {
        JobKey(key)
    }

    /// Derives the keys of a connection from its greeting and its hello up to the proof.
    pub(super) fn session(&self, greeting: &[u8], hello: &[u8]) -> Session {
        let direction =
            |name: &[u8]| Direction { key: derive(&self.0, &[name, greeting, hello]), sequence: 0 };
        Session {
            of_rank: direction(b"mpienv from rank "),
            of_master: direction(b"mpienv from master "),
        }
    }

    /// A key for other uses, specific to the meeting with this number.
    pub(super) fn of_meeting(&self, meeting: &Bytes32) -> Bytes32 {
        derive(&self.0, &[b"mpienv meeting", meeting])
    }
}

/// Derives a key for `purpose` from another key.
pub(super) fn for_purpose(key: &Bytes32, purpose: &[u8]) -> Bytes32 {
    derive(key, &[b"mpienv purpose", purpose])
}

/// The keys of one connection.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// For what the rank sends.
    pub(super) of_rank: Direction,
    /// For what rank 0 sends.
    pub(super) of_master: Direction,
}

/// One direction of a connection: its key, and the number of its next message.
#[derive(Clone)]
pub struct Direction {
    key: Bytes32,
    sequence: u64,
}

/// Omits the key.
impl std::fmt::Debug for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Direction(message {})", self.sequence)
    }
}

impl Direction {
    /// The tag of the next message, given the digest of the message.
    pub(super) fn tag(&mut self, digest: &Bytes32) -> Bytes32 {
        self.next(digest).finalize().into_bytes().into()
    }

    /// Returns whether this is the tag of the next message. Takes the same time for every wrong
    /// tag.
    pub(super) fn verify(&mut self, digest: &Bytes32, tag: &[u8]) -> bool {
        self.next(digest).verify_slice(tag).is_ok()
    }

    fn next(&mut self, digest: &Bytes32) -> Hmac<Sha256> {
        let mac = hmac(&self.key, &[&self.sequence.to_be_bytes(), digest]);
        self.sequence += 1;
        mac
    }

    /// A key for encryption, which replaces the tags.
    pub(super) fn seal_key(&self) -> Bytes32 {
        derive(&self.key, &[b"mpienv seal"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_tag_is_hmac_sha_256_as_rfc_4231_has_it() {
        let mut key = [0; LENGTH];
        key[..4].copy_from_slice(b"Jefe");
        assert_eq!(
            hex(&derive(&key, &[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(hex(&digest(&[b"ab", b"c"]))[..16], *"ba7816bf8f01cfea");
    }

    #[test]
    fn every_input_changes_the_key() {
        let of_role =
            |role, token: &[u8], run: Run, greeting: &[u8], hello: &[u8], of_rank: bool| {
                let mut session = JobKey::new(token, role, run).session(greeting, hello);
                let direction = if of_rank { &mut session.of_rank } else { &mut session.of_master };
                direction.tag(&digest(&[]))
            };
        let tag = |token: &[u8], run, greeting: &[u8], hello: &[u8], of_rank| {
            of_role(Role::Ranks, token, run, greeting, hello, of_rank)
        };
        let run = Run::new(b"4711/0", 1);
        let tags = [
            tag(b"secret", run, b"g", b"h", true),
            tag(b"secrets", run, b"g", b"h", true),
            tag(b"secret", Run::new(b"4711/1", 1), b"g", b"h", true),
            tag(b"secret", Run::new(b"4711/0", 2), b"g", b"h", true),
            tag(b"secret", Run::new(b"", 1), b"g", b"h", true),
            tag(b"secret", run, b"G", b"h", true),
            tag(b"secret", run, b"g", b"H", true),
            tag(b"secret", run, b"g", b"h", false),
            of_role(Role::Launches, b"secret", run, b"g", b"h", true),
        ];
        assert_eq!(tags.iter().collect::<std::collections::BTreeSet<_>>().len(), tags.len());
    }

    #[test]
    fn a_tag_is_good_once_and_in_its_turn() {
        let session = JobKey::new(b"secret", Role::Ranks, Run::default()).session(b"g", b"h");
        let (mut sender, mut receiver) = (session.of_rank.clone(), session.of_rank);
        let (first, second) = (digest(&[b"first"]), digest(&[b"second"]));
        let tags = [sender.tag(&first), sender.tag(&second)];
        assert!(!receiver.clone().verify(&second, &tags[1]));
        assert!(receiver.verify(&first, &tags[0]));
        assert!(!receiver.clone().verify(&first, &tags[0]));
        assert!(receiver.verify(&second, &tags[1]));
    }
}
