//! Keys and tags: HMAC-SHA-256 of what both ends know and of what they agree on with X25519, so
//! that the token alone opens no recording. See `mpienv::guide::wire_format`.

use std::io;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{Context, SHA256};
use ring::error::Unspecified;
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};

/// Length of a nonce, of a key and of a tag, in bytes.
pub(super) const LENGTH: usize = 32;
/// Length of the digest that stands for a job's identity.
pub(super) const JOB: usize = 16;

/// Random bytes, a key or a digest.
pub(super) type Bytes32 = [u8; LENGTH];

/// Length of the meeting's number on the wire: encrypted, and with its tag.
pub(super) const SEALED_NUMBER: usize = LENGTH + 16;

/// A random number that never repeats.
///
/// # Errors
/// The system has no random numbers.
pub fn nonce() -> io::Result<Bytes32> {
    let mut nonce = [0; LENGTH];
    SystemRandom::new().fill(&mut nonce).map_err(no_random)?;
    Ok(nonce)
}

fn no_random(_: Unspecified) -> io::Error {
    io::Error::other("the system has no random numbers")
}

fn bytes_32(bytes: &[u8]) -> Bytes32 {
    let mut out = [0; LENGTH];
    out.copy_from_slice(bytes);
    out
}

pub(super) fn digest(parts: &[&[u8]]) -> Bytes32 {
    let mut hash = Context::new(&SHA256);
    parts.iter().for_each(|part| hash.update(part));
    bytes_32(hash.finish().as_ref())
}

fn derive(key: &Bytes32, parts: &[&[u8]]) -> Bytes32 {
    let mut mac = hmac::Context::with_key(&hmac::Key::new(HMAC_SHA256, key));
    parts.iter().for_each(|part| mac.update(part));
    bytes_32(mac.sign().as_ref())
}

/// One end's part of a key exchange: a key that lives no longer than the handshake.
#[derive(Debug)]
pub(super) struct Exchange {
    private: EphemeralPrivateKey,
    /// What the other end gets.
    pub(super) public: Bytes32,
}

impl Exchange {
    pub(super) fn new() -> io::Result<Exchange> {
        let private =
            EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(no_random)?;
        let public = private.compute_public_key().map_err(no_random)?;
        Ok(Exchange { private, public: bytes_32(public.as_ref()) })
    }

    /// What both ends know once each has the other's part. `None` if `other` is not a part.
    fn agree(self, other: &[u8]) -> Option<Bytes32> {
        agree_ephemeral(self.private, &UnparsedPublicKey::new(&X25519, other), bytes_32).ok()
    }
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
pub enum Role {
    /// The ranks. They close their connections once they have met.
    #[default]
    Ranks,
    /// The processes that start the ranks of each node. They stay connected.
    Launches,
    /// The ranks of a check that measures. They stay connected.
    Checks,
}

impl Role {
    fn label(self) -> &'static [u8] {
        match self {
            Role::Ranks => b"mpienv job",
            Role::Launches => b"mpienv launches",
            Role::Checks => b"mpienv checks",
        }
    }
}

/// The key of one attempt of one job, or of one connection.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct JobKey {
    key: Bytes32,
    /// Whether a key exchange has a part in it.
    is_exchanged: bool,
}

impl JobKey {
    pub(super) fn new(token: &[u8], role: Role, run: Run) -> JobKey {
        let attempt = run.attempt.to_be_bytes();
        JobKey::of_bytes(derive(&digest(&[token]), &[role.label(), &run.job, &attempt]))
    }

    /// Wraps a key that was already derived.
    pub(super) fn of_bytes(key: Bytes32) -> JobKey {
        JobKey { key, is_exchanged: false }
    }

    /// The key of one connection, which also needs what this end's part of the exchange and
    /// `other`'s agree on. `None` if `other` is not such a part.
    pub(super) fn exchanged(&self, own: Exchange, other: &[u8]) -> Option<JobKey> {
        let key = derive(&self.key, &[b"mpienv exchange", &own.agree(other)?]);
        Some(JobKey { key, is_exchanged: true })
    }

    /// Derives the keys of a connection from its greeting and its hello up to the proof, as rank 0
    /// sees its directions.
    pub(super) fn directions(&self, greeting: &[u8], hello: &[u8]) -> Directions {
        let direction = |name: &[u8]| Direction {
            key: derive(&self.key, &[name, greeting, hello]),
            sequence: 0,
        };
        Directions {
            outgoing: direction(b"mpienv from master "),
            incoming: direction(b"mpienv from rank "),
            is_exchanged: self.is_exchanged,
        }
    }

    /// A key for other uses, specific to the meeting with this number.
    pub(super) fn of_meeting(&self, meeting: &Bytes32) -> Bytes32 {
        derive(&self.key, &[b"mpienv meeting", meeting])
    }
}

/// Derives a key for `purpose` from another key.
pub(super) fn for_purpose(key: &Bytes32, purpose: &[u8]) -> Bytes32 {
    derive(key, &[b"mpienv purpose", purpose])
}

/// Both directions of a connection, as one end sees them.
#[derive(Clone, Debug)]
pub struct Directions {
    /// What this end sends.
    pub(crate) outgoing: Direction,
    /// What this end receives.
    pub(crate) incoming: Direction,
    /// Whether the keys need more than the token and what was heard: the ends run one version.
    pub(crate) is_exchanged: bool,
}

