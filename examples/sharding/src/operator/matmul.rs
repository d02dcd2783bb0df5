//! The product of two matrices: loops over rows m, inner k and columns n.
//!
//! It is computed in tiles as large as the registers allow, with the machine's widest instructions.
//! Every sum is in the order of the inner loop, and each product is rounded before it is added. All
//! machines therefore compute the same bits, so ranks on different machines can be replicas.

use crate::tensor::Tensor;
use pulp::{Arch, Simd, WithSimd};
use std::array::from_fn;

/// Overwrites `product` with A B, of shape m x n.
pub fn forward(a: &Tensor, b: &Tensor, product: &mut Tensor) {
    product.shape_as(&[a.shape[0], b.shape[1]]);
    multiply(Left::rows(a), &b.data, b.shape[1], &mut product.data);
}

/// Computes the gradient of A: the product's gradient times B transposed. `turned` is a buffer.
pub fn gradient_of_first(gradient: &Tensor, b: &Tensor, turned: &mut Tensor, product: &mut Tensor) {
    b.transpose(turned);
    forward(gradient, turned, product);
}

/// Computes the gradient of B: A transposed times the product's gradient.
pub fn gradient_of_second(a: &Tensor, gradient: &Tensor, product: &mut Tensor) {
    product.shape_as(&[a.shape[1], gradient.shape[1]]);
    multiply(Left::columns(a), &gradient.data, gradient.shape[1], &mut product.data);
}

/// Rows computed at once. With two vectors of columns, the sums and operands fit in the registers
/// of AVX2.
const ROWS: usize = 4;

/// A view of the left matrix, whose numbers are these steps apart.
#[derive(Clone, Copy, Debug)]
struct Left<'a> {
    data: &'a [f32],
    /// The number of rows, and of numbers in the inner loop.
    shape: [usize; 2],
    steps: [usize; 2],
}

impl<'a> Left<'a> {
    /// A view of the matrix itself.
    fn rows(a: &'a Tensor) -> Left<'a> {
        Left { data: &a.data, shape: [a.shape[0], a.shape[1]], steps: [a.shape[1], 1] }
    }

    /// A view of the transposed matrix.
    fn columns(a: &'a Tensor) -> Left<'a> {
        Left { data: &a.data, shape: [a.shape[1], a.shape[0]], steps: [1, a.shape[1]] }
    }
}

/// Overwrites `product` with a matrix product. `right` and `product` are row-major with `columns`
/// columns.
fn multiply(left: Left<'_>, right: &[f32], columns: usize, product: &mut [f32]) {
    Arch::new().dispatch(Multiply { left, right, columns, product });
}

struct Multiply<'a> {
    left: Left<'a>,
    right: &'a [f32],
    columns: usize,
    product: &'a mut [f32],
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (right, columns) = (self.right, self.columns);
        let mut column = 0;
        while column + 2 * S::F32_LANES <= columns {
            self.panel::<S, 2>(simd, &right[column..], columns, column);
            column += 2 * S::F32_LANES;
        }
        if column + S::F32_LANES <= columns {
            self.panel::<S, 1>(simd, &right[column..], columns, column);
            column += S::F32_LANES;
        }
        if column < columns {
            // Fewer columns than a vector remain. Pad them with zeros.
            let mut filled = vec![0.0; self.left.shape[1] * S::F32_LANES];
            for (row, numbers) in
                filled.chunks_exact_mut(S::F32_LANES).zip(right.chunks_exact(columns))
            {
                row[..columns - column].copy_from_slice(&numbers[column..]);
            }
            self.panel::<S, 1>(simd, &filled, S::F32_LANES, column);
        }
    }
}

impl Multiply<'_> {
    /// Computes `WIDE` vectors of columns of the product, from `column` on. Rows of `right` are
    /// `step` numbers apart.
    #[inline(always)]
    fn panel<S: Simd, const WIDE: usize>(
        &mut self,
        simd: S,
        right: &[f32],
        step: usize,
        column: usize,
    ) {
        let [rows, _] = self.left.shape;
        let whole = rows - rows % ROWS;
        for row in (0..whole).step_by(ROWS) {
            self.tile::<S, ROWS, WIDE>(simd, row, right, step, column);
        }
        for row in whole..rows {
            self.tile::<S, 1, WIDE>(simd, row, right, step, column);
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const TALL: usize, const WIDE: usize>(
        &mut self,
        simd: S,
        row: usize,
        right: &[f32],
        step: usize,
        column: usize,
    ) {
        let Left { data, shape: [_, inner], steps: [row_step, inner_step] } = self.left;
        let mut sums = [[simd.splat_f32s(0.0); WIDE]; TALL];
        for inner in 0..inner {
            let vectors = &S::as_simd_f32s(&right[inner * step..][..WIDE * S::F32_LANES]).0[..WIDE];
            let numbers: [S::f32s; WIDE] = from_fn(|index| vectors[index]);
            let start = row * row_step + inner * inner_step;
            for (index, sums) in sums.iter_mut().enumerate() {
                let factor = simd.splat_f32s(data[start + index * row_step]);
                for (sum, &number) in sums.iter_mut().zip(&numbers) {
                    *sum = simd.add_f32s(*sum, simd.mul_f32s(factor, number));
                }
            }
        }
        let count = (WIDE * S::F32_LANES).min(self.columns - column);
        for (index, sums) in sums.iter().enumerate() {
            let place = &mut self.product[(row + index) * self.columns + column..][..count];
            place.copy_from_slice(&bytemuck::cast_slice(sums)[..count]);
        }
    }
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
