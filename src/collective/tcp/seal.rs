//! Frames that an attacker in the middle cannot read or change: AES-256-GCM with a number for each
//! sealed piece.
//!
//! A frame's head is one piece, and its bytes are pieces of at most [`PIECE`]. Opening fails if a
//! piece was changed, repeated, left out or moved.

use std::io::{self, IoSliceMut, Read, Write};

use mio::net::TcpStream;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

use super::peer::HEAD;
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

/// A key, which its own `Debug` omits, and how many pieces it has sealed or opened.
#[derive(Debug)]
struct Numbered {
    key: LessSafeKey,
    number: u64,
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

#[cfg(test)]
mod tests {
    //! What an attacker between two ranks can do to their messages.

    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::Barrier;
    use std::thread;
    use std::time::Instant;

    use super::{SEALED_HEAD, Seal, sealed_length};
    use crate::call::Call;
    use crate::error::CollectiveError;
    use crate::tcp::handshake;
    use crate::tcp::members::Members;
    use crate::tcp::peer::{HEAD, Peer};
    use crate::tcp::tests::Calls as _;
    use crate::tcp::transfer::Links;
    use crate::tcp::{Tcp, Transport as _};
    use crate::tests::PLENTY;
    use crate::value::rank::Rank;

    const KEY: [u8; 32] = [7; 32];
    /// Numbers of a sum: the gradient of the trainer's linear model.
    const LENGTH: usize = 7850;
    /// A sum's message.
    const MESSAGE: usize = sealed_length(4 * LENGTH);
    const ALTERED: &str = "a message from it was changed, repeated or left out on the way";

    /// How an attacker passes on one rank's messages, and whether that rank is 1 (up) or 0.
    type OnTheWay<'a> = (&'a (dyn Fn(&mut TcpStream, &mut TcpStream) + Sync), bool);

    /// Passes on everything.
    fn pass_on(from: &mut TcpStream, to: &mut TcpStream) {
        let _ = std::io::copy(from, to);
    }

