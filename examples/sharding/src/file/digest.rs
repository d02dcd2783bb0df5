//! SHA-256 digests in hexadecimal, and checkpoints whose digest detects damage.

use crate::file::tensor_file::{NamedTensor, TensorFile};
use ring::digest::{Context, SHA256, digest};
use serde_json::{Map, Value};

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

/// Metadata values by name.
pub type Entries = Map<String, Value>;

/// The entry that holds the digest: SHA-256, in hexadecimal, of all other entries and the tensors.
const DIGEST: &str = "sha256";

/// Builds a file of `tensors`, with the entries and their digest as JSON in its metadata.
pub fn seal(mut entries: Entries, tensors: Vec<NamedTensor>) -> TensorFile {
    entries.sort_keys();
    entries.insert(DIGEST.to_owned(), of_checkpoint(&entries, &tensors).into());
    entries.sort_keys();
    TensorFile { about: Value::Object(entries).to_string(), tensors }
}

/// Verifies the digest and returns the other entries.
///
/// # Errors
/// If the file has changed since [`seal`], or another program wrote it.
pub fn open(file: &TensorFile) -> Result<Entries, String> {
    verify(metadata(file)?, file)
}

/// Parses all entries.
pub fn metadata(file: &TensorFile) -> Result<Entries, String> {
    serde_json::from_str(&file.about)
        .map_err(|error| format!("its metadata cannot be read: {error}"))
}

/// Verifies the digest of a file with these entries, and returns the others.
pub fn verify(mut entries: Entries, file: &TensorFile) -> Result<Entries, String> {
    entries.sort_keys();
    let now = of_checkpoint(&entries, &file.tensors);
    match entries.remove(DIGEST) {
        Some(then) if then == now => Ok(entries),
        Some(then) => Err(format!(
            "it has changed since it was written: its SHA-256 is {now}, and was {}",
            text(&then)
        )),
        None => Err("it has no SHA-256 that shows whether it is complete".to_owned()),
    }
}

/// The text of an entry: that of a string, or JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn of_checkpoint(entries: &Entries, tensors: &[NamedTensor]) -> String {
    let mut sha = PartsDigest::default();
    for (name, value) in entries.iter().filter(|(name, _)| *name != DIGEST) {
        sha.add(name);
        sha.add(text(value));
    }
    let mut tensors: Vec<&NamedTensor> = tensors.iter().collect();
    // Hash the tensors in the order in which files are read.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    for NamedTensor { name, numbers, shape, bytes } in tensors {
        sha.add(name);
        sha.add((numbers.bitsize() as u64 / 8).to_le_bytes());
        sha.add(shape.iter().flat_map(|&length| (length as u64).to_le_bytes()).collect::<Vec<_>>());
        sha.add(bytes);
    }
    sha.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tensor_file::Dtype;
    use std::fs;

    #[test]
    fn a_file_with_any_bit_changed_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let tensor = |name: &str, bytes: &[u8]| NamedTensor {
            name: name.to_owned(),
            numbers: Dtype::F32,
            shape: vec![bytes.len() / 4],
            bytes: bytes.to_vec(),
        };
        let mut entries: Entries = [("epoch", "1"), ("who \"quotes\"", "ä\n")]
            .map(|(a, b)| (a.to_owned(), b.into()))
            .into_iter()
            .collect();
        entries.insert("places".to_owned(), serde_json::json!([{"shape": [4, 2]}, 7]));
        let file = seal(
            entries.clone(),
            vec![tensor("weight", &[1, 2, 3, 4, 5, 6, 7, 8]), tensor("bias", &[])],
        );
        file.write(&path).unwrap();
        assert_eq!(open(&TensorFile::read(&path).unwrap()).unwrap(), entries);

        let bytes = fs::read(&path).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &changed).unwrap();
            let Ok(read) = TensorFile::read(&path) else { continue };
            if let Ok(opened) = open(&read) {
                // The change affected only padding or JSON formatting.
                assert_eq!((opened, read.tensors.len()), (entries.clone(), 2), "bit {bit}");
            }
        }
    }
    #[test]
    fn the_digest_of_a_run_with_texts_alone_is_that_of_earlier_versions() {
        let entries: Entries = [("epoch", "1"), ("ranks", "2")]
            .map(|(a, b)| (a.to_owned(), b.into()))
            .into_iter()
            .collect();
        let tensor = NamedTensor {
            name: "w".to_owned(),
            numbers: Dtype::F32,
            shape: vec![1],
            bytes: vec![1, 2, 3, 4],
        };
        let about = seal(entries, vec![tensor]).about;
        let sha = "35bc8364ff94aed8068eea10ccf9b4444ad2ef176a72d7a57ed63376e077f252";
        assert_eq!(about, format!("{{\"epoch\":\"1\",\"ranks\":\"2\",\"sha256\":\"{sha}\"}}"));
    }
}
