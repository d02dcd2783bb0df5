//! Converts between a model's parameters and the named tensors in files.

use mpienv_sharding::file::tensor_file::{NamedTensor, TensorFile, Type};
use mpienv_sharding::join;
use mpienv_sharding::tensor::{from_bytes, to_bytes};

/// The names and shapes of a model's parameters, in the order of the model's slice.
pub type Shapes = Vec<(&'static str, Vec<usize>)>;

/// A file's tensors do not match the model's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {found}; the model has {expected}")]
pub struct OtherShapes {
    found: String,
    expected: String,
}

/// Converts parameters to named tensors.
pub fn to_tensors(shapes: &Shapes, parameters: &[f32]) -> Vec<NamedTensor> {
    let mut rest = parameters;
    let tensor = |(name, shape): &(&str, Vec<usize>)| {
        let (values, after) = rest.split_at(shape.iter().product::<usize>().min(rest.len()));
        rest = after;
        let bytes = to_bytes(values);
        NamedTensor { name: (*name).to_owned(), numbers: Type::F32, shape: shape.clone(), bytes }
    };
    shapes.iter().map(tensor).collect()
}

/// Reads the parameters from a file. Tensors with other names are ignored.
pub fn from_file(shapes: &Shapes, file: &TensorFile) -> Result<Vec<f32>, OtherShapes> {
    let mut parameters = Vec::new();
    for (name, shape) in shapes {
        match file.get(name).filter(|tensor| tensor.shape == *shape && tensor.numbers == Type::F32)
        {
            Some(tensor) => parameters.extend(from_bytes(&tensor.bytes)),
            None => {
                let found = file
                    .tensors
                    .iter()
                    .map(|tensor| (tensor.name.as_str(), &*tensor.shape, tensor.numbers));
                let expected = shapes.iter().map(|(name, shape)| (*name, &**shape, Type::F32));
                return Err(OtherShapes { found: list(found), expected: list(expected) });
            }
        }
    }
    Ok(parameters)
}

fn list<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize], Type)>) -> String {
    let wide = |numbers| if numbers == Type::F64 { " of f64" } else { "" };
    let tensors = tensors
        .map(|(name, shape, numbers)| format!("{name} ({}){}", join(shape, ", "), wide(numbers)));
    let list = join(tensors, ", ");
    if list.is_empty() { "no tensors".to_owned() } else { list }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            NamedTensor { name: "bias".into(), numbers: Type::F32, shape: vec![2], bytes }
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
        file.tensors[0].numbers = Type::F64;
        assert!(error(&file).starts_with("has weight (3, 2) of f64, bias (2); "));
        assert_eq!(
            error(&TensorFile::default()),
            "has no tensors; the model has weight (2, 3), bias (2)"
        );
    }
}
