//! Adds a row to each row of a matrix: loops over rows and columns.

use super::Rule;
use crate::tensor::Tensor;

/// The second input is the row.
pub const RULE: Rule = Rule { loops: 2, inputs: &[&[0, 1], &[1]], output: &[0, 1], whole: None };

pub fn forward(value: &Tensor, bias: &Tensor, sum: &mut Tensor) {
    sum.shape_as(&value.shape);
    for (sums, row) in sum.rows_mut().zip(value.rows()) {
        for ((sum, &number), &bias) in sums.iter_mut().zip(row).zip(&bias.data) {
            *sum = number + bias;
        }
    }
}

/// Computes the gradient of the row: the column sums of the result's gradient.
pub fn gradient_of_bias(gradient: &Tensor, sums: &mut Tensor) {
    sums.shape_as(&[gradient.columns()]);
    sums.data.fill(0.0);
    for row in gradient.rows() {
        for (sum, &number) in sums.data.iter_mut().zip(row) {
            *sum += number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_added_and_its_gradient_is_the_columns_sums() {
        let value = Tensor::new(vec![2, 2], vec![1., 2., 3., 4.]);
        let bias = Tensor::new(vec![2], vec![10., 20.]);
        let mut found = Tensor::zeros(vec![0]);
        forward(&value, &bias, &mut found);
        assert_eq!(found, Tensor::new(vec![2, 2], vec![11., 22., 13., 24.]));
        gradient_of_bias(&value, &mut found);
        assert_eq!(found, Tensor::new(vec![2], vec![4., 6.]));
    }
}