    /// Passes on and returns `length` bytes.
    fn pass(length: usize, from: &mut TcpStream, to: &mut TcpStream) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // The rank may have given up.
        if from.read_exact(&mut bytes).is_err() {
            bytes.clear();
        }
        let _ = to.write_all(&bytes);
        bytes
    }

    /// A rank with this connection to the other one.
    fn of_pair(rank: Rank, joined: handshake::Joined, is_sealed: bool) -> Tcp {
        let (stream, directions) = joined;
        stream.set_nonblocking(true).unwrap();
        let seal = is_sealed.then(|| Seal::new(&directions).unwrap());
        let stream = mio::net::TcpStream::from_std(stream);
        let peer = Some(Peer::new(stream, format!("host {}", 1 - rank.index()), seal));
        let peers = if rank.is_first() { vec![None, peer] } else { vec![peer, None] };
        Tcp::of(rank, Members::world(Links::new(rank.index(), peers, PLENTY).unwrap()))
    }

    /// Runs two ranks with an attacker between them, who acts on one rank's messages after the
    /// handshake.
    fn between<T: Send>(
        (act, is_up): OnTheWay<'_>,
        is_sealed: bool,
        run: impl Fn(Tcp) -> T + Sync,
    ) -> Vec<T> {
        let [zero, way] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [at_zero, at_way] = [&zero, &way].map(|listener| listener.local_addr().unwrap());
        let until = Instant::now() + PLENTY;
        let rank = |index| Rank::new(index, 2).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut up = way.accept().unwrap().0;
                let mut down = TcpStream::connect(at_zero).unwrap();
                // Pass on the handshake unchanged.
                pass(53, &mut down, &mut up);
                pass(147, &mut up, &mut down);
                pass(53, &mut down, &mut up);
                let (mut other_up, mut other_down) =
                    (up.try_clone().unwrap(), down.try_clone().unwrap());
                thread::scope(|scope| {
                    scope.spawn(|| {
                        if is_up {
                            act(&mut up, &mut down)
                        } else {
                            pass_on(&mut up, &mut down)
                        }
                        let _ = down.shutdown(Shutdown::Write);
                    });
                    if is_up {
                        pass_on(&mut other_down, &mut other_up)
                    } else {
                        act(&mut other_down, &mut other_up)
                    }
                    let _ = other_up.shutdown(Shutdown::Write);
                });
            });
            let run = &run;
            let first = scope.spawn(move || {
                let joined = handshake::tests::accept_one(&zero, &KEY, until);
                run(of_pair(rank(0), joined, is_sealed))
            });
            let second = scope.spawn(move || {
                let mut joined = handshake::join(&[at_way], rank(1), &KEY, until).unwrap();
                run(of_pair(rank(1), joined.remove(0), is_sealed))
            });
            [first, second].map(|rank| rank.join().unwrap()).into()
        })
    }

    /// The first number after two sums and a barrier, in which a rank hears of the other one's
    /// failure.
    fn sums(mut tcp: Tcp) -> Result<f32, String> {
        let mut values = vec![0.5; LENGTH];
        let run = |tcp: &mut Tcp, values: &mut [f32]| {
            tcp.all_reduce_sum(values)?;
            tcp.all_reduce_sum(values)?;
            tcp.meet(Call::BARRIER)
        };
        run(&mut tcp, &mut values)
            .map(|()| values[0])
            .map_err(|error: CollectiveError| error.to_string())
    }

    /// Checks that the victim reports the sender's message as altered, and that the sender's error
    /// names the victim.
    fn check_altered(found: &[Result<f32, String>], is_up: bool, what: &str) {
        let (victim, sender) = if is_up { (0, 1) } else { (1, 0) };
        let error = found[victim].as_ref().unwrap_err();
        assert_eq!(*error, format!("rank {sender} on host {sender} is lost: {ALTERED}"), "{what}");
        let error = found[sender].as_ref().unwrap_err();
        assert!(
            error.starts_with(&format!("rank {victim} on host {victim} is lost: ")),
            "{what}: {error}"
        );
    }

    #[test]
    fn one_byte_of_a_gradient_that_was_changed_on_the_way_is_detected_whichever_it_is() {
        // Bytes of the head, its tag, the numbers and their tag, in the first message and in the
        // second.
        let in_one = [
            0,
            1,
            4,
            8,
            23,
            HEAD,
            SEALED_HEAD - 1,
            SEALED_HEAD,
            10_000,
            MESSAGE - 17,
            MESSAGE - 16,
            MESSAGE - 1,
        ];
        for at in in_one.into_iter().chain([MESSAGE, MESSAGE + 9_000]) {
            for is_up in [true, false] {
                let change = |from: &mut TcpStream, to: &mut TcpStream| {
                    pass(at, from, to);
                    let mut byte = [0];
                    from.read_exact(&mut byte).unwrap();
                    let _ = to.write_all(&[byte[0] ^ 4]);
                    pass_on(from, to);
                };
                check_altered(&between((&change, is_up), true, sums), is_up, &format!("byte {at}"));
            }
        }
    }

    #[test]
    fn gradients_that_come_twice_or_in_another_order_or_not_at_all_are_detected() {
        let read = |from: &mut TcpStream| {
            let mut message = vec![0; MESSAGE];
            from.read_exact(&mut message).unwrap();
            message
        };
        let twice = |from: &mut TcpStream, to: &mut TcpStream| {
            let message = pass(MESSAGE, from, to);
            let _ = to.write_all(&message);
            pass_on(from, to);
        };
        let turned = |from: &mut TcpStream, to: &mut TcpStream| {
            let messages = [read(from), read(from)];
            let _ = to.write_all(&[&messages[1][..], &messages[0]].concat());
            pass_on(from, to);
        };
        let left_out = |from: &mut TcpStream, to: &mut TcpStream| {
            read(from);
            pass_on(from, to);
        };
        check_altered(&between((&twice, true), true, sums), true, "twice");
        check_altered(&between((&turned, true), true, sums), true, "turned");
        check_altered(&between((&left_out, true), true, sums), true, "left out");
    }

    #[test]
    fn a_gradient_sent_back_to_its_rank_is_detected() {
        let has_failed = Barrier::new(3);
        let back = |from: &mut TcpStream, _: &mut TcpStream| {
            let mut message = vec![0; MESSAGE];
            from.read_exact(&mut message).unwrap();
            let _ = from.write_all(&message);
            // Otherwise the connection would close, which rank 1 might notice first.
            has_failed.wait();
        };
        let found = between((&back, true), true, |tcp| {
            if tcp.own() == 0 {
                // It sends nothing meanwhile.
                has_failed.wait();
                return Ok(0.0);
            }
            let found = sums(tcp);
            has_failed.wait();
            found
        });
        assert_eq!(found[1].as_ref().unwrap_err(), &format!("rank 0 on host 0 is lost: {ALTERED}"));
    }

    #[test]
    fn a_gradient_that_is_cut_off_is_a_lost_rank() {
        for at in [1, SEALED_HEAD, SEALED_HEAD + 1, MESSAGE - 1] {
            let cut = |from: &mut TcpStream, to: &mut TcpStream| {
                pass(at, from, to);
            };
            let found = between((&cut, true), true, sums);
            let error = found[0].as_ref().unwrap_err();
            assert_eq!(error, "rank 1 on host 1 is lost: its process exited or was killed", "{at}");
            assert!(found[1].is_err());
        }
    }

    /// Returns whether someone between the ranks can read the numbers that rank 1 sends.
    fn shows_numbers(is_sealed: bool) -> bool {
        let heard = std::sync::Mutex::new(Vec::new());
        let listen = |from: &mut TcpStream, to: &mut TcpStream| {
            let length = if is_sealed { MESSAGE } else { HEAD + 4 * LENGTH };
            *heard.lock().unwrap() = pass(length, from, to);
            pass_on(from, to);
        };
        assert!(between((&listen, true), is_sealed, sums).iter().all(Result::is_ok));
        let numbers = 0.5_f32.to_le_bytes().repeat(2);
        heard.into_inner().unwrap().windows(8).any(|window| window == numbers)
    }

    #[test]
    fn gradients_cannot_be_read_on_the_way_with_a_secret() {
        assert!(!shows_numbers(true));
    }

    #[test]
    fn gradients_can_be_read_on_the_way_without_a_secret() {
        assert!(shows_numbers(false));
    }

    #[test]
    fn a_gradient_that_was_changed_on_the_way_is_summed_without_a_secret() {
        let change = |from: &mut TcpStream, to: &mut TcpStream| {
            pass(HEAD + 3, from, to);
            let mut byte = [0];
            from.read_exact(&mut byte).unwrap();
            // The sign of the first number.
            let _ = to.write_all(&[byte[0] ^ 0x80]);
            pass_on(from, to);
        };
        let found = between((&change, true), false, sums);
        // Without the change, the sum is 2.
        assert!(*found[0].as_ref().unwrap() < 1.5);
    }

    #[test]
    fn long_messages_are_sealed_piece_by_piece_and_opened() {
        for length in [16_383, 16_384, 16_385, 1 << 20] {
            let found = between((&pass_on, true), true, |mut tcp| {
                let all = tcp.all_gather(&vec![tcp.own() as u8; length]).unwrap();
                let mut values = vec![0.5; length];
                tcp.all_reduce_sum(&mut values).unwrap();
                (all, values)
            });
            for (all, values) in found {
                assert!(values.iter().all(|&value| value == 1.0), "{length}");
                assert_eq!(all, [vec![0; length], vec![1; length]]);
            }
        }
    }
}
