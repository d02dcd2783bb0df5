//! A model's parameters and the named tensors in files: checkpoints, and files of initial weights.

use crate::data::CLASSES;
use crate::model::linear::WEIGHTS;
use mpienv_sharding::error::Error;
use mpienv_sharding::file;
use mpienv_sharding::file::tensor_file::{Dtype, NamedTensor, TensorFile};
use mpienv_sharding::join;
use mpienv_sharding::tensor::{Tensor, from_bytes};
use std::io::Read;
use std::path::Path;

/// The names and shapes of a model's parameters, in the order of the model's slice.
pub type Shapes = Vec<(&'static str, Vec<usize>)>;

/// Converts parameters to named tensors.
pub fn to_tensors(shapes: &Shapes, parameters: &[f32]) -> Vec<NamedTensor> {
    let mut rest = parameters;
    let tensor = |(name, shape): &(&str, Vec<usize>)| {
        let (values, after) = rest.split_at(shape.iter().product::<usize>().min(rest.len()));
        rest = after;
        NamedTensor::new(name, &Tensor::new(shape.clone(), values.to_vec()))
    };
    shapes.iter().map(tensor).collect()
}

/// Reads the parameters from a file, or returns what it has instead. Tensors with other names are
/// ignored.
pub fn from_file(shapes: &Shapes, file: &TensorFile) -> Result<Vec<f32>, String> {
    let mut parameters = Vec::new();
    for (name, shape) in shapes {
        let own = file.get(name).filter(|own| own.shape == *shape && own.numbers == Dtype::F32);
        let Some(own) = own else {
            let found = file.tensors.iter().map(|own| (&*own.name, &*own.shape, own.numbers));
            let expected = shapes.iter().map(|(name, shape)| (*name, &**shape, Dtype::F32));
            return Err(format!("has {}; the model has {}", list(found), list(expected)));
        };
        parameters.extend(from_bytes(&own.bytes));
    }
    Ok(parameters)
}

fn list<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize], Dtype)>) -> String {
    let other = |numbers: Dtype| match numbers {
        Dtype::F32 => String::new(),
        other => format!(" of {other}").to_lowercase(),
    };
    let tensors = tensors
        .map(|(name, shape, numbers)| format!("{name} ({}){}", join(shape, ", "), other(numbers)));
    let list = join(tensors, ", ");
    if list.is_empty() { "no tensors".to_owned() } else { list }
}

/// The offset of the header's first character in a safetensors file.
const HEADER: usize = 8;

/// Reads a model's parameters from a safetensors file. The linear model also accepts a file of raw
/// little-endian f32 weights of shape (10, 784), with biases of 0.
pub fn read(path: &Path, shapes: &Shapes) -> Result<Vec<f32>, Error> {
    let error = |text: String| Error::in_file(path, text);
    let expected = WEIGHTS * size_of::<f32>();
    let mut bytes = Vec::new();
    // One byte more than expected is enough to detect a file that is too long.
    file::open(path)
        .and_then(|file| file.take(expected as u64 + 1).read_to_end(&mut bytes))
        .map_err(|reason| {
            let text = format!("cannot be read: {reason}");
            error(format!("{text}; --weights must name a file of initial weights"))
        })?;
    if bytes.len() != expected && bytes.get(HEADER) == Some(&b'{') {
        return from_file(shapes, &TensorFile::read(path)?).map_err(error);
    }
    if bytes.len() != expected {
        let more = if bytes.len() > expected { "more than " } else { "" };
        let found = format!("has {more}{} bytes", bytes.len().min(expected));
        let raw = format!("{expected} (10 x 784 little-endian f32)");
        return Err(error(format!("{found}; expected {raw}, or a safetensors file")));
    }
    if shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum::<usize>()
        != WEIGHTS + CLASSES
    {
        let text =
            "raw weights are only for the linear model; for this model, use a safetensors file";
        return Err(error(text.to_owned()));
    }
    Ok(from_bytes(&bytes).into_iter().chain([0.0; CLASSES]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PIXELS;
    use mpienv_sharding::file::tensor_file::{Dtype, NamedTensor};
    use std::fs;

    fn shapes() -> Shapes {
        vec![("weight", vec![2, 3]), ("bias", vec![2])]
    }

    #[test]
    fn parameters_go_into_tensors_and_come_back() {
        let parameters: Vec<f32> = (0..8u8).map(f32::from).collect();
        let tensors = to_tensors(&shapes(), &parameters);
        let bytes = [6f32.to_le_bytes(), 7f32.to_le_bytes()].concat();
        assert_eq!(
            tensors[1],
            NamedTensor { name: "bias".into(), numbers: Dtype::F32, shape: vec![2], bytes }
        );
        let file = TensorFile { tensors, ..TensorFile::default() };
        assert_eq!(from_file(&shapes(), &file), Ok(parameters));
    }

    #[test]
    fn the_tensors_of_another_model_are_named_next_to_this_models() {
        let error = |file: &TensorFile| from_file(&shapes(), file).unwrap_err().to_string();
        let mut file =
            TensorFile { tensors: to_tensors(&shapes(), &[0.0; 8]), ..TensorFile::default() };
        file.tensors[0].shape = vec![3, 2];
        assert_eq!(
            error(&file),
            "has weight (3, 2), bias (2); the model has weight (2, 3), bias (2)"
        );
        file.tensors[0].numbers = Dtype::F64;
        assert!(error(&file).starts_with("has weight (3, 2) of f64, bias (2); "));
        assert_eq!(
            error(&TensorFile::default()),
            "has no tensors; the model has weight (2, 3), bias (2)"
        );
    }

    fn linear() -> Shapes {
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
        let mut file =
            TensorFile { tensors: to_tensors(&linear(), &parameters), ..TensorFile::default() };
        let extra = NamedTensor {
            name: "of no use".to_owned(),
            numbers: Dtype::I64,
            shape: vec![1],
            bytes: vec![0; 8],
        };
        file.tensors.push(extra);
        file.write(&path).unwrap();
        assert_eq!(read(&path, &linear()).unwrap(), parameters);

        file.tensors.remove(1);
        file.write(&path).unwrap();
        let error = read(&path, &linear()).unwrap_err().to_string();
        let text =
            "has of no use (1) of i64, weight (10, 784); the model has weight (10, 784), bias (10)";
        assert_eq!(error, format!("{}: {text}", path.display()));

        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = read(&path, &linear()).unwrap_err().to_string();
        assert!(error.contains("is not a complete safetensors file"), "{error}");
    }

    #[test]
    fn weights_are_read_and_biases_are_0() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.f32");
        let bytes: Vec<u8> = (0..WEIGHTS).flat_map(|index| (index as f32).to_le_bytes()).collect();
        fs::write(&path, &bytes).unwrap();
        let parameters = read(&path, &linear()).unwrap();
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
                read(&path, &linear()).unwrap_err().to_string(),
                format!("{}: {text}", path.display())
            );
        }
        let error = read(Path::new("/no/such/w.f32"), &linear()).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/w.f32: cannot be read: No such file"), "{error}");
    }
}
