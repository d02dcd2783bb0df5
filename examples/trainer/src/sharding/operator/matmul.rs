//! The product of two matrices: loops over rows m, inner k, columns n.

use super::Rule;
use crate::sharding::number::Number;
use crate::sharding::tensor::Tensor;

/// A is m x k, B is k x n.
pub const RULE: Rule = Rule { loops: 3, inputs: &[&[0, 1], &[1, 2]], output: &[0, 2], whole: None };

/// A B.
#[must_use]
pub fn forward<N: Number>(a: &Tensor<N>, b: &Tensor<N>) -> Tensor<N> {
    let mut product = Tensor::zeros(vec![a.shape[0], b.shape[1]]);
    for (sums, factors) in product.data.chunks_exact_mut(b.shape[1]).zip(a.rows()) {
        for (&factor, row) in factors.iter().zip(b.rows()) {
            add_scaled(sums, factor, row);
        }
    }
    product
}

/// The gradient of A: that of the product, times B transposed.
#[must_use]
pub fn gradient_of_first<N: Number>(gradient: &Tensor<N>, b: &Tensor<N>) -> Tensor<N> {
    let (rows, columns) = (b.shape[0], b.shape[1]);
    let data = (0..columns).flat_map(|column| (0..rows).map(move |row| b.data[row * columns + column]));
    forward(gradient, &Tensor::new(vec![columns, rows], data.collect()))
}

/// The gradient of B: A transposed, times that of the product.
#[must_use]
pub fn gradient_of_second<N: Number>(a: &Tensor<N>, gradient: &Tensor<N>) -> Tensor<N> {
    let mut product = Tensor::zeros(vec![a.shape[1], gradient.shape[1]]);
    for (factors, row) in a.rows().zip(gradient.rows()) {
        for (sums, &factor) in product.data.chunks_exact_mut(row.len()).zip(factors) {
            add_scaled(sums, factor, row);
        }
    }
    product
}

fn add_scaled<N: Number>(sums: &mut [N], factor: N, row: &[N]) {
    for (sum, &number) in sums.iter_mut().zip(row) {
        *sum += factor * number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_gradients_are_those_of_the_book() {
        let a = Tensor::new(vec![2, 3], vec![1., 2., 3., 4., 5., 6.]);
        let b = Tensor::new(vec![3, 2], vec![1., 0., 2., 1., 0., 3.]);
        let product = forward(&a, &b);
        assert_eq!((product.shape, product.data), (vec![2, 2], vec![5., 11., 14., 23.]));
        let gradient = Tensor::new(vec![2, 2], vec![1., 2., 0., 1.]);
        let first = gradient_of_first(&gradient, &b);
        assert_eq!((first.shape, first.data), (vec![2, 3], vec![1., 4., 6., 0., 1., 3.]));
        let second = gradient_of_second(&a, &gradient);
        assert_eq!((second.shape, second.data), (vec![3, 2], vec![1., 6., 2., 9., 3., 12.]));
    }
}
