//! Reads initial weights from a file, for exact comparison with other systems.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::data::CLASSES;
use crate::model::linear::WEIGHTS;
use crate::parameters::{self, OtherShapes, Shapes};
use mpienv_sharding::file::regular_file;
use mpienv_sharding::file::tensor_file::{self, TensorFile, TensorFileError};
use mpienv_sharding::tensor::from_bytes;

/// The offset of the header's first character in a safetensors file.
const HEADER: usize = 8;

/// Reads a model's parameters from a safetensors file. The linear model also accepts a file of raw
/// little-endian f32 weights of shape (10, 784), with biases of 0.
pub fn read(path: &Path, shapes: &Shapes) -> Result<Vec<f32>, WeightsError> {
    let unreadable = |error| WeightsError::Unreadable { path: path.to_owned(), error };
    let expected = WEIGHTS * size_of::<f32>();
    let mut bytes = Vec::new();
    let file = regular_file::open(path).map_err(unreadable)?;
    // One byte more than expected is enough to detect a file that is too long.
    (&file).take(expected as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() != expected && bytes.get(HEADER) == Some(&b'{') {
        if file.metadata().map_err(unreadable)?.len() > tensor_file::LARGEST {
            return Err(TensorFileError::TooLarge { path: path.to_owned() }.into());
        }
        let more = tensor_file::LARGEST + 1 - bytes.len() as u64;
        (&file).take(more).read_to_end(&mut bytes).map_err(unreadable)?;
        let file = TensorFile::from_bytes(path, &bytes)?;
        return parameters::from_file(shapes, &file)
            .map_err(|reason| WeightsError::Shapes { path: path.to_owned(), reason });
    }
    if bytes.len() != expected {
        return Err(WeightsError::Size { path: path.to_owned(), found: bytes.len(), expected });
    }
    if shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum::<usize>()
        != WEIGHTS + CLASSES
    {
        return Err(WeightsError::OnlyLinear { path: path.to_owned() });
    }
    Ok(from_bytes(&bytes).into_iter().chain([0.0; CLASSES]).collect())
}

/// Why a file of initial weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("{}: cannot be read: {error}; --weights must name a file of initial weights", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The file is neither raw weights nor safetensors.
    #[error(
        "{}: has {}{} bytes; expected {expected} (10 x 784 little-endian f32), or a safetensors file",
        path.display(), if found > expected { "more than " } else { "" }, found.min(expected)
    )]
    Size { path: PathBuf, found: usize, expected: usize },
    #[error("{}: raw weights are only for the linear model; for this model, use a safetensors file", path.display())]
    OnlyLinear { path: PathBuf },
    /// The safetensors file is damaged, or has numbers of another type.
    #[error(transparent)]
    Tensors(#[from] TensorFileError),
    #[error("{}: {reason}", path.display())]
    Shapes { path: PathBuf, reason: OtherShapes },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PIXELS;
    use mpienv_sharding::file::tensor_file::{NamedTensor, Type};
    use std::fs;

    fn shapes() -> Shapes {
        vec![("weight", vec![CLASSES, PIXELS]), ("bias", vec![CLASSES])]
    }

    #[test]
    fn raw_weights_are_refused_by_another_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.f32");
        fs::write(&path, vec![0; WEIGHTS * 4]).unwrap();
        let error = read(&path, &vec![("hidden.weight", vec![128, PIXELS])]).unwrap_err();
        assert!(error.to_string().contains("use a safetensors file"), "{error}");
    }

    #[test]
    fn a_safetensors_file_has_weight_and_bias() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let parameters: Vec<f32> = (0..WEIGHTS + CLASSES).map(|index| index as f32).collect();
        let mut file = TensorFile {
            tensors: parameters::to_tensors(&shapes(), &parameters),
            ..TensorFile::default()
        };
        let extra = NamedTensor {
            name: "of no use".to_owned(),
            numbers: Type::F64,
            shape: vec![1],
            bytes: vec![0; 8],
        };
        file.tensors.push(extra);
        file.write(&path).unwrap();
        assert_eq!(read(&path, &shapes()).unwrap(), parameters);

        file.tensors.remove(1);
        file.write(&path).unwrap();
        let error = read(&path, &shapes()).unwrap_err().to_string();
        let text =
            "has of no use (1) of f64, weight (10, 784); the model has weight (10, 784), bias (10)";
        assert_eq!(error, format!("{}: {text}", path.display()));

        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = read(&path, &shapes()).unwrap_err().to_string();
        assert!(error.contains("is not a complete safetensors file"), "{error}");
    }

    #[test]
    fn weights_are_read_and_biases_are_0() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.f32");
        let bytes: Vec<u8> = (0..WEIGHTS).flat_map(|index| (index as f32).to_le_bytes()).collect();
        fs::write(&path, &bytes).unwrap();
        let parameters = read(&path, &shapes()).unwrap();
        assert_eq!(parameters[..3], [0.0, 1.0, 2.0]);
        assert_eq!(parameters[WEIGHTS - 1..], [[7839.0].as_slice(), &[0.0; 10]].concat());
    }

    #[test]
    fn a_file_of_another_size_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.f32");
        for (size, text) in [
            (0, "has 0 bytes; expected 31360 (10 x 784 little-endian f32), or a safetensors file"),
            (
                31_359,
                "has 31359 bytes; expected 31360 (10 x 784 little-endian f32), or a safetensors file",
            ),
            (
                50_000,
                "has more than 31360 bytes; expected 31360 (10 x 784 little-endian f32), or a safetensors file",
            ),
        ] {
            fs::write(&path, vec![0; size]).unwrap();
            assert_eq!(
                read(&path, &shapes()).unwrap_err().to_string(),
                format!("{}: {text}", path.display())
            );
        }
        let error = read(Path::new("/no/such/w.f32"), &shapes()).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/w.f32: cannot be read: No such file"), "{error}");
    }
}
