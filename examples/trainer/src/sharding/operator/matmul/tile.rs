//! Sums of products in tiles as large as the registers allow.
//!
//! Every number of the product is summed in the order of the inner loop, a product and a sum at a time: the same bits
//! on every machine, whatever vectors it has.

use std::array::from_fn;

use pulp::Arch;

use crate::sharding::number::Number;
use crate::sharding::tensor::Tensor;

/// Rows that are summed at the same time.
const ROWS: usize = 4;

/// The left matrix as it is read: number (row, inner) stands at `row * row_step + inner * inner_step`.
pub(super) struct Left<'a, N> {
    data: &'a [N],
    rows: usize,
    inner: usize,
    row_step: usize,
    inner_step: usize,
}

impl<'a, N: Number> Left<'a, N> {
    /// The matrix itself.
    pub(super) fn rows(a: &'a Tensor<N>) -> Left<'a, N> {
        Left { data: &a.data, rows: a.shape[0], inner: a.shape[1], row_step: a.shape[1], inner_step: 1 }
    }

    /// The matrix transposed.
    pub(super) fn columns(a: &'a Tensor<N>) -> Left<'a, N> {
        Left { data: &a.data, rows: a.shape[1], inner: a.shape[0], row_step: 1, inner_step: a.shape[1] }
    }
}

/// Overwrites `product`, whose shape is that of the product already.
pub(super) fn multiply<N: Number>(left: &Left<'_, N>, right: &Tensor<N>, product: &mut Tensor<N>) {
    let columns = product.columns();
    let (right, product) = (&right.data, &mut product.data);
    // Compiled once more for the widest vectors that the machine has.
    Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut column = 0;
            while column < columns {
                column += match columns - column {
                    16.. => panel::<N, 16>(left, right, columns, column, product),
                    8.. => panel::<N, 8>(left, right, columns, column, product),
                    2.. => panel::<N, 2>(left, right, columns, column, product),
                    _ => panel::<N, 1>(left, right, columns, column, product),
                };
            }
        },
    );
}

/// `WIDE` columns of the product, from `column` on; returns how many.
#[inline(always)]
fn panel<N: Number, const WIDE: usize>(
    left: &Left<'_, N>,
    right: &[N],
    columns: usize,
    column: usize,
    product: &mut [N],
) -> usize {
    let whole = left.rows - left.rows % ROWS;
    for row in (0..whole).step_by(ROWS) {
        tile::<N, ROWS, WIDE>(left, row, right, columns, column, product);
    }
    for row in whole..left.rows {
        tile::<N, 1, WIDE>(left, row, right, columns, column, product);
    }
    WIDE
}

#[inline(always)]
fn tile<N: Number, const TALL: usize, const WIDE: usize>(
    left: &Left<'_, N>,
    row: usize,
    right: &[N],
    columns: usize,
    column: usize,
    product: &mut [N],
) {
    let mut sums = [[N::default(); WIDE]; TALL];
    for (inner, numbers) in right.chunks_exact(columns).take(left.inner).enumerate() {
        let Some(numbers) = numbers[column..].first_chunk::<WIDE>() else { continue };
        let start = row * left.row_step + inner * left.inner_step;
        let factors: [N; TALL] = from_fn(|index| left.data[start + index * left.row_step]);
        for (sums, factor) in sums.iter_mut().zip(factors) {
            for (sum, &number) in sums.iter_mut().zip(numbers) {
                *sum += factor * number;
            }
        }
    }
    for (index, sums) in sums.iter().enumerate() {
        product[(row + index) * columns + column..][..WIDE].copy_from_slice(sums);
    }
}
