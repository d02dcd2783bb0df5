//! Frames as bytes, true ones and noise.

use proptest::prelude::*;

use super::*;

fn hello(blob: &[u8]) -> Hello {
    Hello { version: Version::OWN, rank: 3, size: 8, wants_table: true, told: None, blob: blob.to_vec() }
}

#[test]
fn a_hello_survives_any_split() {
    let sent = hello(b"some bytes");
    let wire = sent.encode(b"secret");
    for cut in 0..wire.len() {
        let mut reader = HelloReader::default();
        assert_eq!(reader.feed(&wire[..cut], b"secret"), Ok(None));
        assert_eq!(reader.feed(&wire[cut..], b"secret"), Ok(Some(sent.clone())));
    }
}

#[test]
fn a_hello_at_another_port_tells_the_ranks_own() {
    let sent = Hello { told: Port::new(6105), wants_table: false, ..hello(b"") };
    let mut wire = sent.encode(b"secret");
    assert_eq!(HelloReader::default().feed(&wire, b"secret"), Ok(Some(sent)));
    let end = wire.len();
    wire[end - 2..].fill(0);
    assert_eq!(HelloReader::default().feed(&wire, b"secret"), Err(Reject::NotMpienv));
}

#[test]
fn another_token_is_another_job() {
    let wire = hello(b"").encode(b"secret");
    for token in [&b"Secret"[..], b"", b"secre", b"secret2"] {
        assert_eq!(HelloReader::default().feed(&wire, token), Err(Reject::OtherJob));
    }
}

#[test]
fn a_claim_of_four_gigabytes_is_dropped_before_any_allocation() {
    let mut wire = hello(b"").encode(b"secret");
    wire[26..30].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut reader = HelloReader::default();
    assert_eq!(reader.feed(&wire, b"secret"), Err(Reject::NotMpienv));
    assert!(reader.held() <= 512);
}

#[test]
fn another_version_is_named_with_its_rank() {
    for protocol in [PROTOCOL, 9] {
        let version = Version { protocol, release: [4, 5, 6] };
        let wire = Hello { version, ..hello(b"") }.encode(b"secret");
        let reject = HelloReader::default().feed(&wire, b"secret");
        assert_eq!(reject, Err(Reject::OtherVersion { rank: 3, version }));
        assert_eq!(version.to_string(), format!("mpienv 4.5.6 (protocol {protocol})"));
    }
}

#[test]
fn the_first_wrong_byte_is_enough() {
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\x02\x00", b"m\0", b"\0"] {
        assert_eq!(HelloReader::default().feed(garbage, b""), Err(Reject::NotMpienv));
    }
}

#[test]
fn a_reply_head_is_read_back_and_noise_is_not() {
    let wire = reply(ReplyKind::Table, b"1234");
    let (head, payload) = wire.split_first_chunk().unwrap();
    let head = ReplyHead::decode(head).unwrap();
    assert_eq!((head.kind, head.length, payload), (ReplyKind::Table, 4, &b"1234"[..]));
    assert_eq!(ReplyHead::decode(b"HTTP/1.1 400 Bad Requ"), None);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_nor_fill_memory(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..8),
        genuine in 0usize..40,
    ) {
        // Some true bytes first, so that the noise reaches every field.
        let wire = hello(&[7; 64]).encode(b"secret");
        let mut reader = HelloReader::default();
        let mut alive = reader.feed(&wire[..genuine], b"secret").is_ok();
        for piece in &pieces {
            if !alive {
                break;
            }
            alive = reader.feed(piece, b"secret").is_ok();
            prop_assert!(reader.held() <= 1024 + 2 * 8 * 400);
        }
    }

    #[test]
    fn arbitrary_reply_heads_never_panic(bytes in prop::array::uniform21(any::<u8>())) {
        let _ = ReplyHead::decode(&bytes);
    }
}
