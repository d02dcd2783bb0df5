//! Numbers of 16 bits, `f16` and `bf16`, which are added and multiplied in `f32`.

use bytemuck::cast_slice_mut;
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use super::element::ElementKind;
use super::reduction::aligned;

impl ElementKind {
    /// Whether a partial result consists of wider numbers.
    pub(super) fn is_half(self) -> bool {
        matches!(self, ElementKind::F16 | ElementKind::Bf16)
    }

    /// Converts a row of such numbers.
    pub(super) fn widen(self, row: &[u8], wide: &mut [f32]) {
        match self {
            ElementKind::F16 => aligned::<f16>(row).convert_to_f32_slice(wide),
            // Without the test for NaN of the crate's conversion, which takes twice as long: adding
            // makes a signaling NaN a quiet one.
            _ => wide.iter_mut().zip(aligned::<bf16>(row).iter()).for_each(|(wide, number)| {
                *wide = f32::from_bits(u32::from(number.to_bits()) << 16);
            }),
        }
    }

    /// Converts wide numbers to such numbers, and rounds them.
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
