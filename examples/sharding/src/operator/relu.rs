//! ReLU: loops over rows and columns.

use super::Rule;
use crate::tensor::Tensor;

pub const RULE: Rule = Rule { loops: 2, inputs: &[&[0, 1]], output: &[0, 1], whole: None };

/// Replaces every number below 0 with 0. NaN is kept: `max` would turn it into 0 and hide that a
/// run diverged.
#[inline]
pub fn rectify(numbers: &mut [f32]) {
    for number in numbers {
        *number = if *number < 0.0 { 0.0 } else { *number };
    }
}

/// Sets the gradient to 0 for each output that is not above 0. ReLU's gradient at 0 is taken to be
/// 0.
#[inline]
pub fn mask(gradients: &mut [f32], outputs: &[f32]) {
    for (gradient, &output) in gradients.iter_mut().zip(outputs) {
        *gradient = if output > 0.0 { *gradient } else { 0.0 };
    }
}

pub fn forward(value: &Tensor, output: &mut Tensor) {
    output.copy(value);
    rectify(&mut output.data);
}

/// Computes the gradient of the input, from the result's gradient and the result.
pub fn gradient(gradient: &Tensor, output: &Tensor, gradients: &mut Tensor) {
    gradients.copy(gradient);
    mask(&mut gradients.data, &output.data);
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
