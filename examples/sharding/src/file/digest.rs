//! SHA-256 digests in hexadecimal.

use ring::digest::{Context, SHA256, digest};

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of a file's bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// A digest of several parts. Each part is preceded by its length, so that different lists cannot
/// collide.
pub struct PartsDigest(Context);

impl Default for PartsDigest {
    fn default() -> Self {
        PartsDigest(Context::new(&SHA256))
    }
}

impl PartsDigest {
    pub fn add(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    pub fn finish(self) -> String {
        hex(self.0.finish().as_ref())
    }
}
