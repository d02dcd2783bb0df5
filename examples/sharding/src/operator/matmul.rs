//! The product of two matrices: loops over rows m, inner k and columns n.

pub mod tile;

use tile::Left;

use super::Rule;
use crate::tensor::Tensor;

/// A has the shape m x k, and B has the shape k x n.
pub const RULE: Rule = Rule { loops: 3, inputs: &[&[0, 1], &[1, 2]], output: &[0, 2], whole: None };

/// Overwrites `product` with A B, of shape m x n.
pub fn forward(a: &Tensor, b: &Tensor, product: &mut Tensor) {
    product.shape_as(&[a.shape[0], b.shape[1]]);
    tile::multiply(Left::rows(a), &b.data, b.shape[1], &mut product.data);
}

/// Computes the gradient of A: the product's gradient times B transposed. `turned` is a buffer.
pub fn gradient_of_first(gradient: &Tensor, b: &Tensor, turned: &mut Tensor, product: &mut Tensor) {
    b.transpose(turned);
    forward(gradient, turned, product);
}

/// Computes the gradient of B: A transposed times the product's gradient.
pub fn gradient_of_second(a: &Tensor, gradient: &Tensor, product: &mut Tensor) {
    product.shape_as(&[a.shape[1], gradient.shape[1]]);
    tile::multiply(Left::columns(a), &gradient.data, gradient.shape[1], &mut product.data);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Tensor {
        Tensor::zeros(vec![0])
    }

    #[test]
    fn products_and_gradients_are_those_of_the_book() {
        let a = Tensor::new(vec![2, 3], vec![1., 2., 3., 4., 5., 6.]);
        let b = Tensor::new(vec![3, 2], vec![1., 0., 2., 1., 0., 3.]);
        let mut product = empty();
        forward(&a, &b, &mut product);
        assert_eq!((product.shape, product.data), (vec![2, 2], vec![5., 11., 14., 23.]));
        let gradient = Tensor::new(vec![2, 2], vec![1., 2., 0., 1.]);
        let mut first = empty();
        gradient_of_first(&gradient, &b, &mut empty(), &mut first);
        assert_eq!((first.shape, first.data), (vec![2, 3], vec![1., 4., 6., 0., 1., 3.]));
        let mut second = empty();
        gradient_of_second(&a, &gradient, &mut second);
        assert_eq!((second.shape, second.data), (vec![3, 2], vec![1., 6., 2., 9., 3., 12.]));
    }

    #[test]
    fn matrices_of_any_size_are_multiplied() {
        // Small whole numbers: every sum is exact, in any order.
        let counted = |rows: usize, columns: usize, step: usize| {
            let data = (0..rows * columns)
                .map(|index| ((index * step % 13) as f64 - 6.0) as f32)
                .collect();
            Tensor::new(vec![rows, columns], data)
        };
        for (m, k, n) in [
            (1, 1, 1),
            (3, 5, 2),
            (4, 7, 8),
            (5, 3, 10),
            (9, 2, 16),
            (6, 4, 31),
            (13, 1, 43),
            (8, 20, 64),
        ] {
            let (a, b) = (counted(m, k, 5), counted(k, n, 7));
            let mut product = Tensor::default();
            forward(&a, &b, &mut product);
            let (mut turned, mut second) = (Tensor::default(), Tensor::default());
            a.transpose(&mut turned);
            gradient_of_second(&turned, &b, &mut second);
            for row in 0..m {
                for column in 0..n {
                    let term = |inner: usize| a.data[row * k + inner] * b.data[inner * n + column];
                    let sum: f32 = (0..k).map(term).sum();
                    assert_eq!(product.data[row * n + column], sum, "{m} {k} {n}");
                }
            }
            assert_eq!(second, product);
        }
    }
}
