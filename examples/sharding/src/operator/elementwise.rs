//! Operators whose loops are rows and columns: adding a row to each row, and ReLU.

use crate::tensor::Tensor;

/// Adds `bias` to each row.
pub fn add_bias(value: &Tensor, bias: &Tensor, sum: &mut Tensor) {
    sum.shape_as(&value.shape);
    for (sums, row) in sum.rows_mut().zip(value.rows()) {
        for ((sum, &number), &bias) in sums.iter_mut().zip(row).zip(&bias.data) {
            *sum = number + bias;
        }
    }
}

/// Computes the gradient of the bias: the column sums of the result's gradient.
pub fn bias_gradient(gradient: &Tensor, sums: &mut Tensor) {
    sums.shape_as(&[gradient.columns()]);
    sums.data.fill(0.0);
    for row in gradient.rows() {
        for (sum, &number) in sums.data.iter_mut().zip(row) {
            *sum += number;
        }
    }
}

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

pub fn relu(value: &Tensor, output: &mut Tensor) {
    output.copy(value);
    rectify(&mut output.data);
}

/// Computes the gradient of ReLU's input, from the result's gradient and the result.
pub fn relu_gradient(gradient: &Tensor, output: &Tensor, gradients: &mut Tensor) {
    gradients.copy(gradient);
    mask(&mut gradients.data, &output.data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_added_and_its_gradient_is_the_columns_sums() {
        let value = Tensor::new(vec![2, 2], vec![1., 2., 3., 4.]);
        let bias = Tensor::new(vec![2], vec![10., 20.]);
        let mut found = Tensor::zeros(vec![0]);
        add_bias(&value, &bias, &mut found);
        assert_eq!(found, Tensor::new(vec![2, 2], vec![11., 22., 13., 24.]));
        bias_gradient(&value, &mut found);
        assert_eq!(found, Tensor::new(vec![2], vec![4., 6.]));
    }

    #[test]
    fn what_is_below_0_has_neither_value_nor_gradient() {
        let (mut output, mut gradients) = (Tensor::zeros(vec![0]), Tensor::zeros(vec![0]));
        relu(&Tensor::new(vec![1, 4], vec![-1., 0., 2., f32::NAN]), &mut output);
        assert_eq!(output.data[..3], [0., 0., 2.]);
        assert!(output.data[3].is_nan());
        relu_gradient(&Tensor::new(vec![1, 4], vec![5., 6., 7., 8.]), &output, &mut gradients);
        assert_eq!(gradients.data, [0., 0., 7., 0.]);
    }
}
