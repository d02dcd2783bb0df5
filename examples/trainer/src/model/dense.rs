//! The sums of a dense layer with few outputs, by the widest instructions that the machine has.
//!
//! A general matrix product packs its operands first, which here takes as long as the product itself.

use std::array::from_fn;

use pulp::{Arch, Simd, WithSimd};

use crate::batch::Image;
use crate::data::{CLASSES, PIXELS};

/// Outputs that are summed at the same time: with [`WIDE`], as many sums as fit the registers of AVX2.
const OUTPUTS: usize = CLASSES / 2;

/// Samples, or vectors of pixels, that are summed at the same time.
const WIDE: usize = 2;

/// Puts into each row the layer's outputs for the image: weights (of shape (10, 784)) times image, plus biases.
pub fn outputs(arch: Arch, weights: &[f32], biases: &[f32], images: &[Image], rows: &mut [[f32; CLASSES]]) {
    arch.dispatch(Outputs { weights: weights.as_chunks().0, biases, images, rows });
}

/// Overwrites the weights' slopes: for each output and pixel the sum over the images of slope times pixel.
pub fn weight_slopes(arch: Arch, slopes: &[[f32; CLASSES]], images: &[Image], weights: &mut [f32]) {
    arch.dispatch(WeightSlopes { slopes, images, weights: weights.as_chunks_mut().0 });
}

struct Outputs<'a> {
    weights: &'a [Image],
    biases: &'a [f32],
    images: &'a [Image],
    rows: &'a mut [[f32; CLASSES]],
}

impl WithSimd for Outputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (weights, biases) = (self.weights.as_chunks::<OUTPUTS>().0, self.biases.as_chunks::<OUTPUTS>().0);
        let count = self.images.len().min(self.rows.len());
        let (pairs, last) = self.images[..count].as_chunks::<WIDE>();
        let (row_pairs, last_rows) = self.rows[..count].as_chunks_mut::<WIDE>();
        for (half, (weights, biases)) in weights.iter().zip(biases).enumerate() {
            for (images, rows) in pairs.iter().zip(row_pairs.iter_mut()) {
                put(dot_products(simd, weights, images), biases, half, rows);
            }
            for (image, row) in last.iter().zip(last_rows.iter_mut()) {
                let (image, row) = (std::array::from_ref(image), std::array::from_mut(row));
                put(dot_products(simd, weights, image), biases, half, row);
            }
        }
    }
}

/// The product of each image with each of the weights.
#[inline(always)]
fn dot_products<S: Simd, const N: usize>(
    simd: S,
    weights: &[Image; OUTPUTS],
    images: &[Image; N],
) -> [[f32; OUTPUTS]; N] {
    let length = PIXELS / S::F32_LANES;
    let weights: [&[S::f32s]; OUTPUTS] = from_fn(|output| &S::as_simd_f32s(&weights[output]).0[..length]);
    let images: [&[S::f32s]; N] = from_fn(|image| &S::as_simd_f32s(&images[image]).0[..length]);
    let mut sums = [[simd.splat_f32s(0.0); OUTPUTS]; N];
    for k in 0..length {
        let x: [S::f32s; N] = from_fn(|image| images[image][k]);
        for output in 0..OUTPUTS {
            let weight = weights[output][k];
            for image in 0..N {
                sums[image][output] = simd.mul_add_e_f32s(weight, x[image], sums[image][output]);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| simd.reduce_sum_f32s(sum)))
}

#[inline(always)]
fn put<const N: usize>(
    sums: [[f32; OUTPUTS]; N],
    biases: &[f32; OUTPUTS],
    half: usize,
    rows: &mut [[f32; CLASSES]; N],
) {
    for (sums, row) in sums.iter().zip(rows) {
        for output in 0..OUTPUTS {
            row[half * OUTPUTS + output] = sums[output] + biases[output];
        }
    }
}

struct WeightSlopes<'a> {
    slopes: &'a [[f32; CLASSES]],
    images: &'a [Image],
    weights: &'a mut [Image],
}

impl WithSimd for WeightSlopes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let length = PIXELS / S::F32_LANES;
        let even = length - length % WIDE;
        for k in (0..even).step_by(WIDE) {
            self.vectors::<S, WIDE>(simd, k);
        }
        for k in even..length {
            self.vectors::<S, 1>(simd, k);
        }
    }
}

impl WeightSlopes<'_> {
    /// The slopes of `N` vectors of pixels from vector `k` on, for all outputs.
    #[inline(always)]
    fn vectors<S: Simd, const N: usize>(&mut self, simd: S, k: usize) {
        for (half, weights) in self.weights.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
            let mut sums = [[simd.splat_f32s(0.0); N]; OUTPUTS];
            for (image, slopes) in self.images.iter().zip(self.slopes) {
                let image = &S::as_simd_f32s(image).0[k..k + N];
                let x: [S::f32s; N] = from_fn(|i| image[i]);
                for output in 0..OUTPUTS {
                    let slope = simd.splat_f32s(slopes[half * OUTPUTS + output]);
                    for i in 0..N {
                        sums[output][i] = simd.mul_add_e_f32s(slope, x[i], sums[output][i]);
                    }
                }
            }
            for (weights, sums) in weights.iter_mut().zip(sums) {
                S::as_mut_simd_f32s(weights).0[k..k + N].copy_from_slice(&sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(number: usize) -> Image {
        from_fn(|pixel| ((pixel * 7 + number * 13) % 11) as f32 - 5.0)
    }

    // Small whole numbers: every sum is exact, in any order.
    #[test]
    fn the_sums_are_those_of_the_definition_for_any_count() {
        let weights: Vec<f32> = (0..CLASSES * PIXELS).map(|index| (index * 5 % 7) as f32 - 3.0).collect();
        let biases: [f32; CLASSES] = from_fn(|class| class as f32);
        for count in 0..6 {
            let images: Vec<Image> = (0..count).map(image).collect();
            let mut rows = vec![[f32::NAN; CLASSES]; count];
            outputs(Arch::new(), &weights, &biases, &images, &mut rows);
            let mut slopes = vec![f32::NAN; CLASSES * PIXELS];
            weight_slopes(Arch::new(), &rows, &images, &mut slopes);
            for class in 0..CLASSES {
                let weights = &weights[class * PIXELS..][..PIXELS];
                for (row, image) in rows.iter().zip(&images) {
                    let sum: f32 = weights.iter().zip(image).map(|(weight, x)| weight * x).sum();
                    assert_eq!(row[class], sum + biases[class]);
                }
                for pixel in 0..PIXELS {
                    let sum: f32 = rows.iter().zip(&images).map(|(row, image)| row[class] * image[pixel]).sum();
                    assert_eq!(slopes[class * PIXELS + pixel], sum);
                }
            }
        }
    }
}