impl Directions {
    /// The directions as the other end sees them.
    pub(super) fn reversed(self) -> Directions {
        Directions { outgoing: self.incoming, incoming: self.outgoing, ..self }
    }

    /// Encrypts the number of a meeting for the other end. A rank of another version gets none.
    pub(super) fn seal_number(&self, number: &Bytes32) -> io::Result<Vec<u8>> {
        if !self.is_exchanged {
            return Ok(vec![0; LENGTH]);
        }
        let mut sealed = number.to_vec();
        let done = self.outgoing.of_number().and_then(|(key, nonce)| {
            key.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed)
        });
        done.map(|()| sealed).map_err(|_| io::Error::other("the meeting's number is not encrypted"))
    }

    /// Decrypts what [`Directions::seal_number`] returned at the other end.
    pub(super) fn open_number(&self, sealed: &[u8]) -> Option<Bytes32> {
        if !self.is_exchanged {
            return sealed.try_into().ok();
        }
        let mut sealed: [u8; SEALED_NUMBER] = sealed.try_into().ok()?;
        let (key, nonce) = self.incoming.of_number().ok()?;
        let number = key.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
        Some(bytes_32(number))
    }

    /// The keys for encryption, which replaces the tags: outgoing and incoming.
    pub fn seal_keys(&self) -> [Bytes32; 2] {
        [&self.outgoing, &self.incoming].map(|direction| derive(&direction.key, &[b"mpienv seal"]))
    }
}

/// One direction of a connection: its key, and the number of its next message.
#[derive(Clone)]
pub(crate) struct Direction {
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
        bytes_32(hmac::sign(&self.mac(), &self.next(digest)).as_ref())
    }

    /// Returns whether this is the tag of the next message. Takes the same time for every wrong
    /// tag.
    pub(super) fn verify(&mut self, digest: &Bytes32, tag: &[u8]) -> bool {
        hmac::verify(&self.mac(), &self.next(digest), tag).is_ok()
    }

    fn mac(&self) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, &self.key)
    }

    /// What the next message's tag is made of.
    fn next(&mut self, digest: &Bytes32) -> Vec<u8> {
        let signed = [&self.sequence.to_be_bytes()[..], digest].concat();
        self.sequence += 1;
        signed
    }

    /// What encrypts the number of a meeting. Only one is sent in a direction, so that no nonce
    /// repeats.
    fn of_number(&self) -> Result<(LessSafeKey, Nonce), Unspecified> {
        let key = UnboundKey::new(&AES_256_GCM, &derive(&self.key, &[b"mpienv number"]))?;
        Ok((LessSafeKey::new(key), Nonce::assume_unique_for_key([0; 12])))
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
    fn both_ends_agree_and_no_third_does() {
        let key = JobKey::new(b"secret", Role::Ranks, Run::default());
        let ends = || (Exchange::new().unwrap(), Exchange::new().unwrap());
        let ((one, other), (third, _)) = (ends(), ends());
        let (of_one, of_other) = (one.public, other.public);
        let agreed = key.exchanged(one, &of_other);
        assert!(agreed.is_some() && agreed == key.exchanged(other, &of_one));
        assert!(agreed != key.exchanged(third, &of_one) && agreed != Some(key.clone()));
        // Points of a small order, with which everybody would agree on zeros.
        for bad in [[0; LENGTH], [&[1][..], &[0; 31]].concat().try_into().unwrap()] {
            assert!(key.exchanged(Exchange::new().unwrap(), &bad).is_none());
        }
    }

    #[test]
    fn a_meetings_number_is_read_with_its_key_only() {
        let one = JobKey::new(b"secret", Role::Ranks, Run::default()).directions(b"g", b"h");
        let one = Directions { is_exchanged: true, ..one };
        let sealed = one.seal_number(&[7; LENGTH]).unwrap();
        assert_eq!(sealed.len(), SEALED_NUMBER);
        let other = one.clone().reversed();
        assert_eq!(other.open_number(&sealed), Some([7; LENGTH]));
        assert_eq!(one.open_number(&sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(other.open_number(&changed), None);
        }
    }

    #[test]
    fn every_input_changes_the_key() {
        let of_role =
            |role, token: &[u8], run: Run, greeting: &[u8], hello: &[u8], of_rank: bool| {
                let both = JobKey::new(token, role, run).directions(greeting, hello);
                let mut direction = if of_rank { both.incoming } else { both.outgoing };
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
            of_role(Role::Checks, b"secret", run, b"g", b"h", true),
        ];
        assert_eq!(tags.iter().collect::<std::collections::BTreeSet<_>>().len(), tags.len());
    }

    #[test]
    fn a_tag_is_good_once_and_in_its_turn() {
        let both = JobKey::new(b"secret", Role::Ranks, Run::default()).directions(b"g", b"h");
        let (mut sender, mut receiver) = (both.incoming.clone(), both.incoming);
        let (first, second) = (digest(&[b"first"]), digest(&[b"second"]));
        let tags = [sender.tag(&first), sender.tag(&second)];
        assert!(!receiver.clone().verify(&second, &tags[1]));
        assert!(receiver.verify(&first, &tags[0]));
        assert!(!receiver.clone().verify(&first, &tags[0]));
        assert!(receiver.verify(&second, &tags[1]));
    }
}
