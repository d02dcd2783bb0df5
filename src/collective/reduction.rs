//! How numbers of all ranks become one.
//!
//! A partial result is that of the first ranks. `f16` and `bf16` are added and multiplied in `f32`,
//! which is then what a partial result consists of. The result is rounded once.

use std::borrow::Cow;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
#[cfg(feature = "half")]
use half::{bf16, f16};

use super::element::ElementKind;

/// How the numbers of all ranks are combined.
///
/// ```
/// use mpienv::collective::{CollectiveError, Group, Reduction};
///
/// let mut loss = [0.5_f32];
/// Group::alone().all_reduce(&mut loss, Reduction::Mean)?;
/// assert_eq!(loss, [0.5]);
/// # Ok::<(), CollectiveError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduction {
    /// Adds the numbers. Integers wrap around.
    Sum,
    /// Takes the smallest number, of 0.0 and -0.0 the latter. If one is NaN, the result is NaN.
    Min,
    /// Takes the largest number, of 0.0 and -0.0 the former. If one is NaN, the result is NaN.
    Max,
    /// Multiplies the numbers. Integers wrap around.
    Product,
    /// Divides the sum by the number of ranks. Integers and `bool` have no mean.
    Mean,
}

/// Numbers of one type, and what is done with them.
trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
}

