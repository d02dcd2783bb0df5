//! Whatever another rank sends between ranks, valid or not: a sum or an error.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use super::{MAGIC, new_port};
use crate::support::clock::SLACK;
use crate::support::mutation::fuzz;
use crate::support::wire;
use mpienv::collective::{Backend, Group};
use mpienv::{ClusterInfo, Port};
use proptest::prelude::*;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// The key and counter that encrypt one direction of a connection between ranks.
struct Sealer {
    key: LessSafeKey,
    number: u64,
}

impl Sealer {
    fn new(direction: &wire::Direction) -> Sealer {
        let key =
            UnboundKey::new(&AES_256_GCM, &wire::hmac(&direction.key, &[b"mpienv seal"])).unwrap();
        Sealer { key: LessSafeKey::new(key), number: 0 }
    }

    fn seal(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        self.number += 1;
        let mut sealed = piece.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::empty(),
                &mut sealed,
            )
            .unwrap();
        sealed
    }
}

/// Meets rank 0 as rank 1 and opens the connection between them; returns the keys of the
/// connection.
fn become_rank_1(port: Port) -> (TcpStream, wire::Session) {
    let mut meeting = loop {
        match TcpStream::connect(("127.0.0.1", port.get())) {
            Ok(stream) => break stream,
            Err(_) => thread::yield_now(),
        }
    };
    // The highest rank listens nowhere. Its token is a secret, and it does not share memory.
    let blob = [4, 0, 1, 1, 0, b'h'];
    let mut session = wire::played(1, 2, true, b"job 1", 6).join(&mut meeting, &blob);
    let mut bytes = [0; wire::WELCOME + wire::READY];
    meeting.read_exact(&mut bytes).unwrap();
    let number = &bytes[wire::HEAD + 4..wire::HEAD + 4 + wire::NUMBER];
    let number = session.of_master.open_number(number).unwrap();
    meeting.write_all(&session.here()).unwrap();
    let mut table = vec![0; wire::HEAD];
    meeting.read_exact(&mut table).unwrap();
    let length = u32::from_be_bytes(table[17..21].try_into().unwrap()) as usize;
    let mut table = vec![0; length + 32];
    meeting.read_exact(&mut table).unwrap();
    // Rank 0 waits for the connection to close.
    drop(meeting);
    // Rank 0 is on its own host, and its blob begins with the port on which it listens.
    let listens = u16::from_be_bytes([table[10], table[11]]);
    let mut key = wire::hmac(&wire::job_key(b"job 1"), &[b"mpienv meeting", &number]);
    for purpose in ["collective", "connections to rank 0"] {
        key = wire::hmac(&key, &[b"mpienv purpose", purpose.as_bytes()]);
    }
    let mut stream = TcpStream::connect(("127.0.0.1", listens)).unwrap();
    let greeting = wire::hear_greeting(&mut stream);
    let mut claim = wire::played(1, 2, false, b"", 0).claim();
    claim[24] = 3;
    let mut session = wire::Session::of_key(&key, &greeting, &claim);
    let (proof, tag) = (session.of_rank.tag(b""), session.of_rank.tag(b""));
    stream.write_all(&[&claim[..], &proof, &tag].concat()).unwrap();
    let mut welcome = [0; wire::READY];
    stream.read_exact(&mut welcome).unwrap();
    assert_eq!(welcome[wire::HEAD..], session.of_master.tag(&welcome[..wire::HEAD]));
    (stream, session)
}

/// Length of the header of a frame between ranks.
const FRAME: usize = 24;

/// A frame between ranks: kind, operation and element, number, announced length in bytes, and how
/// many numbers.
fn frame(
    kind: u8,
    call: [u8; 2],
    number: u32,
    announced: usize,
    count: u64,
    bytes: &[u8],
) -> Vec<u8> {
    let head = [
        &[kind, call[0], call[1], 0][..],
        &number.to_le_bytes(),
        &(announced as u64).to_le_bytes(),
    ]
    .concat();
    [&head[..], &count.to_le_bytes(), bytes].concat()
}

#[test]
fn any_message_of_a_rank_gives_a_sum_or_an_error_in_time() {
    // A sum of f32.
    let sum = [5, 1];
    let four = [0, 0, 128, 63].repeat(4);
    let seeds = [
        frame(1, sum, 1, 16, 4, &four),
        frame(1, sum, 1, 1 << 40, 4, &four),
        frame(2, [0, 0], 0, 0, 0, b""),
        frame(3, [0, 0], 1, 9, 0, b"\x1b[2J gone"),
        frame(4, [0, 0], 0, 0, 0, b""),
    ];
    let seeds = seeds.iter().flat_map(|seed| [0, 1].map(|mark| [&[mark], &seed[..]].concat()));
    let seeds: Vec<Vec<u8>> = seeds.collect();
    let words: &[&[u8]] =
        &[b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\0\0\0\0", b"\x01\x05\x01", b"\x1b[2J", MAGIC];
    fuzz("messages", &seeds, words, |bytes| {
        let port = new_port();
        let zero = thread::spawn(move || {
            let port = port.to_string();
            let vars = [
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MPIENV_TOKEN", "job 1"),
            ];
            let local = [("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_PORT", &port)];
            let info = ClusterInfo::from_vars(vars.into_iter().chain(local)).unwrap();
            let builder = Group::builder(&info).backend(Backend::Tcp).timeout(SLACK);
            let mut group = builder.connect().map_err(|error| error.to_string())?;
            let mut values = [1.0_f32; 4];
            group.all_reduce_sum(&mut values).map_err(|error| error.to_string())?;
            Ok::<_, String>(values)
        });
        let (mut stream, session) = become_rank_1(port);
        let mut sealer = Sealer::new(&session.of_rank);
        let (mark, said) = bytes.split_first().unwrap_or((&0, &[]));
        let is_sealed = mark & 1 == 1;
        let said = match said.split_at_checked(FRAME) {
            Some((head, rest)) if is_sealed && !rest.is_empty() => {
                [sealer.seal(head), sealer.seal(rest)].concat()
            }
            Some((head, _)) if is_sealed => sealer.seal(head),
            _ => said.to_vec(),
        };
        // Rank 0 may have closed already.
        let _ = stream.write_all(&said);
        drop(stream);
        match zero.join().map_err(|_| TestCaseError::fail("rank 0 panicked"))? {
            // Only the right frame is accepted, and its numbers can have any value.
            Ok(_) => prop_assert!(is_sealed),
            Err(error) => prop_assert!(!error.contains(char::is_control), "{error}"),
        }
        Ok(())
    });
}
