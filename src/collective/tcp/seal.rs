//! Frames that an attacker in the middle cannot read or change: AES-256-GCM with a number for each
//! sealed piece.
//!
//! A frame's head is one piece, and its bytes are pieces of at most [`PIECE`]. Opening fails if a
//! piece was changed, repeated, left out or moved.

use std::io::{self, IoSliceMut, Read, Write};

use mio::net::TcpStream;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

use super::frame::HEAD;
use crate::rendezvous::handshake::Directions;

/// Length of a piece's tag, in bytes.
pub(super) const TAG: usize = 16;
/// The longest piece without its tag, in bytes.
pub(super) const PIECE: usize = 64 * 1024;
/// How many bytes are sealed before the socket gets them. The network sends each write at once, and
/// a write that does not fill its last packet leaves a short one.
const BATCH: usize = 4 * PIECE;
/// The length of a sealed head.
pub(super) const SEALED_HEAD: usize = HEAD + TAG;

/// The length on the wire of a frame that carries `bytes` bytes.
pub(super) const fn sealed_length(bytes: usize) -> usize {
    SEALED_HEAD + bytes + TAG * bytes.div_ceil(PIECE)
}

/// The encryption state of a connection.
#[derive(Debug)]
pub(super) struct Seal {
    out: Numbered,
    into: Numbered,
    /// Sealed bytes to send, and how many of them have been sent.
    wire: Vec<u8>,
    gone: usize,
    /// How many bytes of the current frame are sealed; `None` before its head is.
    sealed: Option<usize>,
    /// The sealed head that is being received.
    head: [u8; SEALED_HEAD],
    /// The tag of the piece that is being received.
    tag: [u8; TAG],
}

/// A key, and how many pieces it has sealed or opened.
struct Numbered {
    key: LessSafeKey,
    number: u64,
}

/// Omits the key.
impl std::fmt::Debug for Numbered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Numbered({})", self.number)
    }
}

impl Numbered {
    fn new(key: &[u8; 32]) -> io::Result<Numbered> {
        let key = UnboundKey::new(&AES_256_GCM, key)
            .map_err(|_| io::Error::other("this key cannot be used"))?;
        Ok(Numbered { key: LessSafeKey::new(key), number: 0 })
    }

    /// GCM breaks if a key seals two pieces with one nonce. Each direction of each connection has a
    /// key of its own, from both ranks' random numbers, so that a counter never repeats.
    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, bytes: &mut [u8]) -> io::Result<Tag> {
        let nonce = self.nonce();
        // 2^64 pieces are never sent.
        self.number += 1;
        self.key.seal_in_place_separate_tag(nonce, Aad::empty(), bytes).map_err(|_| altered())
    }

    /// Opens the next piece, without counting it.
    fn open_uncounted(&self, bytes: &mut [u8], tag: [u8; TAG]) -> io::Result<()> {
        let opened =
            self.key.open_in_place_separate_tag(self.nonce(), Aad::empty(), tag.into(), bytes, 0..);
        opened.map(drop).map_err(|_| altered())
    }

    fn open(&mut self, bytes: &mut [u8], tag: [u8; TAG]) -> io::Result<()> {
        self.open_uncounted(bytes, tag)?;
        self.number += 1;
        Ok(())
    }
}

/// The error for a message that did not arrive as the peer sent it.
fn altered() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message from it was changed, repeated or left out on the way",
    )
}

impl Seal {
    pub(super) fn new(directions: &Directions) -> io::Result<Seal> {
        let [out, into] = directions.seal_keys();
        Ok(Seal {
            out: Numbered::new(&out)?,
            into: Numbered::new(&into)?,
            wire: Vec::new(),
            gone: 0,
            sealed: None,
            head: [0; SEALED_HEAD],
            tag: [0; TAG],
        })
    }

    /// Begins a new frame.
    pub(super) fn begin(&mut self) {
        self.sealed = None;
    }

    /// Returns whether sealed bytes wait to be sent. They must be sent before anything else: the
    /// peer counts pieces, and can open none after one that it did not get.
    pub(super) fn is_pending(&self) -> bool {
        self.gone < self.wire.len()
    }

    /// Writes more of the frame with this head and these bytes, which are sealed only once the
    /// socket has accepted those before: 256 KiB stay in the processor's cache.
    pub(super) fn write(
        &mut self,
        stream: &mut TcpStream,
        head: &[u8; HEAD],
        bytes: &[u8],
    ) -> io::Result<usize> {
        if !self.is_pending() {
            self.wire.clear();
            self.gone = 0;
            let from = match self.sealed {
                Some(sealed) => sealed,
                None => {
                    self.append(head)?;
                    0
                }
            };
            let batch = &bytes[from..(from + BATCH).min(bytes.len())];
            batch.chunks(PIECE).try_for_each(|piece| self.append(piece))?;
            self.sealed = Some(from + batch.len());
        }
        let length = stream.write(&self.wire[self.gone..])?;
        self.gone += length;
        Ok(length)
    }

    /// Seals a piece and appends it to the bytes to send.
    fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        let from = self.wire.len();
        self.wire.extend_from_slice(piece);
        let tag = self.out.seal(&mut self.wire[from..])?;
        self.wire.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Seals a whole short frame.
    pub(super) fn message(&mut self, head: &[u8; HEAD], bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.wire.clear();
        self.append(head)?;
        if !bytes.is_empty() {
            self.append(bytes)?;
        }
        self.gone = 0;
        Ok(std::mem::take(&mut self.wire))
    }

    /// Reads more of a frame, of which `received` bytes have arrived, into `head` and then into
    /// `bytes`.
    pub(super) fn read(
        &mut self,
        stream: &mut TcpStream,
        head: &mut [u8; HEAD],
        bytes: &mut [u8],
        received: usize,
    ) -> io::Result<usize> {
        let Some(at) = received.checked_sub(SEALED_HEAD) else {
            let length = stream.read(&mut self.head[received..])?;
            if received + length == SEALED_HEAD {
                *head = self.peek(&self.head)?;
                self.count();
            }
            return Ok(length);
        };
        let (from, at) = (at / (PIECE + TAG) * PIECE, at % (PIECE + TAG));
        let to = (from + PIECE).min(bytes.len());
        let piece = &mut bytes[from..to];
        let (rest, tag_at) = (at.min(piece.len()), at.saturating_sub(piece.len()));
        let whole = piece.len() + TAG;
        let length = stream.read_vectored(&mut [
            IoSliceMut::new(&mut piece[rest..]),
            IoSliceMut::new(&mut self.tag[tag_at..]),
        ])?;
        if at + length == whole {
            self.into.open(piece, self.tag)?;
        }
        Ok(length)
    }

    /// Opens the head of the next frame, without counting it: its bytes remain in the socket, and
    /// will be read and opened again.
    pub(super) fn peek(&self, sealed: &[u8; SEALED_HEAD]) -> io::Result<[u8; HEAD]> {
        let (mut head, mut tag) = ([0; HEAD], [0; TAG]);
        head.copy_from_slice(&sealed[..HEAD]);
        tag.copy_from_slice(&sealed[HEAD..]);
        self.into.open_uncounted(&mut head, tag)?;
        Ok(head)
    }

    /// Opens the bytes of a short frame.
    pub(super) fn open(&mut self, bytes: &mut [u8], tag: [u8; TAG]) -> io::Result<()> {
        self.into.open(bytes, tag)
    }

    /// Counts a head that was opened.
    pub(super) fn count(&mut self) {
        self.into.number += 1;
    }
}
