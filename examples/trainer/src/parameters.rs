//! A model's parameters as named tensors, as files hold them.

use crate::tensor_file::{Tensor, TensorFile};

/// The names and shapes of a model's parameters, in the order in which they lie in its slice.
pub type Shapes = Vec<(&'static str, Vec<usize>)>;

/// A file's tensors are not those of the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {found}; the model has {expected}")]
pub struct OtherShapes {
    found: String,
    expected: String,
}

/// A model's parameters, named and shaped.
#[must_use]
pub fn to_tensors(shapes: &Shapes, parameters: &[f32]) -> Vec<Tensor> {
    let mut rest = parameters;
    let tensor = |(name, shape): &(&str, Vec<usize>)| {
        let (values, after) = rest.split_at(count(shape).min(rest.len()));
        rest = after;
        Tensor { name: (*name).to_owned(), shape: shape.clone(), values: values.to_vec() }
    };
    shapes.iter().map(tensor).collect()
}

/// The parameters of a model with those shapes, from a file; tensors of other names are left alone.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn from_file(shapes: &Shapes, file: &TensorFile) -> Result<Vec<f32>, OtherShapes> {
    let mut parameters = Vec::new();
    for (name, shape) in shapes {
        match file.tensor(name).filter(|tensor| tensor.shape == *shape) {
            Some(tensor) => parameters.extend(&tensor.values),
            None => {
                return Err(OtherShapes {
                    found: list(file.tensors.iter().map(|tensor| (tensor.name.as_str(), &*tensor.shape))),
                    expected: list(shapes.iter().map(|(name, shape)| (*name, &**shape))),
                });
            }
        }
    }
    Ok(parameters)
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn list<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize])>) -> String {
    let lengths = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let list: Vec<String> = tensors.map(|(name, shape)| format!("{name} ({})", lengths(shape))).collect();
    if list.is_empty() { "no tensors".to_owned() } else { list.join(", ") }
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
        assert_eq!(tensors[1], Tensor { name: "bias".into(), shape: vec![2], values: vec![6.0, 7.0] });
        let file = TensorFile { tensors, ..TensorFile::default() };
        assert_eq!(from_file(&shapes(), &file), Ok(parameters));
    }

    #[test]
    fn the_tensors_of_another_model_are_named_beside_this_ones() {
        let error = |file: &TensorFile| from_file(&shapes(), file).unwrap_err().to_string();
        let mut file = TensorFile { tensors: to_tensors(&shapes(), &[0.0; 8]), ..TensorFile::default() };
        file.tensors[0].shape = vec![3, 2];
        assert_eq!(error(&file), "has weight (3, 2), bias (2); the model has weight (2, 3), bias (2)");
        assert_eq!(error(&TensorFile::default()), "has no tensors; the model has weight (2, 3), bias (2)");
    }
}
