//! A row added to each row of a matrix: loops over rows and columns.

use super::Rule;
use crate::sharding::number::Number;
use crate::sharding::tensor::Tensor;

/// The second input is the row.
pub const RULE: Rule = Rule { loops: 2, inputs: &[&[0, 1], &[1]], output: &[0, 1], whole: None };

/// Adds `bias` to every row.
#[must_use]
pub fn forward<N: Number>(value: &Tensor<N>, bias: &Tensor<N>) -> Tensor<N> {
    let data = value.rows().flat_map(|row| row.iter().zip(&bias.data).map(|(&number, &bias)| number + bias)).collect();
    Tensor::new(value.shape.clone(), data)
}

/// The gradient of the row: the sum of each column of the result's.
#[must_use]
pub fn gradient_of_bias<N: Number>(gradient: &Tensor<N>) -> Tensor<N> {
    let mut sums = Tensor::zeros(vec![gradient.columns()]);
    for row in gradient.rows() {
        for (sum, &number) in sums.data.iter_mut().zip(row) {
            *sum += number;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_added_and_its_gradient_is_the_columns_sums() {
        let value = Tensor::new(vec![2, 2], vec![1., 2., 3., 4.]);
        let bias = Tensor::new(vec![2], vec![10., 20.]);
        assert_eq!(forward(&value, &bias).data, [11., 22., 13., 24.]);
        assert_eq!(gradient_of_bias(&value), Tensor::new(vec![2], vec![4., 6.]));
    }
}
