//! The supported number types: f32, and f64 for comparison.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

use super::operator::matmul::tile::{self, Left};
use crate::file::tensor_file::Type;
use mpienv::collective::Element;

/// A floating-point number that ranks compute with and exchange.
pub trait Number:
    Element
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + Div<Output = Self>
    + Mul<Output = Self>
    + Sub<Output = Self>
    + SubAssign
    + 'static
{
    /// The type of these numbers in files.
    const TYPE: Type;

    /// Rounds to the nearest number of this type.
    fn of(number: f64) -> Self;

    fn to_f64(self) -> f64;

    fn exp(self) -> Self;

    fn ln(self) -> Self;

    /// Overwrites `product` with a matrix product. `right` and `product` are row-major with
    /// `columns` columns.
    fn multiply(left: Left<'_, Self>, right: &[Self], columns: usize, product: &mut [Self]);

    /// Converts to little-endian bytes.
    fn to_bytes(values: &[Self]) -> Vec<u8>;

    /// The inverse of [`Number::to_bytes`]. An incomplete number at the end is ignored.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

/// Returns the f64 with the same shortest decimal form, so that it prints as the user wrote it.
pub fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// The implementation that both types share.
macro_rules! common {
    ($number:ty, $name:expr, $exp:path, $ln:path) => {
        const TYPE: Type = $name;

        fn of(number: f64) -> $number {
            number as $number
        }

        fn to_f64(self) -> f64 {
            self.into()
        }

        fn exp(self) -> $number {
            $exp(self)
        }

        fn ln(self) -> $number {
            $ln(self)
        }

        fn to_bytes(values: &[$number]) -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        }

        fn from_bytes(bytes: &[u8]) -> Vec<$number> {
            bytes.as_chunks().0.iter().map(|&bytes| <$number>::from_le_bytes(bytes)).collect()
        }
    };
}

impl Number for f32 {
    common!(f32, Type::F32, libm::expf, libm::logf);

    fn multiply(left: Left<'_, f32>, right: &[f32], columns: usize, product: &mut [f32]) {
        tile::multiply(left, right, columns, product);
    }
}

impl Number for f64 {
    common!(f64, Type::F64, libm::exp, libm::log);

    /// This is not optimized, because f64 is only for comparison.
    fn multiply(left: Left<'_, f64>, right: &[f64], columns: usize, product: &mut [f64]) {
        tile::multiply_plainly(left, right, columns, product);
    }
}
