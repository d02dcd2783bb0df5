//! Valid frames and noise, as bytes.

use proptest::prelude::*;

use super::*;
use crate::rendezvous::auth::{Role, Run};
use crate::value::port::Port;

const RUN: Run = Run { job: [3; 16], attempt: 2 };
const NONCE: Bytes32 = [5; LENGTH];

fn secret() -> Secret {
    Secret::new(b"secret", Role::Ranks, RUN)
}

fn hello(blob: &[u8]) -> Hello {
    let port = Port::SEVERAL_NODES;
    let (version, run, blob) = (Version::OWN, RUN, blob.to_vec());
    Hello { version, rank: 3, size: 8, purpose: Purpose::Table, port, run, blob }
}

fn wire(hello: &Hello) -> Vec<u8> {
    hello.encode(&secret().key, &greeting(&NONCE, &[]), &[6; LENGTH]).0
}

fn reader(nonce: Bytes32) -> HelloReader {
    HelloReader::new(nonce, Purpose::OF_MEETING)
}

fn heard(wire: &[u8]) -> Result<Option<Hello>, Reject> {
    reader(NONCE).feed(wire, &secret())
}

#[test]
fn a_hello_survives_any_split() {
    let sent = hello(b"some bytes");
    let wire = wire(&sent);
    for cut in 0..wire.len() {
        let mut reader = reader(NONCE);
        assert_eq!(reader.feed(&wire[..cut], &secret()), Ok(None));
        assert_eq!(reader.feed(&wire[cut..], &secret()), Ok(Some(sent.clone())));
        assert!(reader.take_directions().is_some());
    }
}

#[test]
fn every_byte_of_a_hello_is_bound() {
    let wire = wire(&hello(b"blob"));
    for at in 0..wire.len() {
        for bit in [1, 0x80] {
            let mut changed = wire.clone();
            changed[at] ^= bit;
            let heard = heard(&changed);
            assert!(heard.is_err(), "byte {at}: {heard:?}");
            let is_proven = at >= 115;
            assert_eq!(heard == Err(Reject::Altered), is_proven, "byte {at}: {heard:?}");
        }
    }
}

#[test]
fn another_job_and_another_attempt_with_the_same_token_are_named() {
    for run in [Run { attempt: 1, ..RUN }, Run { job: [4; 16], ..RUN }] {
        let key = Secret::new(b"secret", Role::Ranks, run).key;
        let (wire, _) =
            Hello { run, ..hello(b"") }.encode(&key, &greeting(&NONCE, &[]), &[6; LENGTH]);
        assert_eq!(heard(&wire), Err(Reject::OtherRun { rank: 3, run }));
        // A sender that only claims the run does not have its key.
        let (wire, _) =
            Hello { run, ..hello(b"") }.encode(&secret().key, &greeting(&NONCE, &[]), &[6; LENGTH]);
        assert_eq!(heard(&wire), Err(Reject::OtherJob));
    }
}

#[test]
fn a_claim_of_four_gigabytes_is_dropped_before_any_allocation() {
    let (claim, blob_length) = (wire(&hello(b""))[..83].to_vec(), u32::MAX.to_be_bytes());
    let claim = [&claim[..25], &blob_length, &claim[29..]].concat();
    let mut both = secret().key.directions(&greeting(&NONCE, &[]), &claim);
    let wire = [claim, both.incoming.tag(&digest(&[])).to_vec()].concat();
    let mut reader = reader(NONCE);
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
        let wire = wire(&hello(&[7; 64]));
        let mut reader = reader(NONCE);
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
