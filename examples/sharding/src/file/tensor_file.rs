//! Reads and writes files of named tensors in the safetensors format.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, SafeTensorError, TensorView};

use crate::file::{atomic_write, digest, regular_file};

/// The only entry in a file's metadata. Several entries would be written in a random order.
const ABOUT: &str = "mpienv-trainer";

/// The maximum size of a file to read, in bytes.
pub const LARGEST: u64 = 1 << 30;

/// The type of a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    F32,
    F64,
}

impl Type {
    /// The size of a number in bytes.
    pub fn size(self) -> usize {
        match self {
            Type::F32 => 4,
            Type::F64 => 8,
        }
    }

    fn in_files(self) -> Dtype {
        match self {
            Type::F32 => Dtype::F32,
            Type::F64 => Dtype::F64,
        }
    }
}

/// A tensor with a name that is unique in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    pub name: String,
    pub numbers: Type,
    /// Row by row: the last dimension varies fastest.
    pub shape: Vec<usize>,
    /// Little-endian.
    pub bytes: Vec<u8>,
}

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorFile {
    /// These programs' metadata. Empty if another program wrote the file.
    pub about: String,
    /// The tensors, ordered by name if they were read from a file.
    pub tensors: Vec<NamedTensor>,
}

impl TensorFile {
    /// Writes the file atomically. The same content always produces the same bytes.
    pub fn write(&self, path: &Path) -> Result<(), TensorFileError> {
        let wrong = |error| TensorFileError::Wrong { path: path.to_owned(), error };
        let mut views = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let view =
                TensorView::new(tensor.numbers.in_files(), tensor.shape.clone(), &tensor.bytes);
            views.push((tensor.name.as_str(), view.map_err(wrong)?));
        }
        let about = HashMap::from([(ABOUT.to_owned(), self.about.clone())]);
        let bytes = safetensors::serialize(views, Some(about)).map_err(wrong)?;
        atomic_write::write(path, &bytes).map_err(TensorFileError::Unwritable)
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<TensorFile, TensorFileError> {
        Ok(TensorFile::read_with_digest(path)?.0)
    }

    /// Reads a file like [`TensorFile::read`], and also returns its SHA-256.
    pub fn read_with_digest(path: &Path) -> Result<(TensorFile, String), TensorFileError> {
        let unreadable = |error| TensorFileError::Unreadable { path: path.to_owned(), error };
        let file = regular_file::open(path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        if size > LARGEST {
            return Err(TensorFileError::TooLarge { path: path.to_owned() });
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        let digest = digest::of_bytes(&bytes);
        Ok((TensorFile::from_bytes(path, &bytes)?, digest))
    }

    /// Parses the bytes of a file. Errors name `path`.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<TensorFile, TensorFileError> {
        if bytes.len() as u64 > LARGEST {
            return Err(TensorFileError::TooLarge { path: path.to_owned() });
        }
        let wrong = |error| TensorFileError::Wrong { path: path.to_owned(), error };
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(wrong)?;
        let about = metadata.metadata().as_ref().and_then(|entries| entries.get(ABOUT)).cloned();
        let mut tensors = Vec::new();
        for (name, view) in SafeTensors::deserialize(bytes).map_err(wrong)?.tensors() {
            let numbers = match view.dtype() {
                Dtype::F32 => Type::F32,
                Dtype::F64 => Type::F64,
                found => {
                    let found = found.to_string();
                    return Err(TensorFileError::Numbers { path: path.to_owned(), name, found });
                }
            };
            tensors.push(NamedTensor {
                name,
                numbers,
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(TensorFile { about: about.unwrap_or_default(), tensors })
    }

    pub fn get(&self, name: &str) -> Option<&NamedTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// Why a file of tensors cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    #[error("{}: cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{}: has more than {LARGEST} bytes, the most that a file of tensors may have", path.display())]
    TooLarge { path: PathBuf },
    #[error("{0}")]
    Unwritable(io::Error),
    #[error("{}: is not a complete safetensors file: {error}", path.display())]
    Wrong { path: PathBuf, error: SafeTensorError },
    #[error("{}: tensor {name} has numbers of type {found}, F32 or F64 is expected", path.display())]
    Numbers { path: PathBuf, name: String, found: String },
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    fn example() -> TensorFile {
        let tensor = |name: &str, shape: &[usize]| {
            let count: usize = shape.iter().product();
            let bytes = (0..count).flat_map(|number| (number as f32).to_le_bytes()).collect();
            NamedTensor { name: name.to_owned(), numbers: Type::F32, shape: shape.to_vec(), bytes }
        };
        let double = NamedTensor { numbers: Type::F64, bytes: vec![1; 8], ..tensor("c", &[1]) };
        TensorFile {
            about: "{\"steps\":3}".to_owned(),
            tensors: vec![tensor("a", &[2, 3]), tensor("b", &[]), double],
        }
    }

    #[test]
    fn what_is_written_is_read_and_always_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        example().write(&one).unwrap();
        example().write(&two).unwrap();
        assert_eq!(TensorFile::read(&one).unwrap(), example());
        assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        example().write(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            let error = TensorFile::read(&path).unwrap_err().to_string();
            let expected = format!("{}: is not a complete safetensors file: ", path.display());
            assert!(error.starts_with(&expected), "{length}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(47 << 30).unwrap();
        let error = TensorFile::read(&path).unwrap_err().to_string();
        let text = "has more than 1073741824 bytes, the most that a file of tensors may have";
        assert_eq!(error, format!("{}: {text}", path.display()));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = TensorFile::read(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/file: cannot be read: No such file"), "{error}");
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = example();
        file.tensors[0].bytes.pop();
        assert!(matches!(file.write(&path), Err(TensorFileError::Wrong { .. })));
        assert!(!path.exists());
    }
}
