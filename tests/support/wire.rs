//! What a rank and rank 0 send, byte by byte as the guide specifies, for tests and benchmarks that
//! play either of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;

use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// The lengths of a reply's header, a greeting, a welcome, and the question whether the rank is
/// still there.
pub const HEAD: usize = 21;
pub const GREETING: usize = HEAD + 32;
pub const WELCOME: usize = HEAD + 4 + NUMBER + 32;
pub const READY: usize = HEAD + 32;
/// The length of a hello's fields before the proof, and of those before the public key.
pub const CLAIM: usize = 83;
pub const FIELDS: usize = CLAIM - 32;
/// The length of the encrypted number of a meeting.
pub const NUMBER: usize = 32 + 16;

/// The private keys of the played rank and of the played rank 0, and the public ones.
pub const OF_RANK: [u8; 32] = [9; 32];
pub const OF_MASTER: [u8; 32] = [5; 32];
pub static PUBLIC_OF_RANK: LazyLock<[u8; 32]> =
    LazyLock::new(|| x25519(OF_RANK, X25519_BASEPOINT_BYTES));
pub static PUBLIC_OF_MASTER: LazyLock<[u8; 32]> =
    LazyLock::new(|| x25519(OF_MASTER, X25519_BASEPOINT_BYTES));

/// The protocol that this program uses, and the crate's version.
pub fn own_version() -> [u16; 4] {
    let parts = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    let [major, minor, patch] = parts.map(|part| part.parse().unwrap());
    [12, major, minor, patch]
}

/// The first bytes of every frame.
fn head(version: [u16; 4]) -> Vec<u8> {
    let mut out = b"mpienv\r\n".to_vec();
    out.extend(version.iter().flat_map(|part| part.to_be_bytes()));
    out
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

pub fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// The key of a job without an identity, in its first attempt.
pub fn job_key(token: &[u8]) -> [u8; 32] {
    hmac(&sha256(token), &[b"mpienv job", &[0; 16], &[0; 4]])
}

/// The key for the launches of the job's nodes.
pub fn key_of_launches(token: &[u8]) -> [u8; 32] {
    hmac(&sha256(token), &[b"mpienv launches", &[0; 16], &[0; 4]])
}

/// One direction of a connection.
#[derive(Clone)]
pub struct Direction {
    pub key: [u8; 32],
    pub sequence: u64,
}

impl Direction {
    pub fn tag(&mut self, message: &[u8]) -> [u8; 32] {
        let tag = hmac(&self.key, &[&self.sequence.to_be_bytes(), &sha256(message)]);
        self.sequence += 1;
        tag
    }

    /// Encrypts the number of a meeting.
    pub fn seal_number(&self, number: &[u8]) -> Vec<u8> {
        let mut sealed = number.to_vec();
        self.of_number()
            .seal_in_place_append_tag(NO_NONCE(), Aad::empty(), &mut sealed)
            .map(|()| sealed)
            .unwrap()
    }

    /// Decrypts the number of a meeting. `None` if this is not its key.
    pub fn open_number(&self, sealed: &[u8]) -> Option<[u8; 32]> {
        let mut sealed = sealed.to_vec();
        let opened = self.of_number().open_in_place(NO_NONCE(), Aad::empty(), &mut sealed).ok()?;
        (&*opened).try_into().ok()
    }

    fn of_number(&self) -> LessSafeKey {
        let key = hmac(&self.key, &[b"mpienv number"]);
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap())
    }
}

const NO_NONCE: fn() -> Nonce = || Nonce::assume_unique_for_key([0; 12]);

/// The keys of a connection.
#[derive(Clone)]
pub struct Session {
    pub of_rank: Direction,
    pub of_master: Direction,
}

impl Session {
    pub fn new(token: &[u8], greeting: &[u8], claim: &[u8]) -> Session {
        Session::of_key(&job_key(token), greeting, claim)
    }

