//! Everything below 0 becomes 0: loops over rows and columns.

use super::Rule;
use crate::sharding::number::Number;
use crate::sharding::tensor::Tensor;

/// Each number for itself.
pub const RULE: Rule = Rule { loops: 2, inputs: &[&[0, 1]], output: &[0, 1], whole: None };

/// Every number, or 0 if it is below. What is no number stays so.
pub fn forward<N: Number>(value: &Tensor<N>, output: &mut Tensor<N>) {
    let zero = N::default();
    output.shape_as(&value.shape);
    for (output, &number) in output.data.iter_mut().zip(&value.data) {
        *output = if number < zero { zero } else { number };
    }
}

/// The gradient of the result where `output`, the result, is above 0.
pub fn gradient<N: Number>(gradient: &Tensor<N>, output: &Tensor<N>, gradients: &mut Tensor<N>) {
    let zero = N::default();
    gradients.shape_as(&gradient.shape);
    for ((found, &gradient), &number) in gradients.data.iter_mut().zip(&gradient.data).zip(&output.data) {
        *found = if number > zero { gradient } else { zero };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_0_has_neither_value_nor_gradient() {
        let (mut output, mut gradients) = (Tensor::zeros(vec![0]), Tensor::zeros(vec![0]));
        forward(&Tensor::new(vec![1, 4], vec![-1., 0., 2., f32::NAN]), &mut output);
        assert_eq!(output.data[..3], [0., 0., 2.]);
        assert!(output.data[3].is_nan());
        gradient(&Tensor::new(vec![1, 4], vec![5., 6., 7., 8.]), &output, &mut gradients);
        assert_eq!(gradients.data, [0., 0., 7., 0.]);
    }
}
