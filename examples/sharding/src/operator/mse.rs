//! The mean squared error, a loss: loops over rows and columns.

use super::Rule;
use crate::tensor::Tensor;

/// The second input, the labels, is cut like the first input.
pub const RULE: Rule = Rule { loops: 2, inputs: &[&[0, 1], &[0, 1]], output: &[], whole: None };

/// Returns the sum of the squared differences, divided by `count`, the number of values on all
/// ranks.
pub fn forward(value: &Tensor, labels: &Tensor, count: usize) -> f32 {
    let mut sum = 0.0;
    for (&number, &label) in value.data.iter().zip(&labels.data) {
        sum += (number - label) * (number - label);
    }
    sum / (count as f64) as f32
}

/// Computes the gradient of the value.
pub fn gradient(value: &Tensor, labels: &Tensor, count: usize, gradients: &mut Tensor) {
    let scale = (2.0 / count as f64) as f32;
    gradients.shape_as(&value.shape);
    for ((gradient, &number), &label) in
        gradients.data.iter_mut().zip(&value.data).zip(&labels.data)
    {
        *gradient = scale * (number - label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_divided_by_the_count_of_all() {
        let value = Tensor::new(vec![1, 2], vec![1.0, 4.0]);
        let labels = Tensor::new(vec![1, 2], vec![2.0, 2.0]);
        assert_eq!(forward(&value, &labels, 4), 1.25);
        let mut gradients = Tensor::zeros(vec![0]);
        gradient(&value, &labels, 4, &mut gradients);
        assert_eq!(gradients, Tensor::new(vec![1, 2], vec![-0.5, 1.0]));
    }
}
