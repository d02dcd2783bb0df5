//! The metadata of a checkpoint, and the digest that detects damage.

use std::collections::BTreeMap;

use crate::digest::PartsDigest;
use crate::tensor_file::{NamedTensor, TensorFile};

/// Metadata values by name.
pub(super) type Entries = BTreeMap<String, String>;

/// The entry that holds the digest: SHA-256, in hexadecimal, of all other entries and the tensors.
const DIGEST: &str = "sha256";

/// Builds a file of `tensors`, with the entries and the digest as JSON in its metadata.
pub(super) fn add(mut entries: Entries, tensors: Vec<NamedTensor>) -> TensorFile {
    entries.insert(DIGEST.to_owned(), digest(&entries, &tensors));
    TensorFile { about: serde_json::json!(entries).to_string(), tensors }
}

/// Verifies the digest and returns the entries, or describes what is wrong.
pub(super) fn verify(file: &TensorFile) -> Result<Entries, String> {
    let entries: Entries =
        serde_json::from_str(&file.about).map_err(|error| format!("its metadata cannot be read: {error}"))?;
    let now = digest(&entries, &file.tensors);
    match entries.get(DIGEST) {
        Some(then) if *then == now => Ok(entries),
        Some(then) => Err(format!("it has changed since it was written: its SHA-256 is {now}, and was {then}")),
        None => Err("it has no SHA-256 that shows whether it is complete".to_owned()),
    }
}

fn digest(entries: &Entries, tensors: &[NamedTensor]) -> String {
    let mut sha = PartsDigest::default();
    for (name, text) in entries.iter().filter(|(name, _)| *name != DIGEST) {
        sha.add(name);
        sha.add(text);
    }
    let mut tensors: Vec<&NamedTensor> = tensors.iter().collect();
    // Hash the tensors in the order in which files are read.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    for NamedTensor { name, numbers, shape, bytes } in tensors {
        sha.add(name);
        sha.add((numbers.size() as u64).to_le_bytes());
        sha.add(shape.iter().flat_map(|&length| (length as u64).to_le_bytes()).collect::<Vec<_>>());
        sha.add(bytes);
    }
    sha.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_file::Type;
    use std::fs;

    #[test]
    fn a_file_with_any_bit_changed_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let tensor = |name: &str, bytes: &[u8]| NamedTensor {
            name: name.to_owned(),
            numbers: Type::F32,
            shape: vec![bytes.len() / 4],
            bytes: bytes.to_vec(),
        };
        let entries: Entries = [("epoch", "1"), ("who \"quotes\"", "ä\n")].map(|(a, b)| (a.into(), b.into())).into();
        let file = add(entries.clone(), vec![tensor("weight", &[1, 2, 3, 4, 5, 6, 7, 8]), tensor("bias", &[])]);
        file.write(&path).unwrap();
        let mut found = verify(&TensorFile::read(&path).unwrap()).unwrap();
        assert!(found.remove(DIGEST).is_some());
        assert_eq!(found, entries);

        let bytes = fs::read(&path).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &changed).unwrap();
            let Ok(read) = TensorFile::read(&path) else { continue };
            if let Ok(mut opened) = verify(&read) {
                // The change affected only padding or JSON formatting.
                opened.remove(DIGEST);
                assert_eq!((opened, read.tensors.len()), (entries.clone(), 2), "bit {bit}");
            }
        }
    }
}
