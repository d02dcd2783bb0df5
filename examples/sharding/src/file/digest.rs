//! SHA-256 digests in hexadecimal.

use sha2::{Digest as _, Sha256};

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of a file's bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A digest of several parts. Each part is preceded by its length, so that different lists cannot
/// collide.
#[derive(Default)]
pub struct PartsDigest(Sha256);

impl PartsDigest {
    pub fn add(&mut self, part: impl AsRef<[u8]>) {
        self.0.update((part.as_ref().len() as u64).to_le_bytes());
        self.0.update(part);
    }

    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}
