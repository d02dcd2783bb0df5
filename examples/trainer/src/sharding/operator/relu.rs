//! Everything below 0 becomes 0: loops over rows and columns.

use super::Rule;
use crate::sharding::number::Number;
use crate::sharding::tensor::Tensor;

/// Each number for itself.
pub const RULE: Rule = Rule { loops: 2, inputs: &[&[0, 1]], output: &[0, 1], whole: None };

/// Every number, or 0 if it is below. What is no number stays so.
#[must_use]
pub fn forward<N: Number>(value: &Tensor<N>) -> Tensor<N> {
    let zero = N::default();
    let data = value.data.iter().map(|&number| if number < zero { zero } else { number }).collect();
    Tensor::new(value.shape.clone(), data)
}

/// The gradient of the result where `output`, the result, is above 0.
#[must_use]
pub fn gradient<N: Number>(gradient: &Tensor<N>, output: &Tensor<N>) -> Tensor<N> {
    let zero = N::default();
    let data = gradient.data.iter().zip(&output.data);
    let data = data.map(|(&slope, &number)| if number > zero { slope } else { zero }).collect();
    Tensor::new(gradient.shape.clone(), data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_0_has_neither_value_nor_gradient() {
        let output = forward(&Tensor::new(vec![1, 4], vec![-1., 0., 2., f32::NAN]));
        assert_eq!(output.data[..3], [0., 0., 2.]);
        assert!(output.data[3].is_nan());
        let slopes = gradient(&Tensor::new(vec![1, 4], vec![5., 6., 7., 8.]), &output);
        assert_eq!(slopes.data, [0., 0., 7., 0.]);
    }
}
