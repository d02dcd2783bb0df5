//! What a rank says first, byte by byte, for tests and benches that play ranks of their own.

/// The protocol, and the crate's version, that this program speaks.
pub fn own_version() -> [u16; 4] {
    let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    let [major, minor, patch] = parts.map(|part| part.parse().unwrap());
    [1, major, minor, patch]
}

/// A hello without its blob, of a rank that wants the table or only the verdict.
pub fn hello(version: [u16; 4], rank: u32, size: u32, wants_table: bool, token: &[u8], blob_length: u32) -> Vec<u8> {
    let mut out = b"mpienv\r\n".to_vec();
    out.extend(version.iter().flat_map(|part| part.to_be_bytes()));
    out.extend(rank.to_be_bytes());
    out.extend(size.to_be_bytes());
    out.extend([u8::from(wants_table), u8::try_from(token.len()).unwrap()]);
    out.extend(blob_length.to_be_bytes());
    out.extend(token);
    out
}
