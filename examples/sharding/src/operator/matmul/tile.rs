//! Matrix products, in tiles as large as the registers allow and with the machine's widest
//! instructions.
//!
//! Every sum is in the order of the inner loop, and each product is rounded before it is added. All
//! machines therefore compute the same bits, so ranks on different machines can be replicas.

use std::array::from_fn;

use pulp::{Arch, Simd, WithSimd};

use crate::tensor::Tensor;

/// Rows computed at once. With two vectors of columns, the sums and operands fit in the registers
/// of AVX2.
const ROWS: usize = 4;

/// A view of the left matrix: number (row, inner) is at `row * row_step + inner * inner_step`.
#[derive(Clone, Copy, Debug)]
pub struct Left<'a> {
    data: &'a [f32],
    rows: usize,
    inner: usize,
    row_step: usize,
    inner_step: usize,
}

impl<'a> Left<'a> {
    /// A view of the matrix itself.
    pub fn rows(a: &'a Tensor) -> Left<'a> {
        Left {
            data: &a.data,
            rows: a.shape[0],
            inner: a.shape[1],
            row_step: a.shape[1],
            inner_step: 1,
        }
    }

    /// A view of the transposed matrix.
    pub fn columns(a: &'a Tensor) -> Left<'a> {
        Left {
            data: &a.data,
            rows: a.shape[1],
            inner: a.shape[0],
            row_step: 1,
            inner_step: a.shape[1],
        }
    }
}

/// Overwrites `product` with a matrix product. `right` and `product` are row-major with `columns`
/// columns.
pub fn multiply(left: Left<'_>, right: &[f32], columns: usize, product: &mut [f32]) {
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
            let mut filled = vec![0.0; self.left.inner * S::F32_LANES];
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
        let whole = self.left.rows - self.left.rows % ROWS;
        for row in (0..whole).step_by(ROWS) {
            self.tile::<S, ROWS, WIDE>(simd, row, right, step, column);
        }
        for row in whole..self.left.rows {
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
        let left = self.left;
        let mut sums = [[simd.splat_f32s(0.0); WIDE]; TALL];
        for inner in 0..left.inner {
            let vectors = &S::as_simd_f32s(&right[inner * step..][..WIDE * S::F32_LANES]).0[..WIDE];
            let numbers: [S::f32s; WIDE] = from_fn(|index| vectors[index]);
            let start = row * left.row_step + inner * left.inner_step;
            for (index, sums) in sums.iter_mut().enumerate() {
                let factor = simd.splat_f32s(left.data[start + index * left.row_step]);
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
