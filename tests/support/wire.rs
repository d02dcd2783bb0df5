//! What a rank says, byte by byte, for tests and benches that play ranks of their own.

use std::io::{Read, Write};

/// The protocol, and the crate's version, that this program speaks.
pub fn own_version() -> [u16; 4] {
    let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    let [major, minor, patch] = parts.map(|part| part.parse().unwrap());
    [3, major, minor, patch]
}

/// The first bytes of every frame.
fn head(version: [u16; 4]) -> Vec<u8> {
    let mut out = b"mpienv\r\n".to_vec();
    out.extend(version.iter().flat_map(|part| part.to_be_bytes()));
    out
}

/// A hello without its blob, of a rank that wants the table or only the verdict.
pub fn hello(version: [u16; 4], rank: u32, size: u32, wants_table: bool, token: &[u8], blob_length: u32) -> Vec<u8> {
    let mut out = head(version);
    out.extend(rank.to_be_bytes());
    out.extend(size.to_be_bytes());
    out.extend([u8::from(wants_table), u8::try_from(token.len()).unwrap()]);
    out.extend(blob_length.to_be_bytes());
    out.extend(token);
    out
}

/// What rank 0 says, of a kind that has this number; the length need not be true.
pub fn reply(kind: u8, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = head(own_version());
    out.push(kind);
    out.extend(length.to_be_bytes());
    out.extend(payload);
    out
}

/// What rank 0 says to every connection.
pub fn greeting() -> Vec<u8> {
    reply(9, 0, &[])
}

/// Hears the greeting, the welcome with its four bytes, and the question whether the rank is still there; says that it is.
pub fn answer_roll_call(line: &mut (impl Read + Write)) {
    line.read_exact(&mut [0; 21 + 21 + 4 + 21]).unwrap();
    line.write_all(&[1]).unwrap();
}
