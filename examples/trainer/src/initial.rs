//! First weights from a file, for exact comparison with other systems.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::data::CLASSES;
use crate::model::linear::WEIGHTS;

/// The linear model's parameters from a file of its weights: f32, lowest byte first, of shape (10, 784); biases 0.
///
/// # Errors
/// When the file cannot be read or has another size.
pub fn read(path: &Path) -> Result<Vec<f32>, InitialError> {
    let unreadable = |error| InitialError::Unreadable { path: path.to_owned(), error };
    let expected = WEIGHTS * size_of::<f32>();
    let mut bytes = Vec::with_capacity(expected + 1);
    // One byte more than expected tells that there are too many, however many there are.
    File::open(path).and_then(|file| file.take(expected as u64 + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() != expected {
        let more = bytes.len() > expected;
        return Err(InitialError::Size { path: path.to_owned(), found: bytes.len(), more, expected });
    }
    let weights = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    Ok(weights.chain([0.0; CLASSES]).collect())
}

/// Why a file is not one of first weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitialError {
    /// The system does not give the file.
    #[error("{}: cannot be read: {error}; --init names a file of first weights", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The file has another size.
    #[error(
        "{}: has {}{} bytes; first weights are {expected}: 10 x 784 little-endian f32", path.display(),
        if *.more { "more than " } else { "" }, if *.more { expected } else { found },
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// The bytes it has, as far as read.
        found: usize,
        /// Whether there are more than expected.
        more: bool,
        /// The bytes it should have.
        expected: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn weights_are_read_and_biases_are_0() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.f32");
        let bytes: Vec<u8> = (0..WEIGHTS).flat_map(|index| (index as f32).to_le_bytes()).collect();
        fs::write(&path, &bytes).unwrap();
        let parameters = read(&path).unwrap();
        assert_eq!(parameters[..3], [0.0, 1.0, 2.0]);
        assert_eq!(parameters[WEIGHTS - 1..], [[7839.0].as_slice(), &[0.0; 10]].concat());
    }

    #[test]
    fn a_file_of_another_size_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.f32");
        for (size, text) in [
            (0, "has 0 bytes; first weights are 31360: 10 x 784 little-endian f32"),
            (31_359, "has 31359 bytes; first weights are 31360: 10 x 784 little-endian f32"),
            (50_000, "has more than 31360 bytes; first weights are 31360: 10 x 784 little-endian f32"),
        ] {
            fs::write(&path, vec![0; size]).unwrap();
            assert_eq!(read(&path).unwrap_err().to_string(), format!("{}: {text}", path.display()));
        }
        let error = read(Path::new("/no/such/w.f32")).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/w.f32: cannot be read: No such file"), "{error}");
    }
}