/// Implements a type from its sum, its product, and what is true of -0.0.
macro_rules! numbers {
    ($($(#[$cfg:meta])? $number:ident $sum:expr, $product:expr, $is_negative:expr;)*) => {
        $($(#[$cfg])? impl Number for $number {
            fn sum(self, other: $number) -> $number {
                $sum(self, other)
            }

            fn product(self, other: $number) -> $number {
                $product(self, other)
            }

            // Only NaN differs from itself. -0.0 is less than 0.0, which equals it.
            fn min(self, other: $number) -> $number {
                let is_first = self < other || self == other && $is_negative(self);
                if is_first || self != self { self } else { other }
            }

            fn max(self, other: $number) -> $number {
                let is_first = self > other || self == other && !$is_negative(self);
                if is_first || self != self { self } else { other }
            }
        })*
    };
}

numbers! {
    f32 |a, b| a + b, |a, b| a * b, f32::is_sign_negative;
    f64 |a, b| a + b, |a, b| a * b, f64::is_sign_negative;
    #[cfg(feature = "half")] f16 |a, b| a + b, |a, b| a * b, f16::is_sign_negative;
    #[cfg(feature = "half")] bf16 |a, b| a + b, |a, b| a * b, bf16::is_sign_negative;
    i8 i8::wrapping_add, i8::wrapping_mul, |_| false;
    i32 i32::wrapping_add, i32::wrapping_mul, |_| false;
    i64 i64::wrapping_add, i64::wrapping_mul, |_| false;
    u8 u8::wrapping_add, u8::wrapping_mul, |_| false;
    u32 u32::wrapping_add, u32::wrapping_mul, |_| false;
    u64 u64::wrapping_add, u64::wrapping_mul, |_| false;
}

/// Evaluates an expression with `$number` as the type of a kind's numbers, but for `bool`.
macro_rules! with_type {
    ($kind:expr, bool => $bools:expr, $number:ident => $run:expr) => {
        with_type!($kind, $bools, $number => $run,
            F32 f32 F64 f64 I32 i32 I64 i64 U32 u32 U64 u64 I8 i8 U8 u8
            #[cfg(feature = "half")] F16 f16 #[cfg(feature = "half")] Bf16 bf16)
    };
    ($kind:expr, $bools:expr, $number:ident => $run:expr,
        $($(#[$cfg:meta])? $name:ident $type:ident)*) => {
        match $kind {
            ElementKind::Bool => $bools,
            $($(#[$cfg])? ElementKind::$name => {
                type $number = $type;
                $run
            })*
        }
    };
}

/// Runs a loop with a reduction's operation on two numbers. Each operation gets its own loop, which
/// the compiler turns into vector instructions.
macro_rules! with_operation {
    ($by:expr, $number:ident, $operation:ident => $loop:expr) => {
        match $by {
            Reduction::Sum | Reduction::Mean => {
                let $operation = $number::sum;
                $loop
            }
            Reduction::Product => {
                let $operation = $number::product;
                $loop
            }
            Reduction::Min => {
                let $operation = $number::min;
                $loop
            }
            Reduction::Max => {
                let $operation = $number::max;
                $loop
            }
        }
    };
}

/// How many numbers are converted at a time. They stay in the L1 cache.
const CONVERTED: usize = 1024;

impl ElementKind {
    /// Whether the numbers have 16 bits: a partial result then consists of wider numbers.
    pub(super) fn is_half(self) -> bool {
        self.size() == size_of::<u16>()
    }

    /// The type of a partial result.
    pub(super) fn of_partial(self, by: Reduction) -> ElementKind {
        use Reduction::{Mean, Product, Sum};
        match by {
            Sum | Product | Mean if self.is_half() => ElementKind::F32,
            _ => self,
        }
    }

    /// Whether two numbers combined are already the result for two ranks.
    pub(super) fn is_done_in_pairs(self, by: Reduction) -> bool {
        by != Reduction::Mean && self.of_partial(by) == self
    }

    /// Makes the first rank's `row` a partial result.
    pub(super) fn begin(self, by: Reduction, row: &[u8], partial: &mut [u8]) {
        if self.of_partial(by) == self {
            partial.copy_from_slice(row);
        } else if !row.is_empty() {
            self.widen(row, cast_slice_mut(partial));
        }
    }

    /// Adds the next rank's `row` to a partial result.
    pub(super) fn add(self, by: Reduction, partial: &mut [u8], row: &[u8]) {
        if self.of_partial(by) == self {
            self.combine(by, partial, row);
        } else if !row.is_empty() {
            let mut wide = [0.0; CONVERTED];
            let rows = row.chunks(CONVERTED * self.size());
            for (partial, row) in cast_slice_mut(partial).chunks_mut(CONVERTED).zip(rows) {
                let wide = &mut wide[..partial.len()];
                self.widen(row, wide);
                combine(by, partial, wide);
            }
        }
    }

    /// Makes a partial result that includes all `ranks` the result.
    pub(super) fn end(self, by: Reduction, ranks: u32, partial: &mut [u8], into: &mut [u8]) {
        let kind = self.of_partial(by);
        kind.divide(by, ranks, partial);
        if kind == self {
            into.copy_from_slice(partial);
        } else if !into.is_empty() {
            self.round(cast_slice(partial), into);
        }
    }

    /// Divides a sum of all ranks, if it is for a mean.
    pub(super) fn divide(self, by: Reduction, ranks: u32, sum: &mut [u8]) {
        if by != Reduction::Mean || sum.is_empty() {
            return;
        }
        match self {
            ElementKind::F64 => {
                cast_slice_mut::<_, f64>(sum).iter_mut().for_each(|sum| *sum /= f64::from(ranks));
            }
            // The group refuses to compute a mean of integers.
            _ => cast_slice_mut::<_, f32>(sum).iter_mut().for_each(|sum| *sum /= ranks as f32),
        }
    }

    /// Combines each number in `into` with the one in `from`, which comes before or after it in
    /// rank order: the bits are the same.
    pub(super) fn combine(self, by: Reduction, into: &mut [u8], from: &[u8]) {
        // Empty slices may be unaligned, which the casts reject.
        if !into.is_empty() {
            with_type!(self,
                bool => combine_bools(by, into, from),
                T => combine::<T>(by, cast_slice_mut(into), &aligned(from))
            );
        }
    }

    /// Combines the numbers of two ranks into `into`, in one pass.
    fn combine_two(self, by: Reduction, first: &[u8], second: &[u8], into: &mut [u8]) {
        if !into.is_empty() {
            with_type!(self,
                bool => {
                    into.copy_from_slice(first);
                    combine_bools(by, into, second);
                },
                T => combine_two::<T>(by, &aligned(first), &aligned(second), cast_slice_mut(into))
            );
        }
    }
}

/// The numbers of a row, which is copied if it is unaligned.
pub(super) fn aligned<T: Pod>(row: &[u8]) -> Cow<'_, [T]> {
    bytemuck::try_cast_slice(row).map_or_else(
        |_| {
            let mut numbers = vec![T::zeroed(); row.len() / size_of::<T>()];
            cast_slice_mut(&mut numbers).copy_from_slice(row);
            Cow::Owned(numbers)
        },
        Cow::Borrowed,
    )
}

fn combine<T: Number>(by: Reduction, into: &mut [T], from: &[T]) {
    with_operation!(by, T, operation => {
        for (a, &b) in into.iter_mut().zip(from) {
            *a = operation(*a, b);
        }
    });
}

fn combine_two<T: Number>(by: Reduction, first: &[T], second: &[T], into: &mut [T]) {
    with_operation!(by, T, operation => {
        for (into, (&a, &b)) in into.iter_mut().zip(first.iter().zip(second)) {
            *into = operation(a, b);
        }
    });
}

fn combine_bools(by: Reduction, into: &mut [u8], from: &[u8]) {
    let pairs = into.iter_mut().zip(from);
    match by {
        Reduction::Sum | Reduction::Max | Reduction::Mean => {
            pairs.for_each(|(a, &b)| *a = u8::from(*a != 0 || b != 0));
        }
        Reduction::Product | Reduction::Min => {
            pairs.for_each(|(a, &b)| *a = u8::from(*a != 0 && b != 0));
        }
    }
}

/// Reduces the `rows` of all `ranks` in rank order, into `into`.
pub(super) fn in_rank_order<'r>(
    kind: ElementKind,
    by: Reduction,
    rows: impl IntoIterator<Item = &'r [u8]>,
    into: &mut [u8],
) {
    if kind.of_partial(by) == kind {
        let mut rows = rows.into_iter();
        let mut ranks = 1;
        match (rows.next(), rows.next()) {
            (Some(first), Some(second)) => {
                kind.combine_two(by, first, second, into);
                ranks = 2;
            }
            (Some(only), _) => into.copy_from_slice(only),
            (None, _) => return,
        }
        for row in rows {
            kind.combine(by, into, row);
            ranks += 1;
        }
        return kind.divide(by, ranks, into);
    }
    let rows: Vec<&[u8]> = rows.into_iter().collect();
    let mut partial = [0.0_f32; CONVERTED];
    let block = CONVERTED * kind.size();
    for (index, into) in into.chunks_mut(block).enumerate() {
        let partial = cast_slice_mut(&mut partial[..into.len() / kind.size()]);
        for (rank, row) in rows.iter().enumerate() {
            let row = &row[index * block..][..into.len()];
            match rank {
                0 => kind.begin(by, row, partial),
                _ => kind.add(by, partial, row),
            }
        }
        kind.end(by, rows.len() as u32, partial, into);
    }
}

/// Without the feature, no number has 16 bits.
#[cfg(not(feature = "half"))]
impl ElementKind {
    fn widen(self, _row: &[u8], _wide: &mut [f32]) {}

    fn round(self, _wide: &[f32], _into: &mut [u8]) {}
}

#[cfg(feature = "half")]
mod half_precision {
    use bytemuck::cast_slice_mut;
    use half::slice::HalfFloatSliceExt as _;
    use half::{bf16, f16};

    use super::{ElementKind, aligned};

    impl ElementKind {
        /// Converts a row of numbers of 16 bits.
        pub(super) fn widen(self, row: &[u8], wide: &mut [f32]) {
            match self {
                ElementKind::F16 => aligned::<f16>(row).convert_to_f32_slice(wide),
                // Without the test for NaN of the crate's conversion, which takes twice as long:
                // adding makes a signaling NaN a quiet one.
                _ => wide.iter_mut().zip(aligned::<bf16>(row).iter()).for_each(|(wide, number)| {
                    *wide = f32::from_bits(u32::from(number.to_bits()) << 16);
                }),
            }
        }

        /// Converts wide numbers to numbers of 16 bits, and rounds them.
        pub(super) fn round(self, wide: &[f32], into: &mut [u8]) {
            match self {
                ElementKind::F16 => cast_slice_mut::<_, f16>(into).convert_from_f32_slice(wide),
                _ => {
                    let into = cast_slice_mut::<_, bf16>(into).iter_mut();
                    into.zip(wide).for_each(|(into, &wide)| *into = rounded(wide));
                }
            }
        }
    }

    /// The nearest number, and of two that are as near the even one. As `bf16::from_f32`, but without
    /// branches, so that the compiler rounds several at a time.
    fn rounded(wide: f32) -> bf16 {
        let bits = wide.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let bits = if wide.is_nan() { bits | 0x0040_0000 } else { nearest };
        bf16::from_bits((bits >> 16) as u16)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::reduction::{Reduction, in_rank_order};

        #[test]
        fn half_precision_is_rounded_once_and_does_not_overflow_on_the_way() {
            let reduced = |by, rows: &[f16]| {
                let mut into = [f16::ZERO];
                let rows = rows.iter().map(bytemuck::bytes_of);
                in_rank_order(ElementKind::F16, by, rows, cast_slice_mut(&mut into));
                into[0].to_f32()
            };
            // 2048 + 1 is not an f16: rounded after each rank, the sum would stay 2048.
            let many = [2048.0, 1.0, 1.0, 1.0, 1.0].map(f16::from_f32);
            assert_eq!(reduced(Reduction::Sum, &many), 2052.0);
            let large = [f16::MAX; 3];
            assert_eq!(reduced(Reduction::Mean, &large), f16::MAX.to_f32());
            assert_eq!(reduced(Reduction::Sum, &large), f32::INFINITY);
            let factors = [1000.0, 1000.0, 0.001].map(f16::from_f32);
            let product = factors.iter().fold(1.0, |product, factor| product * factor.to_f32());
            assert_eq!(reduced(Reduction::Product, &factors), f16::from_f32(product).to_f32());
        }

        #[test]
        fn a_bf16_is_rounded_as_its_crate_rounds_it() {
            // Every bf16, and around each the numbers that are rounded to it and away from it.
            for high in 0..=u16::MAX {
                for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                    let wide = f32::from_bits(u32::from(high) << 16 | low);
                    assert_eq!(rounded(wide).to_bits(), bf16::from_f32(wide).to_bits(), "{wide:?}");
                }
            }
            let signaling = [bf16::from_bits(0x7f81), bf16::ONE];
            let mut sum = [bf16::ZERO];
            let rows = signaling.iter().map(bytemuck::bytes_of);
            in_rank_order(ElementKind::Bf16, Reduction::Sum, rows, cast_slice_mut(&mut sum));
            assert_eq!(sum[0].to_bits(), 0x7fc1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_wins_over_every_number_and_zeros_are_ordered_from_either_side() {
        let combined = |by, a: f32, b: f32| {
            let mut values = [a, b];
            combine(by, &mut values, &[b, a]);
            values.map(f32::to_bits)
        };
        for by in [Reduction::Min, Reduction::Max] {
            for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::NAN, f32::NAN)] {
                assert!(combined(by, a, b).iter().all(|&bits| f32::from_bits(bits).is_nan()));
            }
            let expected = if by == Reduction::Min { -0.0_f32 } else { 0.0 };
            assert_eq!(combined(by, 0.0, -0.0), [expected.to_bits(); 2]);
        }
        assert_eq!(combined(Reduction::Min, -2.0, 3.0), [(-2.0_f32).to_bits(); 2]);
        assert_eq!(combined(Reduction::Max, -2.0, 3.0), [3.0_f32.to_bits(); 2]);
    }

    #[test]
    fn integers_wrap_around_and_are_ordered() {
        let mut values = [i32::MAX, -3];
        combine(Reduction::Sum, &mut values, &[1, 1]);
        assert_eq!(values, [i32::MIN, -2]);
        combine(Reduction::Max, &mut values, &[0, -9]);
        assert_eq!(values, [0, -2]);
        combine(Reduction::Min, &mut values, &[5, -9]);
        assert_eq!(values, [0, -9]);
        combine(Reduction::Product, &mut values, &[7, i32::MAX]);
        assert_eq!(values, [0, i32::MAX.wrapping_mul(-9)]);
    }

    #[test]
    fn an_unaligned_row_is_combined_as_any_other() {
        let mut bytes = vec![0];
        bytes.extend_from_slice(cast_slice(&[1.5_f64, 2.5]));
        let mut values = [1.0_f64, 1.0];
        ElementKind::F64.combine(Reduction::Sum, cast_slice_mut(&mut values), &bytes[1..]);
        assert_eq!(values, [2.5, 3.5]);
        in_rank_order(
            ElementKind::F64,
            Reduction::Product,
            [&bytes[1..], cast_slice(&[2.0_f64, 3.0])],
            cast_slice_mut(&mut values),
        );
        assert_eq!(values, [3.0, 7.5]);
    }
}
