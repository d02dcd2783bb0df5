//! Valid frames and noise, as bytes.

use proptest::prelude::*;

use super::*;
use crate::auth::{Exchange, Role, Run};
use crate::value::port::Port;

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
    (HelloReader::new(exchange, Purpose::OF_MEETING), wire)
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
    let mut reader = HelloReader::new(of_master, Purpose::OF_MEETING);
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
