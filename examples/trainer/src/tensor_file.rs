//! Named tensors in a file, in the safetensors format: what checkpoints and first weights are kept in.
//!
//! The same content always gives the same bytes. A digest of it is among the metadata, so that a file which is not
//! what was written is recognised.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::whole_file;

/// The metadata's entry that holds the digest: SHA-256 in hexadecimal, of [`TensorFile::digest`].
pub const DIGEST: &str = "sha256";

/// The header's length is a multiple of it, so that the numbers behind are aligned.
const ALIGNMENT: usize = 8;

/// A name, a shape, and values row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name, which no other of the file has.
    pub name: String,
    /// Its lengths; none for a single number.
    pub shape: Vec<usize>,
    /// As many values as the shape says, the last index fastest.
    pub values: Vec<f32>,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorFile {
    /// The tensors, in the order of the file: by name.
    pub tensors: Vec<Tensor>,
    /// Texts by name; those of a file that was written here have [`DIGEST`] among them.
    pub metadata: BTreeMap<String, String>,
}

/// Why bytes are not a file of tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

/// Why a file gives no tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFileError {
    /// The system does not give the file.
    #[error("{}: cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The file is truncated, changed, or of another kind.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: Invalid,
    },
}

impl TensorFile {
    /// The tensor of that name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The file's bytes, with the digest among the metadata.
    ///
    /// # Errors
    /// When a shape is not that of its values, or a name is there twice.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Invalid> {
        let mut metadata = self.metadata.clone();
        metadata.insert(DIGEST.to_owned(), self.digest());
        let mut tensors: Vec<&Tensor> = self.tensors.iter().collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Invalid(format!("two tensors have the name {}", pair[0].name)));
        }
        let mut start = 0;
        let mut infos = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            let end = start + size_of_val(tensor.values.as_slice());
            infos.push((
                &*tensor.name,
                TensorInfo { dtype: Dtype::F32, shape: tensor.shape.clone(), data_offsets: (start, end) },
            ));
            start = end;
        }
        // The library's own check of shapes against values.
        let owned = infos.iter().map(|(name, info)| ((*name).to_owned(), info.clone())).collect();
        Metadata::new(None, owned).map_err(|error| Invalid(error.to_string()))?;
        let mut header = serde_json::to_vec(&Header { metadata, infos }).map_err(|error| Invalid(error.to_string()))?;
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        for tensor in tensors {
            bytes.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Ok(bytes)
    }

    /// What [`TensorFile::to_bytes`] made, or any other safetensors writer with nothing but f32.
    ///
    /// # Errors
    /// When the bytes are truncated or of another kind, the digest is that of other content, or a tensor is not of
    /// f32. Without a digest the content is taken as it is.
    pub fn from_bytes(bytes: &[u8]) -> Result<TensorFile, Invalid> {
        let invalid = |error: &dyn std::fmt::Display| {
            Invalid(format!("is truncated, changed or no safetensors file, of {} bytes: {error}", bytes.len()))
        };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| invalid(&error))?;
        let views = SafeTensors::deserialize(bytes).map_err(|error| invalid(&error))?;
        let mut tensors = Vec::new();
        for (name, view) in views.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(Invalid(format!("tensor {name} is of {}; only F32 is read", view.dtype())));
            }
            let values = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            tensors.push(Tensor { name, shape: view.shape().to_vec(), values });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let metadata = header.metadata().iter().flatten().map(|(name, text)| (name.clone(), text.clone()));
        let file = TensorFile { tensors, metadata: metadata.collect() };
        match file.metadata.get(DIGEST) {
            Some(digest) if *digest != file.digest() => Err(Invalid(format!(
                "its content has changed since it was written: its SHA-256 is {}, and was {digest}",
                file.digest()
            ))),
            _ => Ok(file),
        }
    }

    /// Writes the file so that it is there whole or not at all, and on disk.
    ///
    /// # Errors
    /// As the system says; or as [`TensorFile::to_bytes`].
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let bytes = self.to_bytes().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        whole_file::write(path, &bytes)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When the system does not give it, or as [`TensorFile::from_bytes`].
    pub fn read(path: &Path) -> Result<TensorFile, TensorFileError> {
        let bytes = fs::read(path).map_err(|error| TensorFileError::Unreadable { path: path.to_owned(), error })?;
        TensorFile::from_bytes(&bytes).map_err(|reason| TensorFileError::Invalid { path: path.to_owned(), reason })
    }

    /// The SHA-256 of names, shapes, values and all metadata but itself, whatever the layout of the file.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut sha = Sha256::new();
        // Lengths first, so that no two contents run together.
        let mut part = |bytes: &[u8]| {
            sha.update((bytes.len() as u64).to_le_bytes());
            sha.update(bytes);
        };
        for (name, text) in self.metadata.iter().filter(|(name, _)| *name != DIGEST) {
            part(name.as_bytes());
            part(text.as_bytes());
        }
        let mut tensors: Vec<&Tensor> = self.tensors.iter().collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        for Tensor { name, shape, values } in tensors {
            part(name.as_bytes());
            part(&shape.iter().flat_map(|&length| (length as u64).to_le_bytes()).collect::<Vec<_>>());
            part(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
        }
        sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The header with its metadata in the order of their names; the library's is in the order of chance.
struct Header<'a> {
    metadata: BTreeMap<String, String>,
    infos: Vec<(&'a str, TensorInfo)>,
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.infos.len() + 1))?;
        map.serialize_entry("__metadata__", &self.metadata)?;
        for (name, info) in &self.infos {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file() -> TensorFile {
        let tensor = |name: &str, shape: &[usize], values: &[f32]| Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        TensorFile {
            tensors: vec![tensor("a", &[2, 2], &[1.0, -0.0, f32::MAX, f32::MIN_POSITIVE]), tensor("b", &[0, 3], &[])],
            metadata: [("seed", "1"), ("who \"quotes\"", "ä\n")].map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
        }
    }

    #[test]
    fn what_was_written_is_read_again_with_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        file().write(&path).unwrap();
        let mut read = TensorFile::read(&path).unwrap();
        assert_eq!(read.metadata.remove(DIGEST), Some(file().digest()));
        assert_eq!(read, file());
        assert_eq!(fs::read(&path).unwrap(), read.to_bytes().unwrap());
    }

    #[test]
    fn a_file_cut_anywhere_is_no_file() {
        let bytes = file().to_bytes().unwrap();
        for length in 0..bytes.len() {
            let error = TensorFile::from_bytes(&bytes[..length]).unwrap_err().to_string();
            assert!(error.starts_with("is truncated, changed or no safetensors file, of "), "{length}: {error}");
        }
    }

    #[test]
    fn a_file_with_one_bit_changed_is_refused_or_has_no_digest() {
        let bytes = file().to_bytes().unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = TensorFile::from_bytes(&changed) {
                // The padding may differ, and the name of the digest's entry, which users of it ask for.
                let same = read.tensors == file().tensors && read.metadata.get(DIGEST) == Some(&file().digest());
                assert!(same || !read.metadata.contains_key(DIGEST), "bit {bit}: {read:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), header in "[{}\":,a-z0-9\\[\\]_]{0,60}") {
            let _ = TensorFile::from_bytes(&bytes);
            let mut framed = (header.len() as u64).to_le_bytes().to_vec();
            framed.extend(header.into_bytes());
            framed.extend(bytes);
            let _ = TensorFile::from_bytes(&framed);
        }
    }

    #[test]
    fn other_numbers_than_f32_are_named() {
        let header = br#"{"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
        let error = TensorFile::from_bytes(&bytes).unwrap_err().to_string();
        assert_eq!(error, "tensor w is of F16; only F32 is read");
    }

    #[test]
    fn the_file_of_another_writer_needs_no_digest() {
        let header = br#" {"w": {"shape": [1], "data_offsets": [0, 4], "dtype": "F32"}} "#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &1.5f32.to_le_bytes()].concat();
        let file = TensorFile::from_bytes(&bytes).unwrap();
        assert_eq!(file.tensor("w").unwrap().values, [1.5]);
        assert!(file.metadata.is_empty());
    }

    #[test]
    fn tensors_that_no_file_can_hold_are_refused() {
        let mut wrong = file();
        wrong.tensors[0].shape = vec![3, 2];
        assert!(wrong.to_bytes().is_err());
        let mut twice = file();
        twice.tensors[1].name = "a".to_owned();
        assert_eq!(twice.to_bytes().unwrap_err().to_string(), "two tensors have the name a");
    }
}