    /// Derives the keys from the key of a job, or of the connections to a rank, for the end that is
    /// played here.
    pub fn of_key(key: &[u8], greeting: &[u8], claim: &[u8]) -> Session {
        let part = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).unwrap();
        let (of_master, of_rank) = (part(&greeting[HEAD..GREETING]), part(&claim[FIELDS..CLAIM]));
        // Two versions only name each other.
        if greeting[8..16] != claim[8..16] {
            return Session::unexchanged(key, greeting, claim);
        }
        let agreed = match of_master == *PUBLIC_OF_MASTER {
            true => x25519(OF_MASTER, of_rank),
            false => x25519(OF_RANK, of_master),
        };
        Session::unexchanged(&hmac(key, &[b"mpienv exchange", &agreed]), greeting, claim)
    }

    /// Derives the keys from what the exchange has been mixed into, or without an exchange.
    pub fn unexchanged(key: &[u8], greeting: &[u8], claim: &[u8]) -> Session {
        let key = |name: &[u8]| hmac(key, &[name, greeting, claim]);
        let direction = |name: &[u8]| Direction { key: key(name), sequence: 0 };
        Session {
            of_rank: direction(b"mpienv from rank "),
            of_master: direction(b"mpienv from master "),
        }
    }

    /// A reply of rank 0 of this kind, with its tag.
    pub fn reply(&mut self, kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = reply(kind, u32::try_from(payload.len()).unwrap(), payload);
        let tag = self.of_master.tag(&out);
        out.extend(tag);
        out
    }

    /// The message that rank 0 will wait for this many more milliseconds.
    pub fn welcome(&mut self, milliseconds: u32) -> Vec<u8> {
        let number = self.of_master.seal_number(&[7; 32]);
        self.reply(1, &[&milliseconds.to_be_bytes()[..], &number].concat())
    }

    /// The message that the rank is still there.
    pub fn here(&mut self) -> Vec<u8> {
        [&[1][..], &self.of_rank.tag(&[1])].concat()
    }
}

/// A rank played by this program.
#[derive(Clone, Copy)]
pub struct Played<'a> {
    pub version: [u16; 4],
    pub rank: u32,
    pub size: u32,
    /// Whether the rank wants the table, or only the report.
    pub needs_table: bool,
    pub token: &'a [u8],
    /// May be wrong.
    pub blob_length: u32,
}

impl Played<'_> {
    /// The fields of the hello.
    pub fn claim(&self) -> Vec<u8> {
        let mut out = head(self.version);
        out.extend(self.rank.to_be_bytes());
        out.extend(self.size.to_be_bytes());
        out.push(u8::from(self.needs_table));
        out.extend(self.blob_length.to_be_bytes());
        // The port, which only has to be nonzero, the job, the attempt and the public key.
        out.extend(1u16.to_be_bytes());
        out.extend([0; 16 + 4]);
        out.extend(*PUBLIC_OF_RANK);
        out
    }

    /// The hello that answers a greeting, with this blob, and the keys for the rest of the
    /// connection.
    pub fn hello(&self, greeting: &[u8], blob: &[u8]) -> (Vec<u8>, Session) {
        let claim = self.claim();
        let mut session = Session::new(self.token, greeting, &claim);
        let (proof, tag) = (session.of_rank.tag(b""), session.of_rank.tag(blob));
        ([&claim[..], &proof, blob, &tag].concat(), session)
    }

    /// Reads the greeting and sends the hello.
    pub fn join(&self, stream: &mut TcpStream, blob: &[u8]) -> Session {
        let (hello, session) = self.hello(&hear_greeting(stream), blob);
        // Rank 0 may have closed already.
        let _ = stream.write_all(&hello);
        session
    }
}

pub fn hear_greeting(stream: &mut TcpStream) -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    stream.read_exact(&mut greeting).unwrap();
    greeting
}

/// A rank played by this program.
pub fn played(
    rank: u32,
    size: u32,
    needs_table: bool,
    token: &[u8],
    blob_length: u32,
) -> Played<'_> {
    Played { version: own_version(), rank, size, needs_table, token, blob_length }
}

/// A reply of rank 0 of this kind, without a tag; the length may be wrong.
pub fn reply(kind: u8, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = head(own_version());
    out.push(kind);
    out.extend(length.to_be_bytes());
    out.extend(payload);
    out
}

/// What rank 0 sends on every connection.
pub fn greeting() -> Vec<u8> {
    reply(9, 32, &*PUBLIC_OF_MASTER)
}

/// As rank 0, sends the greeting, reads the hello, and returns the keys for the rest, with the key
/// of a job or of its launches.
pub fn greet_with(stream: &mut TcpStream, key: &[u8]) -> std::io::Result<Session> {
    stream.write_all(&greeting())?;
    let mut hello = [0; CLAIM + 32];
    stream.read_exact(&mut hello)?;
    let blob_length = u32::from_be_bytes(hello[25..29].try_into().unwrap());
    stream.read_exact(&mut vec![0; blob_length as usize + 32])?;
    Ok(Session::of_key(key, &greeting(), &hello[..CLAIM]))
}

/// Like `greet_with`, with the key of a rank's job.
pub fn greet(stream: &mut TcpStream, token: &[u8]) -> std::io::Result<Session> {
    greet_with(stream, &job_key(token))
}

/// Reads the welcome and the question whether the rank is still there; answers that it is.
pub fn answer_roll_call(stream: &mut (impl Read + Write), session: &mut Session) {
    stream.read_exact(&mut [0; WELCOME + READY]).unwrap();
    stream.write_all(&session.here()).unwrap();
}
